"""Runs answers where they can do no harm: data in, data out, and everything that they start dies with them."""
