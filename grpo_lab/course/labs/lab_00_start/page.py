"""Lab 0: the panel, its curves, and how exercises work."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from grpo_lab.config.catalog import preset
from grpo_lab.config.schema import Config
from grpo_lab.course import judges, trials
from grpo_lab.course.compare import shown
from grpo_lab.course.exercises import Case, Exercise, Finding, Function, LabPage, Question, Values
from grpo_lab.course.relations import changed, scaled
from grpo_lab.errors import ConfigError
from grpo_lab.runs.recordings import find
from grpo_lab.runs.session import Session

RECORDING = "lecture-bad-batch"


def reading(values: Mapping[str, Any], seed: int) -> Iterator[Finding]:
    """Three things read off a recorded run."""
    records = Session.open(find(RECORDING)).records
    spike = records.loc[records["grad_norm"].idxmax()]
    step, norm = values["spike_step"], values["spike_norm"]
    right = step == int(spike["step"])
    why = "Move the time slider until the gradient norm jumps; steps are counted from 0."
    yield Finding(right, "spike_step", shown(step), "the step of the largest gradient norm", "" if right else why)
    right = _close(norm, float(spike["grad_norm"]))
    why = "The axis is logarithmic. The numbers themselves are in the tab Runs, under Table."
    yield Finding(right, "spike_norm", shown(norm), "that norm, within 10 %", "" if right else why)
    right = values["reward_noticed"] is False
    why = "Compare the reward of that step with those before and after: is it outside of what they do anyway?"
    yield Finding(right, "reward_noticed", shown(values["reward_noticed"]), "True or False", "" if right else why)


def _close(number: Any, right: float) -> bool:
    fine = isinstance(number, int | float) and not isinstance(number, bool)
    return fine and math.isclose(number, right, rel_tol=0.1)


def steps_out_of_range(norms: Sequence[float], limit: float) -> list[int]:
    """The right answer: a NaN is not below any limit."""
    return [step for step, norm in enumerate(norms) if not norm <= limit]


def range_cases(seed: int) -> list[Case]:
    """Norms of a run: healthy, with a spike, with infinity, with NaN."""
    draw = random.Random(seed)
    count = draw.randint(6, 12) if seed else 6

    def norms() -> list[float]:
        return [round(draw.uniform(0.5, 4.0), 2) for _ in range(count)]

    spiked, overflowed, broken = norms(), norms(), norms()
    spiked[draw.randrange(count)] = 812.4
    overflowed[draw.randrange(count)] = math.inf
    lost = draw.randint(1, count) if seed else 2
    broken[-lost:] = [math.nan] * lost
    nan = "A comparison with NaN is False, whichever way it is asked. Ask for what is fine, and take what is left."
    given = (
        ("a healthy run", norms(), 10.0, "Nothing is above the limit: the list is empty."),
        ("one spike", spiked, 10.0, "Count steps from 0."),
        ("one norm is infinite", overflowed, 10.0, "inf is above every limit."),
        ("the last norms are NaN", broken, 10.0, nan),
        ("a lower limit", spiked, 0.4, "Every norm is above 0.4."),
    )
    return [
        Case(what, {"norms": values, "limit": limit}, steps_out_of_range(values, limit), why)
        for what, values, limit, why in given
    ]


def longer(case: Case, draw: random.Random) -> Case:
    """The run went on before: healthy steps come first, and every other one is counted later."""
    before = [case.inputs["limit"] * draw.uniform(0.1, 0.9) for _ in range(draw.randint(1, 4))]
    expected = [step + len(before) for step in case.expected]
    return changed(case, f"{len(before)} healthy steps before", expected, norms=[*before, *case.inputs["norms"]])


def learning_rate(values: Mapping[str, Any], seed: int) -> Iterator[Finding]:
    """Whether a short lesson at this rate teaches something."""
    rate = values["learning_rate"]
    if isinstance(rate, bool) or not isinstance(rate, int | float):
        raise ConfigError(f"learning_rate = {rate!r}: write a number, such as 1e-3")
    config: Config = preset("plain").with_(f"optimizer.learning_rate={rate}")
    yield next(iter(trials.learns(config, seed, f"12 steps at {rate:g}")))


EXERCISES = (
    Exercise(
        name="reading",
        title="Read a run",
        kind="configuration",
        minutes=4,
        difficulty=1,
        points=2,
        hints=(
            "Move the slider below the plot, and see where the curves jump.",
            "In numbers: the tab *Runs*, *Table*, or `panel.session.records[['step', 'grad_norm', 'reward']]`.",
            "It is the step in which the strip below the plot changes colour; the norm there is above a thousand.",
        ),
        check=Values(("spike_step", "spike_norm", "reward_noticed"), reading),
    ),
    Exercise(
        name="guess",
        title="What will happen?",
        kind="prediction",
        minutes=1,
        difficulty=1,
        points=1,
        hints=(
            "There is no wrong answer here: it is kept as it is, and compared with what you see.",
            "The scenario is called TRAIN-001; its report speaks of a gradient norm of 113,818,385.",
            "Any of a, b, c, d, in quotes.",
        ),
        check=judges.prediction("abcd"),
    ),
    Exercise(
        name="out_of_range",
        title="A first function",
        kind="code",
        minutes=4,
        difficulty=1,
        points=2,
        hints=(
            "`enumerate(norms)` gives each step with its norm.",
            "`norm > limit` is False for NaN. What is `norm <= limit`? Try both in a cell of your own.",
            "Take the steps for which `norm <= limit` does not hold: `if not norm <= limit`.",
        ),
        check=Function("steps_out_of_range", range_cases, relations=(scaled("norms", "limit"), longer)),
    ),
    Exercise(
        name="learning_rate",
        title="One value",
        kind="configuration",
        minutes=4,
        difficulty=1,
        points=2,
        hints=(
            "Too low and nothing moves, too high and the reward falls: the panel shows both within seconds.",
            "Move the slider by factors of ten first.",
            "Between 1e-4 and 5e-4.",
        ),
        check=Values(("learning_rate",), learning_rate),
    ),
)
QUESTIONS = (
    Question(
        "The gradient norm that is shown is the norm…",
        (
            (
                "…after clipping.",
                "Then it could never be above max_norm; here and in TRL and verl it is the one before.",
            ),
            ("…before clipping.", "So it can be far above max_norm, and that is the news."),
            ("…of the weights.", "It is the norm of all gradients together."),
        ),
        1,
    ),
    Question(
        "In the strip below the plot, one cell is",
        (
            (
                "one link of the chain in one step: healthy, a warning, or broken.",
                "Rows are links, from sampling to the weights, columns are steps; the first broken one is marked.",
            ),
            ("one completion.", "Completions are in the list of samples."),
            ("one guard.", "Guards have switches, and say in words when they act."),
        ),
        0,
    ),
    Question(
        "Reset",
        (
            ("undoes the last step.", "It begins anew, with healthy weights."),
            (
                "empties the plot and puts back the settings that the panel began with.",
                "The runs so far stay on disk, in `runs/`.",
            ),
            ("deletes all runs.", "Nothing is deleted: every run keeps its folder."),
        ),
        1,
    ),
)
LAB = LabPage(
    name="00_start",
    title="Start here",
    minutes=20,
    difficulty=1,
    summary="You can start, read, stop and compare runs in the panel, and know how exercises work.",
    exercises={exercise.name: exercise for exercise in EXERCISES},
    questions=QUESTIONS,
)
