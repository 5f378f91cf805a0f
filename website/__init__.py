"""The static site: `python -m website` builds it."""
