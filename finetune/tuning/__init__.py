"""What fine-tuning decides: presets, held-out takes, shares of real data, statistics."""
