"""Lab 03 error chain."""
