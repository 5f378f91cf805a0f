"""Models and tokenizers: where they are, in which precision they are loaded, and how the tiny one is built.

Nothing here trains with GRPO.
"""
