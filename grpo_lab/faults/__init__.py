"""Faults: each harms a value at one stage of the step, the counterpart of the guard that cures it."""

from __future__ import annotations

from grpo_lab.faults.injected import DropoutOn, NanGradient, ShiftLogRatio
from grpo_lab.interventions import Intervention

FAULTS: dict[str, type[Intervention]] = {fault.name: fault for fault in (DropoutOn, ShiftLogRatio, NanGradient)}
