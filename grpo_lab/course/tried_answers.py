"""Tries the known answers of a lab: a wrong one must earn nothing and be told its reason, a right one must earn all."""

from pathlib import Path

from grpo_lab.config import user_code
from grpo_lab.course import pages
from grpo_lab.course.evaluate import check
from grpo_lab.course.exercises import Function
from grpo_lab.course.known_answers import FILE, RIGHT, KnownAnswer
from grpo_lab.errors import NotYet

SEEDS = range(5)
"""The inputs that learners see, and others: a near miss must lose with each of them."""


def fault(answer: KnownAnswer, folder: Path) -> str:
    """What is wrong with a row of answers.toml in the folder of its lab, in a sentence; empty for a good one."""
    try:
        module = user_code.execute(folder / FILE, NotYet, source=answer.source)
    except NotYet as error:
        return f"it does not run: {error}" if answer.reason or answer.kind == RIGHT else ""
    exercise, told = pages.page(folder).exercises[answer.exercise], list[str]()
    for seed in SEEDS if isinstance(exercise.check, Function) else SEEDS[:1]:
        try:
            wrong = [found for found in check(exercise, module, seed) if not found.right]
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
