"""`python -m pytest -p benchmarks.trl_suite trl/tests/test_grpo_trainer.py`: TRL's own tests of a guarded GRPOTrainer.

The tests come with TRL's repository, at the tag of the version that is installed, and load tiny models from the hub.
The guards are those in the variable GUARDS, separated by commas, by default the preset `stable`.
"""

import importlib
import os
from typing import Any

import grpo_lab as gl

TRL: Any = importlib.import_module("trl")
NAMES = os.environ.get("GUARDS", "stable").split(",")


class GRPOTrainer(gl.guarded(TRL.GRPOTrainer)):
    """TRL's trainer with guards, as its tests make it."""

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, guards=NAMES, **more)


TRL.GRPOTrainer = GRPOTrainer
