"""A small lab for the tests: one exercise of each kind."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from grpo_lab.config.catalog import preset
from grpo_lab.course.exercises import Case, Exercise, Finding, Function, LabPage, Question, Values
from grpo_lab.course.judges import choice, prediction, text

HINTS = ("What is twice a number?", "A number plus itself.", "`x + x`, say.")


def doubled(seed: int) -> list[Case]:
    """Twice a vector that the seed draws."""
    x = torch.rand(3, generator=torch.Generator().manual_seed(seed))
    return [Case("three numbers", {"x": x}, 2 * x, "Every number twice.")]


def guarded(values: Mapping[str, Any], seed: int) -> Iterator[Finding]:
    """Guards that exist."""
    names = values["guards"]
    preset("smoke").with_(*(f"guards.{name}=on" for name in names))
    yield Finding("warm_up" in names, "the guards", str(names), "a slow start", "The first steps are the largest.")


LAB = LabPage(
    name="sample",
    title="A sample",
    minutes=20,
    difficulty=2,
    summary="You can double a number & say so.",
    exercises={
        exercise.name: exercise
        for exercise in (
            Exercise("guess", "Guess first", "prediction", 1, 1, 1, HINTS, prediction("abc", "a")),
            Exercise("double", "Double it", "code", 5, 2, 3, HINTS, Function("double", doubled)),
            Exercise("guards", "Guard it", "configuration", 5, 3, 3, HINTS, Values(("guards",), guarded)),
            Exercise("letter", "Which one", "choice", 1, 1, 1, HINTS, choice("b", {"a": "No."})),
            Exercise("words", "In words", "text", 3, 1, 1, HINTS, text(3)),
        )
    },
    questions=(Question("Is 1 < 2?", (("no", "It is."), ("yes", "So it is, & always.")), 1),),
)
