"""Metadata of many datasets, on disk or on a Hub, searched and checked in bounded memory."""
