"""A run as an experiment: its session, folder, child process and commands, and how it broke.

Nothing here draws, and nothing here compares runs with each other.
"""
