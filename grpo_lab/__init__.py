"""grpo_lab: causes and cures of exploding GRPO training, measured.

The public names are imported at their first use, so that `import grpo_lab` loads neither torch nor Jupyter.
"""

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from grpo_lab.analysis.diagnosis import diagnose
    from grpo_lab.analysis.run_difference import difference
    from grpo_lab.analysis.trl_callback import DiagnoseCallback
    from grpo_lab.config.algorithms import algorithm_names
    from grpo_lab.config.catalog import preset, preset_names, scenario, scenario_names
    from grpo_lab.config.schema import Config
    from grpo_lab.errors import GrpoLabError
    from grpo_lab.hosted.guards import Guards
    from grpo_lab.hosted.trainers import GuardCallback, guarded
    from grpo_lab.runs.crashes import classify_crash
    from grpo_lab.runs.first_break import ChainBreak, first_break
    from grpo_lab.runs.session import Session
    from grpo_lab.training.faults import FAULTS
    from grpo_lab.training.guards import GUARDS
    from grpo_lab.training.trainer import train
    from grpo_lab.ui.notebook import Lab
    from grpo_lab.ui.widgets.panel import Panel

__version__ = "0.1.0"

__path__.append(str(Path(__file__).parent / "training" / "short_paths"))  # keeps `import grpo_lab.losses` working

_HOMES = {
    "ChainBreak": "runs.first_break",
    "Config": "config.schema",
    "DiagnoseCallback": "analysis.trl_callback",
    "FAULTS": "training.faults",
    "GUARDS": "training.guards",
    "GrpoLabError": "errors",
    "GuardCallback": "hosted.trainers",
    "Guards": "hosted.guards",
    "Panel": "ui.widgets",
    "Lab": "ui.notebook",
    "Session": "runs.session",
    "algorithm_names": "config.algorithms",
    "classify_crash": "runs.crashes",
    "diagnose": "analysis.diagnosis",
    "difference": "analysis.run_difference",
    "first_break": "runs.first_break",
    "guarded": "hosted.trainers",
    "preset": "config.catalog",
    "preset_names": "config.catalog",
    "scenario": "config.catalog",
    "scenario_names": "config.catalog",
    "train": "training.trainer",
}
__all__ = [*_HOMES]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'grpo_lab' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"grpo_lab.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
