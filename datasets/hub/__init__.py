"""Datasets and adapters onto a Hub: checked, resumed, retried."""
