"""Lab 4: the effect, cost and blind spots of each guard, and the smallest set that is enough."""

from collections.abc import Iterator, Mapping
from typing import Any

from grpo_lab.config.catalog import preset
from grpo_lab.course import judges, pages, trials
from grpo_lab.course.compare import other_kind, shown
from grpo_lab.course.exercises import Finding, Values
from grpo_lab.course.labs.lab_04_guards import cases
from grpo_lab.errors import ConfigError

ALONE = ("zero-times-infinity", "fp16-adam-epsilon", "nan-reward")
"""Failures with several recommended guards; for each of them one guard is enough."""


def alone(values: Mapping[str, Any], seed: int) -> Iterator[Finding]:
    """One run a scenario, under the one guard named for it. Raises ConfigError for another form of answer."""
    answer = values["answer"]
    if not isinstance(answer, dict) or sorted(answer, key=str) != sorted(ALONE):
        kind = other_kind(answer, "a dictionary") or f"answer = {shown(answer)}:"
        raise ConfigError(f"{kind} Write one line a scenario: {', '.join(ALONE)}")
    for name in ALONE:
        why = "Find the first link that breaks, then a guard that sits before it or refuses the update that follows."
        yield trials.stops(name, trials.guards_of((answer[name],)), seed, why, "run.num_steps=6")


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
    yield Finding(len(guards) <= MOST, "a small set", f"{len(guards)} guards", f"at most {MOST}", why)
    for name, (seeds, steps, why) in SURVIVE.items():
        draws = range(seed * seeds, (seed + 1) * seeds)
        found = [trials.stops(name, guards, draw, why, f"run.num_steps={steps}") for draw in draws]
        yield next((finding for finding in found if not finding.right), found[-1])
    healthy = preset("plain").with_("optimizer.learning_rate=5e-4").with_guards(guards)
    yield from trials.learns(healthy, seed)
    yield trials.leaves_gradient(healthy, seed)


LAB = pages.page(
    "04_guards",
    {
        "reported": judges.prediction("abcd", "c"),
        "alone": Values(("answer",), alone),
        "rescue": judges.prediction("abcd", "c", runs=2),
        "saved": judges.saved_run("clamp_log_ratio", step=20),
        "guard": cases.SKIP_JUMPS,
        "skip": cases.UPDATE_OR_SKIP,
        "hides": judges.choice(
            "c",
            {
                "a": "Every weight of the unguarded run is finite too: that was never the failure here.",
                "b": "Look at the reward at the end: does this model learn?",
                "d": "The reasons are in the list of guards that acted, step by step.",
            },
        ),
        "minimal_set": Values(("guards",), minimal_set),
    },
)
