"""Recordings of others with labels: classifiers fitted to them, and honest figures about them."""
