"""Lab 1: GRPO by hand."""
