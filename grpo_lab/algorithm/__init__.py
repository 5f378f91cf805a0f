"""The mathematics of GRPO: pure functions of tensors, with every right formula by name.

Nothing here reads a configuration, keeps a state or knows a model; wrong formulas live in `training/wrong_formulas.py`.
"""
