"""A small lab for the tests: one exercise of each kind."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from grpo_lab.config.catalog import preset
from grpo_lab.course.exercises import Case, Finding, Function, Values


def doubled(seed: int) -> list[Case]:
    """Twice a vector that the seed draws."""
    x = torch.rand(3, generator=torch.Generator().manual_seed(seed))
    return [Case("three numbers", {"x": x}, 2 * x, "Every number twice.")]


def guarded(values: Mapping[str, Any], seed: int) -> Iterator[Finding]:
    """Guards that exist."""
    names = values["guards"]
    preset("smoke").with_(*(f"guards.{name}=on" for name in names))
    yield Finding("warm_up" in names, "the guards", str(names), "a slow start", "The first steps are the largest.")


CHECKS = {"double": Function("double", doubled), "guards": Values(("guards",), guarded)}
