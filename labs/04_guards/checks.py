"""The checks of lab 4: a guard for each failure, one without a threshold, an update that skips, the smallest set."""

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from grpo_lab.config.catalog import preset
from grpo_lab.course import judges, pages, trials
from grpo_lab.course.compare import other_kind, shown
from grpo_lab.course.exercises import Case, Finding, Function, Values, cases_by
from grpo_lab.course.probes import norms_in_turn, step_or_not
from grpo_lab.course.relations import changed, permuted, scaled
from grpo_lab.errors import ConfigError, Sentence

LIMIT = 10.0

# A guard without a threshold -----------------------------------------------------------------------------------------


def _guard_cases(seed: int) -> Sequence[Case]:
    """Runs that are healthy, small, huge and level, spiked, and broken."""
    draw = random.Random(seed)

    def level(size: float, count: int = 3) -> list[float]:
        return [round(size * draw.uniform(0.8, 3.0), 4) for _ in range(count)]

    usual = level(1.0)
    first = usual[0]
    spike = usual[0] * draw.uniform(50, 500)
    memory = "The limit is 8 times the largest norm that was accepted so far."
    nan = "NaN is refused, and the limit stays as it was."
    given = [
        ("healthy norms", usual, "A guard is silent on healthy norms: KEEP, and no reason."),
        ("a loss scale of 65536: huge and level", level(65536.0), "Nothing jumps here, so every norm is accepted."),
        ("one spike", [*usual, spike, usual[1]], "Above 8 times the largest accepted: SKIP_STEP, with a reason."),
        ("two spikes in a row", [*usual, spike, spike, usual[0]], memory),
        ("a NaN between healthy norms", [*usual, math.nan, usual[2], spike], nan),
        ("inf first, then healthy norms", [math.inf, *usual, spike], "Nothing was accepted yet: inf is refused too."),
        ("a rise, small norms after it, a spike", [first, 6 * first, first / 4, 4 * first, 50 * first], memory),
    ]
    if seed:
        given += [
            (Sentence("a run of {} norms", len(norms)), norms, memory) for norms in (_a_run(draw) for _ in range(5))
        ]
    rows = [(what, {"norms": norms}, why) for what, norms, why in given]
    return cases_by(pages.solved(__file__, "guard").SkipJumps, rows, norms_in_turn)


def _a_run(draw: random.Random) -> list[float]:
    """Norms of any size, with rises, spikes, NaN and inf at random; none is near the limit."""
    size = 10.0 ** draw.uniform(-4, 5)
    norms, largest = list[float](), 0.0
    for event in draw.choices(("level", "rise", "spike", "nan", "inf"), (6, 1, 2, 1, 1), k=draw.randint(4, 10)):
        if event in ("nan", "inf"):
            norms.append(float(event))
            continue
        if event == "spike" and largest:
            norms.append(largest * draw.uniform(9, 500))
            continue
        norms.append(largest * draw.uniform(5, 7) if event == "rise" and largest else size * draw.uniform(0.8, 3.0))
        largest = max(largest, norms[-1])
    return norms


def _each_twice(case: Case, draw: random.Random) -> Case:
    """Give each norm twice: the second one gets the same verdict."""
    twice = [verdict for verdict in case.expected for _ in range(2)]
    return changed(case, "each twice", twice, norms=[norm for norm in case.inputs["norms"] for _ in range(2)])


# An update that skips ------------------------------------------------------------------------------------------------


def _skip_cases(seed: int) -> Sequence[Case]:
    """A healthy norm, a spike, an overflow and a NaN, after a step that filled AdamW's moments."""
    draw = random.Random(seed)
    why = "This update is skipped: step is not called, and the weights stay."
    nan = "NaN is not at most the limit: this update is skipped."
    given = [
        ("a healthy norm", round(draw.uniform(0.5, 9), 2), "A healthy gradient is stepped."),
        ("a norm that equals the limit", LIMIT, "The limit itself is fine: the gradient is stepped."),
        ("a spike", round(draw.uniform(50, 5000), 1), why),
        ("an overflow", math.inf, why),
        ("a NaN", math.nan, nan),
    ]
    norms = [LIMIT * draw.uniform(0.92, 0.99), LIMIT * draw.uniform(1.01, 1.08)]
    if seed:
        norms += [draw.choice((math.nan, math.inf, *(draw.uniform(0.5, 20) for _ in range(6)))) for _ in range(6)]
    given += [(Sentence("a norm of {:.4g}", norm), norm, "The limit alone decides.") for norm in norms]
    reference = pages.solved(__file__, "skip").update_or_skip
    return cases_by(reference, [(what, _skip_inputs(norm, draw), why) for what, norm, why in given], step_or_not)


