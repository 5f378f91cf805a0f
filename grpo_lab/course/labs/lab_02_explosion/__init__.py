"""Lab 2: the explosion."""
