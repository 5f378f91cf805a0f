"""Lab 6: silent failures."""
