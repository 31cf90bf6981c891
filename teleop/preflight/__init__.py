"""What is checked before a policy may move an arm; what can't be measured is asked."""
