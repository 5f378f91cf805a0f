"""Lab 05 kl."""
