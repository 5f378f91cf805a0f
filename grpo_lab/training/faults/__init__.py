"""Faults: each harms a value at one stage of the step, the counterpart of the guard that cures it."""

from grpo_lab.training.faults.injected import DropoutOn, NanGradient, ScaleLoss, ShiftKLDelta, ShiftLogRatio
from grpo_lab.training.faults.rollout import (
    CorruptSample,
    FilterLogits,
    IgnoreTemperature,
    NanReward,
    StaleBatch,
    UnscoredAsZero,
)
from grpo_lab.training.interventions import Intervention

FAULTS: dict[str, type[Intervention]] = {
    fault.name: fault
    for fault in (
        DropoutOn,
        ShiftLogRatio,
        ShiftKLDelta,
        ScaleLoss,
        NanGradient,
        IgnoreTemperature,
        FilterLogits,
        CorruptSample,
        StaleBatch,
        NanReward,
        UnscoredAsZero,
    )
}
