"""Models and tokenizers: their folders, precisions and loading, and how the tiny one is built.

Nothing here trains with GRPO.
"""
