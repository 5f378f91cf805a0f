"""Lab 4: guards."""
