"""Verification of a trainer by its behaviour: temperature, KL, accumulation, terminators, masks (`doctor --verify`).

A trainer is an adapter, this project's own or a user's (docs/verify.md). The checks watch it from outside: its
optimizer, its gradients and its weights.
"""

from collections.abc import Sequence

from grpo_lab.analysis.verification.checks import Line, check
from grpo_lab.analysis.verification.targets import adapter_of
from grpo_lab.models import loading


def verify(target: str = "stable", settings: Sequence[str] = ()) -> list[Line]:
    """Check a preset, a scenario, a run's folder, or a user's `file.py:Adapter`; `settings` are overrides.

    Raises ConfigError for a target or setting that does not exist.
    """
    with loading.quiet():
        return check(adapter_of(target, settings))


__all__ = ["Line", "verify"]
