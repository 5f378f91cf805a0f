"""A run as an experiment: session, folder, child processes, commands, crashes and the first break.

`first_break` and `crashes` stand here and not in `analysis`, which is above: a Session names its own first break and
classifies its own crash. Nothing here draws, and nothing here compares runs with each other.
"""
