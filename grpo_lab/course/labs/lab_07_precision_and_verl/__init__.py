"""Lab 07 precision and verl."""
