"""A run's settings, the presets and scenarios, and the loading of user code.

Nothing here imports torch, so that the command line starts fast.
"""
