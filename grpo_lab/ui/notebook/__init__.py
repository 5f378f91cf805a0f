"""Notebooks of the course: their cells call a `Lab`."""

from grpo_lab.ui.notebook.lab import Lab
from grpo_lab.ui.notebook_mode import shortened

__all__ = ["Lab", "shortened"]
