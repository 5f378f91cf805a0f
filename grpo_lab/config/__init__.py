"""What a run is: its settings, presets and scenarios, and the names that lead to a user's own files.

Nothing here imports torch, so that the command line answers at once.
"""
