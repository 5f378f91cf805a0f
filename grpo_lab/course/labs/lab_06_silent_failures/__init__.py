"""Lab 06 silent failures."""
