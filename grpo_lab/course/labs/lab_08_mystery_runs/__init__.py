"""Lab 8: mystery runs."""
