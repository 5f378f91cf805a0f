"""Lab 02 explosion."""
