"""From a diagnosis to what to collect, and what to do instead."""
