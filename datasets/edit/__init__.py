"""One dataset made of chosen episodes of others: delete, keep, split, merge, tag anew."""
