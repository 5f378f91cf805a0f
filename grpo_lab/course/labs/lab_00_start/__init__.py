"""Lab 00 start."""
