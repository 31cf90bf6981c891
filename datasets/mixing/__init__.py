"""One seeded stream of training samples from many datasets."""
