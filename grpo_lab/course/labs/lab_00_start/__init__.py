"""Lab 0: start here."""
