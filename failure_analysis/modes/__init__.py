"""What was seen to go wrong, and when."""
