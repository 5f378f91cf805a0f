"""Notebooks of the course: their cells call a `Lab`."""

from grpo_lab.runs.notebook_mode import shortened
from grpo_lab.ui.notebook.lab import Lab

__all__ = ["Lab", "shortened"]
