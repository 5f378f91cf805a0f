"""Lab 01 grpo by hand."""