def _skip_inputs(norm: float, draw: random.Random) -> dict[str, Any]:
    earlier, gradient = (torch.tensor([draw.uniform(0.2, 1.0) for _ in range(4)]) for _ in range(2))
    gradient = gradient / gradient.norm() * norm
    return {"norm": norm, "limit": LIMIT, "earlier": earlier, "gradient": gradient}


# Guards that exist ----------------------------------------------------------------------------------------------------

ALONE = ("zero-times-infinity", "fp16-adam-epsilon", "nan-reward")
"""Failures with several recommended guards; for each of them one guard is enough."""


def alone(values: Mapping[str, Any], seed: int) -> Iterator[Finding]:
    """One run a scenario, under the one guard named for it. Raises ConfigError for another form of answer."""
    answer = values["answer"]
    if not isinstance(answer, dict) or sorted(answer, key=str) != sorted(ALONE):
        kind = other_kind(answer, "a dictionary") or Sentence("answer = {}:", shown(answer))
        raise ConfigError("{} Write one line a scenario: {}", kind, ", ".join(ALONE))
    why = "In {}, find the first link that breaks, then a guard that sits before it or refuses the update that follows."
    for name in ALONE:  # each has a reason of its own, so that no row counts that of another scenario
        guards = trials.guards_of((answer[name],))
        yield trials.stops(name, guards, seed, Sentence(why, name), "run.num_steps=6")


MOST = 3
"""Guards of a minimal set. Two are enough."""
SURVIVE = {
    "bad-batch": (
        3,
        7,
        "Every number in it is finite. How does the step of the corrupt sample differ from all others?",
    ),
    "fp16-adam-epsilon": (
        1,
        6,
        "Every norm in it is healthy. Which division is by 0, and which guard can change that number?",
    ),
    "verl-nan-logprob": (1, 12, "Print its first_break(): which guard drops the NaN tokens, or refuses the update?"),
}
"""Scenario -> fresh seeds to try, steps, and why. A guard that stops one corrupt sample need not stop the next."""


def minimal_set(values: Mapping[str, Any], seed: int) -> Iterator[Finding]:
    """Whether few guards stop three failures, and a healthy run learns as before."""
    guards = trials.guards_of(values["guards"])
    why = "Is one of them needed by none of the three failures? Every guard costs something and hides something."
    got, expected = Sentence("{} guards", len(guards)), Sentence("at most {}", MOST)
    yield Finding(len(guards) <= MOST, "a small set", got, expected, why)
    for name, (seeds, steps, why) in SURVIVE.items():
        draws = range(seed * seeds, (seed + 1) * seeds)
        found = [trials.stops(name, guards, draw, why, f"run.num_steps={steps}") for draw in draws]
        yield next((finding for finding in found if not finding.right), found[-1])
    healthy = preset("plain").with_("optimizer.learning_rate=5e-4").with_guards(guards)
    yield from trials.learns(healthy, seed)
    yield trials.leaves_gradient(healthy, seed)


CHECKS = {
    "alone": Values(("answer",), alone),
    "saved": judges.saved_run("clamp_log_ratio", step=20),
    "guard": Function("SkipJumps", _guard_cases, norms_in_turn, (scaled("norms"), _each_twice)),
    "skip": Function(
        "update_or_skip",
        _skip_cases,
        step_or_not,
        # AdamW divides by the size of its gradients: the same factor on all of them moves the weights equally far.
        (permuted("earlier", "gradient"), scaled("norm", "limit", "earlier", "gradient")),
    ),
    "minimal_set": Values(("guards",), minimal_set, scoreboard=True),
}
