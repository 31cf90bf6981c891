"""Decoded pictures kept on disk, and LeRobot's dataset fed from them."""
