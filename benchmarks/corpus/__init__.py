"""Labelled takes that attribution is trained and judged on: recorded, measured, scored."""
