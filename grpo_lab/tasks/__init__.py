"""Tasks, which are prompts in a fixed order, and reward functions.

Nothing here depends on a model or a training step.
"""
