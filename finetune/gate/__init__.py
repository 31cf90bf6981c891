"""May a candidate policy replace the baseline? Stages, a sequential test, a canary, a record."""
