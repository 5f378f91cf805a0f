"""The notebooks: what their cells call (`Lab`), and how they are made from labs/src (`editions`)."""

from grpo_lab.runs.notebook_mode import shortened
from grpo_lab.ui.notebook.lab import Lab

__all__ = ["Lab", "shortened"]
