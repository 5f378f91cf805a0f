"""Tries the known answers of a lab: a wrong one must earn nothing and be told its reason, a right one must earn all."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

from grpo_lab.config import user_code
from grpo_lab.course import evaluate, pages
from grpo_lab.course.exercises import Exercise, Finding, Function
from grpo_lab.course.known_answers import FILE, RIGHT, KnownAnswer
from grpo_lab.errors import NotYet

SEEDS = range(5)
"""The inputs that learners see, and others: a near miss must lose with each of them."""


def fault(answer: KnownAnswer, folder: Path, seeds: Sequence[int] = ()) -> str:
    """What is wrong with a row of answers.toml in the folder of its lab, in a sentence; empty for a good one."""
    try:
        module = user_code.execute(folder / FILE, NotYet, source=answer.source)
    except NotYet as error:
        return f"it does not run: {error}" if answer.reason or answer.kind == RIGHT else ""
    exercise, told = pages.page(folder).exercises[answer.exercise], list[str]()
    for seed in seeds or (SEEDS if isinstance(exercise.check, Function) else SEEDS[:1]):
        try:
            wrong = [found for found in _findings(exercise, module, seed, answer.kind == RIGHT) if not found.right]
        except Exception as error:  # of checks.py, which its author mends
            return f"its check raised {user_code.said(error, (folder / pages.CHECKS).resolve())}; mend {pages.CHECKS}"
        if wrong and answer.kind == RIGHT:
            return f"it is right, and is told: {wrong[0].what}: {wrong[0].got}: {wrong[0].why}"
        if not wrong and answer.kind != RIGHT:
            return f"it is wrong, and earns all points with seed {seed}"
        told += [found.why for found in wrong]
    if answer.reason and not any(why.startswith(answer.reason) for why in told):
        return f"it is told {told[0]!r}, and not its reason; does an answer above it give the same values?"
    return ""


def _findings(exercise: Exercise, module: ModuleType, seed: int, transformed: bool) -> Iterator[Finding]:
    """The findings about an answer; with those of the grader's second round, in which a right answer is right too."""
    yield from evaluate.check(exercise, module, seed)
    if transformed and isinstance(exercise.check, Function):
        cases = evaluate.asked(exercise, seed, transformed)
        given = evaluate.run(exercise, module, [case.inputs for case in cases])
        yield from evaluate.judged(exercise, given, cases, seed)
