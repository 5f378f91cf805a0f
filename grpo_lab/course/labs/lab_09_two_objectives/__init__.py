"""Lab 9: two objectives."""
