"""Lab 7: precision, and verl's remedies."""
