"""Tries the known answers of a lab: a wrong one must earn nothing and be told its reason, a right one must earn all."""

from pathlib import Path

from grpo_lab.config import user_code
from grpo_lab.course import pages
from grpo_lab.course.evaluate import check
from grpo_lab.course.known_answers import FILE, RIGHT, KnownAnswer
from grpo_lab.errors import NotYet

SEEDS = (0, 1)
"""The inputs that learners see, and others."""


def fault(answer: KnownAnswer, folder: Path) -> str:
    """What is wrong with a row of answers.toml in the folder of its lab, in a sentence; empty for a good one."""
    exercise = pages.page(folder).exercises[answer.exercise]
    try:
        module = user_code.execute(folder / FILE, NotYet, source=answer.source)
    except NotYet as error:
        return "" if answer.kind != RIGHT else f"it is right, and does not run: {error}"
    wrong = [found for seed in SEEDS for found in check(exercise, module, seed) if not found.right]
    if answer.kind == RIGHT:
        return f"it is right, and is told: {wrong[0].what}: {wrong[0].got}: {wrong[0].why}" if wrong else ""
    if not wrong:
        return "it is wrong, and earns all points"
    told = [found.why for found in wrong]
    if answer.reason and not any(why.startswith(answer.reason) for why in told):
        return f"it is told {told[0]!r}, and not its reason; does an answer above it give the same values?"
    return ""
