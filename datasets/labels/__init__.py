"""What was said about takes: queries, and the columns made of it."""
