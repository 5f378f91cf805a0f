"""Nothing here may be imported, not even to look for doctests."""

collect_ignore_glob = ["*.py"]
