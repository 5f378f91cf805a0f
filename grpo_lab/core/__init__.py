"""The trainer as a learner reads it. It imports torch and itself, nothing else of the package."""
