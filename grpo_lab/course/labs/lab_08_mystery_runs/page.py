"""Lab 8: eight anonymous runs, a broken trainer, and the learner's own configuration."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from grpo_lab.config.catalog import preset
from grpo_lab.config.schema import Config
from grpo_lab.course import judges, mysteries, pages, trials
from grpo_lab.course.compare import other_kind, shown
from grpo_lab.course.exercises import Finding, Function, Values
from grpo_lab.course.labs.lab_08_mystery_runs import cases as repairs
from grpo_lab.course.labs.lab_08_mystery_runs import first_break_cases as chains
from grpo_lab.events import Stepped

NAMES = tuple(sorted((*mysteries.CAUSES, *mysteries.DECOYS)))


def by_hand(values: Mapping[str, Any], seed: int) -> Iterator[Finding]:
    """Whether there are eight names: the learner has to write them down before asking the tool, rightly or not."""
    yield _well_formed(values["answer"])


def verdicts(values: Mapping[str, Any], seed: int) -> Iterator[Finding]:
    """One finding a run, by the key in force."""
    answer, key = values["answer"], mysteries.key_in_force()
    form = _well_formed(answer)
    if not form.right or key is None:
        yield form if key else form._replace(what="the form of your list; your instructor has the key of these runs")
        return
    for number, cause in key.items():
        why = _WHY.get((cause, answer[number])) or _LOOK[cause]
        yield Finding(answer[number] == cause, mysteries.name(number), answer[number], "the cause", why)


def _well_formed(answer: Any) -> Finding:
    what, expected = "your list", "eight lines, 1 to 8, each with one of the names"
    if not isinstance(answer, dict) or sorted(answer, key=str) != list(range(1, 9)):
        why = other_kind(answer, "a dictionary") or "Each of the runs 1 to 8 gets one line."
        return Finding(False, what, shown(answer), expected, why)
    strangers = [name for name in answer.values() if name not in NAMES]
    why = f"Not among the names: {shown(sorted(set(map(str, strangers))))}. They are: {', '.join(NAMES)}."
    return Finding(not strangers, what, f"{8 - len(strangers)} of 8 filled in", expected, why)


_LOOK = {
    "healthy": "Name the curve that leaves its usual range, and the step. Is there one?",
    "explosion": "Follow norm, KL and largest ratio from step to step: do they move together, and do they grow?",
    "optimizer-overflow": "What was the norm of the last finished step, and are the weights after it finite?",
    "nan-logprob": "Find the link that broke first: open the run and print its first_break().",
    "bad-batch": "How many steps does it last, and does the reward change meanwhile?",
    "kl-hidden": "Read the completions of the first and the last step. Can the reported KL be true?",
    "sampler-mismatch": "One metric compares the sampler's log-probability of a token with the trainer's. Find it.",
    "lost-unscale": "Look at the very first step: the norm, and then KL and ratio. Which of them grows after it?",
}
_WHY = {
    ("lost-unscale", "explosion"): "In an explosion KL or ratio are as far out of range as the norm. Are they here?",
    ("kl-hidden", "healthy"): "The KL is low, and so is the reward. One of the two is misleading.",
    ("optimizer-overflow", "nan-logprob"): "Which link broke first? Everything before it was finite.",
    ("bad-batch", "explosion"): "An explosion does not come back on its own.",
}


HARMS = {
    "a reward function returns NaN once": ("faults.nan_reward.at_step=1",),
    "a token 100 nats below the reference": ("faults.shift_kl_delta.nats=100", "faults.shift_kl_delta.at_step=1"),
    "a token 100 nats above the old policy": ("faults.shift_log_ratio.nats=100", "faults.shift_log_ratio.at_step=1"),
    "one NaN among the gradients": ("faults.nan_gradient.at_step=1",),
    "the weights are fp16": ("model.precision=fp16_pure",),
}
"""Faults that are injected into runs of the learner's configuration, one at a time."""
SECTIONS = ("loss", "optimizer", "sampling")


def stable(values: Mapping[str, Any], seed: int) -> Iterator[Finding]:
    """Whether the documents' configuration with the answer's changes learns when healthy, and survives each harm."""
    guards = trials.guards_of(values["guards"])
    overrides = trials.overrides_of(values["overrides"], SECTIONS)
    config = trials.affordable(preset("original").with_(*overrides).with_guards(guards))
    yield from trials.learns(config, seed)
    yield denominator(config, seed)
    yield trials.leaves_gradient(config, seed)
    for what, harm in HARMS.items():
        harmed = config.with_("data.num_prompts=4", "run.num_steps=6", *harm)
        why = "Which link broke first? Run it with lab.run, print its first_break(), and find a guard before that link."
        yield trials.survives(harmed, what, seed, why)


def denominator(config: Config, seed: int) -> Finding:
    """Whether every ratio is 1 before the first update of a batch, where the policy is still the one that sampled."""
    session = trials.run(config.with_("data.num_prompts=4", "run.num_steps=6", "loss.num_iterations=1"), seed)
    steps = [event.metrics for event in session.events if isinstance(event, Stepped)]
    ratios = [metrics.get("ratio/max", math.nan) for metrics in steps]
    fine = all(ratio < 1.05 for ratio in ratios)
    why = "Which policy is in the denominator? Before a batch's first update no weight has moved since sampling."
    what = "with one update a batch every ratio is 1"
    return Finding(fine, what, f"largest ratio {max(ratios):.4g}", "1, but for rounding", why)


LAB = pages.page(
    "08_mystery_runs",
    {
        "by_hand": Values(("answer",), by_hand),
        "first_break": Function("first_break", chains.cases, relations=chains.RELATIONS),
        "verdicts": Values(("answer",), verdicts),
        "objective": repairs.OBJECTIVE,
        "gradients": repairs.SET_GRADIENTS,
        "update": repairs.UPDATE,
        "stable": Values(("overrides", "guards"), stable),
        "defence": judges.text(40),
    },
)
