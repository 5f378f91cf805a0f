"""grpo_lab: why GRPO training blows up, and what stops it.

The public names, imported when they are first asked for, so that `import grpo_lab` loads neither torch nor Jupyter.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from grpo_lab.chain import ChainBreak, classify_crash, first_break
    from grpo_lab.config import Config
    from grpo_lab.diagnosis import diagnose
    from grpo_lab.errors import GrpoLabError
    from grpo_lab.faults import FAULTS
    from grpo_lab.guards import GUARDS
    from grpo_lab.labs import Lab
    from grpo_lab.scenarios import preset, preset_names, scenario, scenario_names
    from grpo_lab.session import Session
    from grpo_lab.trainer import train
    from grpo_lab.widgets.panel import Panel

__version__ = "0.1.0"

_HOMES = {
    "ChainBreak": "chain",
    "Config": "config",
    "FAULTS": "faults",
    "GUARDS": "guards",
    "GrpoLabError": "errors",
    "Panel": "widgets",
    "Lab": "labs",
    "Session": "session",
    "classify_crash": "chain",
    "diagnose": "diagnosis",
    "first_break": "chain",
    "preset": "scenarios",
    "preset_names": "scenarios",
    "scenario": "scenarios",
    "scenario_names": "scenarios",
    "train": "trainer",
}
__all__ = [
    "FAULTS",
    "GUARDS",
    "ChainBreak",
    "Config",
    "GrpoLabError",
    "Lab",
    "Panel",
    "Session",
    "classify_crash",
    "diagnose",
    "first_break",
    "preset",
    "preset_names",
    "scenario",
    "scenario_names",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'grpo_lab' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"grpo_lab.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
