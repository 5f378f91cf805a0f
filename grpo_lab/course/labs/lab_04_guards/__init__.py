"""Lab 04 guards."""
