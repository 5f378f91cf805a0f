"""Notebooks of the course: `Lab` is what their cells call."""

from grpo_lab.runs.notebook_mode import shortened
from grpo_lab.ui.notebook.lab import Lab

__all__ = ["Lab", "shortened"]
