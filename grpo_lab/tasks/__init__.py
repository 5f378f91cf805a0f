"""What a model is asked, and how its answers are scored: prompts in a fixed order, reward functions.

Nothing here knows a model or a training step.
"""
