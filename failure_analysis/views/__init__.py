"""A take prepared for looking at: its motion, pictures, tool path and phases."""
