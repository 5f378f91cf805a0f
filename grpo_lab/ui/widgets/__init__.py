"""Widgets for notebooks: the panel, its live figure, the lecture. Each is imported on first use."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from grpo_lab.ui.widgets.lecture import Lecture
    from grpo_lab.ui.widgets.panel import Panel

__all__ = ["Lecture", "Panel"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'grpo_lab.ui.widgets' has no attribute {name!r}")
    return getattr(importlib.import_module(f"grpo_lab.ui.widgets.{name.lower()}"), name)
