"""A benchmark that others enter: untrusted submissions, hidden scenes, signed results."""
