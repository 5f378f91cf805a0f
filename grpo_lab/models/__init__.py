"""Models and tokenizers: their folders, precisions and loading, and LoRA.

Nothing here trains with GRPO.
"""
