"""Lab 08 mystery runs."""
