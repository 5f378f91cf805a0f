"""Lab 3: the error chain."""
