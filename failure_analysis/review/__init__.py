"""The review page: failed takes looked at and labelled in a browser, by keyboard."""
