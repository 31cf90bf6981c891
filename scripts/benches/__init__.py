"""The parts of `gaploop bench`: each has `measure(config, folder)` and `table(result)`."""
