"""Named numbers with a unit that say one thing about one take."""
