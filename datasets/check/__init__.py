"""What is wrong with a dataset or a journal: findings, each with the command that fixes it."""
