"""The check of `first_break` in lab 8: records of short runs that are trained for each seed.

The expected value is that of `grpo_lab.runs.first_break`: the first step, and in it the first note, with an element
that is not finite, except for a ratio whose loss is finite and for infinite logits, which are filtered tokens.
"""

import functools
import math
import random
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from grpo_lab import seeds
from grpo_lab.config.catalog import preset, scenario
from grpo_lab.course import pages, trials
from grpo_lab.course.exercises import Case
from grpo_lab.course.relations import changed
from grpo_lab.events import Event, Stepped
from grpo_lab.runs import first_break

Note = tuple[str, int, float, float]
"""Link, update, the share of its elements that are finite, the largest magnitude."""
HEALTHY = "plain"
"""The preset without faults."""


class Recipe(NamedTuple):
    """A kind of run, and the reason given for a wrong answer about it."""

    name: str
    """A scenario's, or HEALTHY."""
    why: str
    overrides: tuple[str, ...] = ()
    harmed_at: str = ""
    """The setting with the step of the fault, which the seed chooses."""


TEXTS = pages.case_texts("08_mystery_runs")
_FIRST = TEXTS["first"][1]
# Eight prompts where a token of a completion with A > 0 is harmed: with fewer there may be no such completion.
_EIGHT, _SHIFT = "data.num_prompts=8", "faults.shift_log_ratio.at_step"
_ABSORBED = Recipe(*TEXTS["absorbed"], ("loss.num_iterations=2", _EIGHT), _SHIFT)
# Nine tokens are kept, so that most of these runs break, some at once and some late.
_FILTERED = Recipe(*TEXTS["filtered"], ("run.num_steps=6", "faults.filter_logits.keep=9"))
# At 70 times the rate of the scenario, where the norms explode in the first step.
_LOUD = ("run.num_steps=2", "optimizer.learning_rate=2e-2")
_QUIET = (Recipe(*TEXTS["healthy"], ("run.num_steps=3",)), Recipe(*TEXTS["large_norms"], _LOUD))
_BROKEN = (
    Recipe("cuda-001", _FIRST, ("run.num_steps=3",)),
    Recipe("fp16-adam-epsilon", _FIRST, ("run.num_steps=3",)),
    Recipe("clip-spreads-nan", f"One element of 834,560 is enough. {_FIRST}", harmed_at="faults.nan_gradient.at_step"),
    Recipe("nan-reward", _FIRST, harmed_at="faults.nan_reward.at_step"),
    Recipe("kl-overflow", f"Neither inf nor NaN is finite. {_FIRST}", harmed_at="faults.shift_kl_delta.at_step"),
    Recipe(*TEXTS["guarded"], ("guards.skip_nonfinite=on", _EIGHT), _SHIFT),
)
"""A draw has two of these, one of the quiet runs, and always the absorbed and the filtered one."""


@functools.lru_cache(maxsize=4)
def cases(seed: int) -> Sequence[Case]:
    """Five runs trained with fresh seeds, and a variant of one of them: two to three seconds of one core."""
    draw = random.Random(seeds.derive(seed, 0, "first break"))
    recipes = [_FILTERED, draw.choice(_QUIET), *draw.sample(_BROKEN, 2)]
    absorbed = _case(_ABSORBED, draw)
    return (absorbed, not_absorbed(absorbed), *(_case(recipe, draw) for recipe in recipes))


def _case(recipe: Recipe, draw: random.Random) -> Case:
    config = preset(HEALTHY) if recipe.name == HEALTHY else scenario(recipe.name).config()
    overrides = ("data.num_prompts=4", *recipe.overrides)
    if recipe.harmed_at:
        step = draw.choice((1, 2))
        overrides = (*overrides, f"{recipe.harmed_at}={step}", f"run.num_steps={step + 2}")
    events = trials.run(config.with_(*overrides), draw.getrandbits(32)).events
    steps = record(events)
    guards = [each for each in recipe.overrides if each.startswith("guards.")]
    what = f"{recipe.name} with {', '.join(guards)}" if guards else recipe.name
    return Case(f"{what}, {len(steps)} steps", {"steps": steps}, expected(events), recipe.why)


def not_absorbed(case: Case) -> Case:
    """The same run as with a negative advantage: where a ratio is infinite, its loss is infinite too."""
    steps = case.inputs["steps"]
    broken = [
        (step, note[1]) for step, notes in enumerate(steps) for note in notes if note[0] == "ratio" and note[2] < 1
    ]
    if not broken:  # no completion had A > 0, so none was harmed
        return case
    step, update = broken[0]
    lost = [("loss", update, 0.0, math.inf) if note[:2] == ("loss", update) else note for note in steps[step]]
    what, why = TEXTS["not_absorbed"]
    return Case(f"{case.what}, {what}", {"steps": [*steps[:step], lost, *steps[step + 1 :]]}, (step, "ratio"), why)


def begun_earlier(case: Case, draw: random.Random) -> Case:
    """Repeat the first step, unless the break is in it."""
    steps, found = case.inputs["steps"], case.expected
    if found and found[0] == 0:
        return case
    later = (found[0] + 1, found[1]) if found else None
    return changed(case, "its first step twice", later, steps=[steps[0], *steps])


def ended_at_the_break(case: Case, draw: random.Random) -> Case:
    """Drop the steps after the break."""
    if not case.expected or case.expected[0] + 1 == len(case.inputs["steps"]):
        return case
    return changed(case, "up to its break", case.expected, steps=case.inputs["steps"][: case.expected[0] + 1])


def ten_times_as_large(case: Case, draw: random.Random) -> Case:
    """Multiply every magnitude by 10, which must not matter."""
    steps = [[(*note[:3], 10 * note[3]) for note in notes] for notes in case.inputs["steps"]]
    return changed(case, "every magnitude times 10", case.expected, steps=steps)


RELATIONS = (begun_earlier, ended_at_the_break, ten_times_as_large)


def record(events: Iterable[Event]) -> list[list[Note]]:
    """A run's chain as plain data: the notes of each step, in the order in which they were made."""
    steps = [event for event in events if isinstance(event, Stepped)]
    return [[(str(n.link), n.update, 1 - n.nonfinite / n.numel, n.magnitude) for n in s.links] for s in steps]


def expected(events: Iterable[Event]) -> Any:
    """(step, link) of the first break in the chain, or None; the message of a crash is not used."""
    found = first_break.first_break(event for event in events if isinstance(event, Stepped))
    return (found.step, str(found.link)) if found else None
