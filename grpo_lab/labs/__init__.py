"""The notebooks: what their cells call (`Lab`), and how they are made from labs/src (`editions`)."""

from grpo_lab.labs.lab import Lab
from grpo_lab.warm import shortened

__all__ = ["Lab", "shortened"]
