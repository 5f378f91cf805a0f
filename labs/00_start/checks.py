"""Lab 0: the panel, its curves, how exercises work, and a run that a guard saves."""

import math
import random
from collections.abc import Iterator, Mapping
from typing import Any

from grpo_lab.config.catalog import preset
from grpo_lab.course import judges, pages, trials
from grpo_lab.course.compare import is_number, other_kind, shown
from grpo_lab.course.exercises import Case, Finding, Function, Values, cases_by
from grpo_lab.course.probes import as_floats
from grpo_lab.course.relations import changed, scaled
from grpo_lab.errors import ConfigError, Sentence
from grpo_lab.runs.recordings import find
from grpo_lab.runs.session import Session

RECORDING = "lecture-bad-batch"


def reading(values: Mapping[str, Any], seed: int) -> Iterator[Finding]:
    """Three facts about a recorded run."""
    records = Session.open(find(RECORDING)).records
    spike = records.loc[records["grad_norm"].idxmax()]
    step, norm, noticed = (values[name] for name in ("spike_step", "spike_norm", "reward_noticed"))
    why = "Move the slider “steps shown” until the gradient norm jumps; steps are counted from 0."
    right = step == int(spike["step"])
    yield _read(right, "spike_step", step, "the step of the largest gradient norm", why)
    why = "The axis is logarithmic. The numbers themselves are in the tab Runs, under Table."
    right = is_number(norm) and abs(norm / float(spike["grad_norm"]) - 1) <= 0.1
    yield _read(right, "spike_norm", norm, "that norm, within 10 %", why)
    why = "Compare the reward of that step with the steps before and after: is it outside of its usual range?"
    yield _read(noticed is False, "reward_noticed", noticed, "True or False", why)


def _read(right: bool, what: str, got: Any, expected: str, why: str) -> Finding:
    """The finding about one fact; a text in place of a value has its own reason."""
    kind = other_kind(got, "True or False" if expected.startswith("True") else "a number")
    kind = Sentence("{} Write the value without quotes.", kind) if kind and isinstance(got, str) else kind
    return Finding(right, what, shown(got), expected, kind or why)


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
    nan = "NaN is no healthy norm; the list holds its steps."
    low = round(draw.uniform(0.01, 0.1), 3)
    small = "The list holds every step whose norm is above the limit that was handed in, however small it is."
    at_it = norms()
    at_it[draw.randrange(count)] = 10.0
    edge = "A norm that equals the limit is not above it: the list is empty."
    rows = (
        ("a healthy run", norms(), 10.0, "Nothing is above the limit: the list is empty."),
        ("one spike", spiked, 10.0, "One norm is above the limit; the list holds its step, counted from 0."),
        ("a norm that equals the limit", at_it, 10.0, edge),
        ("one norm is infinite", overflowed, 10.0, "inf is above every limit; the list holds its step."),
        ("the last norms are NaN", broken, 10.0, nan),
        ("a lower limit", spiked, 0.4, "Every norm is above 0.4, so every step is listed."),
        ("small norms", [2 * low, low / 2, 3 * low], low, small),
    )
    reference = pages.solved(__file__, "out_of_range").steps_out_of_range
    return cases_by(reference, [(what, {"norms": given, "limit": at}, why) for what, given, at, why in rows])


def longer(case: Case, draw: random.Random) -> Case:
    """Put healthy steps before the run: the index of every other step grows by their number."""
    before = [case.inputs["limit"] * draw.uniform(0.1, 0.9) for _ in range(draw.randint(1, 4))]
    expected = [step + len(before) for step in case.expected]
    return changed(
        case, Sentence("{} healthy steps before", len(before)), expected, norms=[*before, *case.inputs["norms"]]
    )


def learning_rate(values: Mapping[str, Any], seed: int) -> Iterator[Finding]:
    """Whether the reward rises in a short run at this rate. Raises ConfigError for anything but a number."""
    rate = values["learning_rate"]
    if not is_number(rate):
        raise ConfigError("{} Write it as in learning_rate = 1e-3", other_kind(rate, "a number"))
    config = preset("plain").with_(f"optimizer.learning_rate={rate}")
    # The lesson is the one that the learner saw: a rate near the limit can teach enough in one lesson alone.
    yield next(trials.learns(config, 0, Sentence("12 steps at {:g}", rate)))


CHECKS = {
    "reading": Values(("spike_step", "spike_norm", "reward_noticed"), reading),
    "out_of_range": Function("steps_out_of_range", range_cases, as_floats, (scaled("norms", "limit"), longer)),
    "learning_rate": Values(("learning_rate",), learning_rate),
    "saved": judges.saved_run("sanitize_rewards", step=20),
}
