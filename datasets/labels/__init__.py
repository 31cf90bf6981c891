"""What was said about takes: queries, agreement, CSV, and the columns made of it."""
