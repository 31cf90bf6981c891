"""What many takes say together: which conditions cost success, gaps, trends, groups of failures."""
