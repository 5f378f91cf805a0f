"""The checks of lab 8: eight anonymous runs, records of runs that are trained for each seed, the repairs of a broken
trainer, and the learner's own configuration.

The expected value of `first_break` is that of `grpo_lab.runs.first_break`: the first step, and in it the first note,
with an element that is not finite, except for a ratio whose loss is finite and for infinite logits, which are filtered
tokens.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from grpo_lab import seeds
from grpo_lab.algorithm import kl, losses
from grpo_lab.config.catalog import preset, scenario
from grpo_lab.config.schema import Config
from grpo_lab.course import mysteries, pages, trials
from grpo_lab.course.compare import other_kind, shown
from grpo_lab.course.exercises import Case, Finding, Function, Naming, Values, cases_by
from grpo_lab.course.probes import gradients_left, updates_in_turn, value_and_gradient
from grpo_lab.course.relations import changed, padded, permuted, reordered, scaled, shifted
from grpo_lab.errors import Sentence
from grpo_lab.events import Event, Stepped
from grpo_lab.runs import first_break

TEXTS = pages.case_texts(__file__)

# Anonymous runs -----------------------------------------------------------------------------------------------------

NAMES = tuple(sorted((*mysteries.CAUSES, *mysteries.DECOYS)))
RUNS = tuple(map(mysteries.name, mysteries.key()))


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
    strange = shown(sorted(set(map(str, strangers))))
    why = Sentence("Not among the names: {}. They are: {}.", strange, ", ".join(NAMES))
    return Finding(not strangers, what, Sentence("{} of 8 filled in", 8 - len(strangers)), expected, why)


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


# The first break -----------------------------------------------------------------------------------------------------

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


_FIRST = TEXTS["first"][1]
_ENOUGH, _NEITHER = "One element of 834,560 is enough. {}", "Neither inf nor NaN is finite. {}"
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
    Recipe("clip-spreads-nan", Sentence(_ENOUGH, Sentence(_FIRST)), harmed_at="faults.nan_gradient.at_step"),
    Recipe("nan-reward", _FIRST, harmed_at="faults.nan_reward.at_step"),
    Recipe("kl-overflow", Sentence(_NEITHER, Sentence(_FIRST)), harmed_at="faults.shift_kl_delta.at_step"),
    Recipe(*TEXTS["guarded"], ("guards.skip_nonfinite=on", _EIGHT), _SHIFT),
)
"""A draw has two of these, one of the quiet runs, and always the absorbed and the filtered one."""


@functools.lru_cache(maxsize=32)
def first_break_cases(seed: int) -> Sequence[Case]:
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
    what = Sentence("{} with {}", recipe.name, ", ".join(guards)) if guards else recipe.name
    return Case(Sentence("{}, {} steps", what, len(steps)), {"steps": steps}, expected(events), recipe.why)


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
    later = [*steps[:step], lost, *steps[step + 1 :]]
    return changed(case, what, (step, "ratio"), steps=later)._replace(why=why)


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


def record(events: Iterable[Event]) -> list[list[Note]]:
    """A run's chain as plain data: the notes of each step, in the order in which they were made."""
    steps = [event for event in events if isinstance(event, Stepped)]
    return [[(str(n.link), n.update, 1 - n.nonfinite / n.numel, n.magnitude) for n in s.links] for s in steps]


def expected(events: Iterable[Event]) -> Any:
    """(step, link) of the first break in the chain, or None; the message of a crash is not used."""
    found = first_break.first_break(event for event in events if isinstance(event, Stepped))
    return (found.step, str(found.link)) if found else None


# Repairs -------------------------------------------------------------------------------------------------------------


def _batch(generator: torch.Generator) -> dict[str, Tensor]:
    """Three completions of four tokens: a policy and a reference about 0.3 nats from the one that sampled."""
    old = -torch.rand(3, 4, generator=generator) * 3 - 0.1
    advantages, mask = torch.randn(3, generator=generator), torch.ones(3, 4)
    logprobs, reference = (old + torch.randn(3, 4, generator=generator) * 0.3 for _ in range(2))
    mask[0, -1] = mask[1, -2:] = 0.0
    parts = {"logprobs": logprobs, "old_logprobs": old, "ref_logprobs": reference}
    return {**parts, "advantages": advantages, "mask": mask}


def objective(logprobs: Tensor, old_logprobs: Tensor, ref_logprobs: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """The repaired objective, a number: epsilon 0.2, beta 0.05, the mean over trained tokens.

    Log-probabilities and mask are (B, T), advantages (B,).
    """
    inside = mask.bool()
    log_ratio = (logprobs - old_logprobs).masked_fill(~inside, 0.0).clamp(-5, 5)
    delta = (ref_logprobs - logprobs).masked_fill(~inside, 0.0).clamp(-10, 10)
    per_token = losses.clipped_surrogate(log_ratio, advantages, 0.2) + 0.05 * kl.k3(delta)
    return losses.aggregate(per_token, inside)


def objective_cases(seed: int) -> Sequence[Case]:
    """A usual batch, a distant reference, padding with -inf and NaN, a token 100 nats away, and clamped tokens."""
    generator = torch.Generator().manual_seed(seed)
    usual, far, padded, extreme, beyond = (_batch(generator) for _ in range(5))
    far["ref_logprobs"] = far["ref_logprobs"] - 1.5
    padded["logprobs"][1, -1], padded["old_logprobs"][0, -1] = -torch.inf, torch.nan
    padded["ref_logprobs"][1, -2] = torch.nan
    extreme["logprobs"][2, 0], extreme["old_logprobs"][2, 0] = -0.1, -100.0
    extreme["ref_logprobs"][2, 1] = 60.0 + extreme["logprobs"][2, 1]
    extreme["advantages"][2] = 1.0
    beyond["advantages"][0], beyond["advantages"][2] = -1.0, 1.0
    beyond["old_logprobs"][0, 0] = beyond["logprobs"][0, 0] - 5.5
    beyond["old_logprobs"][2, 0] = beyond["logprobs"][2, 0] + 5.5
    beyond["ref_logprobs"][2, 1] = beyond["logprobs"][2, 1] + 10.5
    beyond["ref_logprobs"][2, 2] = beyond["logprobs"][2, 2] - 10.5
    batches = {"usual": usual, "far": far, "padded": padded, "extreme": extreme, "beyond": beyond}
    rows = [(TEXTS[key][0], batch, TEXTS[key][1]) for key, batch in batches.items()]
    return cases_by(objective, rows, value_and_gradient)


def _batch_twice(case: Case, draw: random.Random) -> Case:
    """Repeat every completion: the mean stays, and each completion's share of it halves."""
    inputs = {name: torch.cat([value] * 2) for name, value in case.inputs.items()}
    expected = {**case.expected, "gradient": torch.cat([case.expected["gradient"] / 2] * 2)}
    return changed(case, "every completion twice", expected, **inputs)


def gradient_cases(seed: int) -> Sequence[Case]:
    """One, two and three micro-batches of gradients (2, 2) and (3,) for two parameters."""
    generator = torch.Generator().manual_seed(seed)
    cases = list[Case]()
    for count, what in ((1, "one micro-batch"), (2, "two micro-batches"), (3, "three micro-batches")):
        given = [[torch.randn(2, 2, generator=generator), torch.randn(3, generator=generator)] for _ in range(count)]
        expected = {
            "left in .grad": [torch.stack(parts).sum(dim=0) for parts in zip(*given, strict=True)],
            "given": [gradient for gradients in given for gradient in gradients],
        }
        why = "Expected in .grad is the sum of all micro-batches; the given gradients stay as they were."
        cases.append(Case(what, {"micro_batches": given}, expected, why))
    return cases


def _reversed(case: Case, draw: random.Random) -> Case:
    """Reverse the micro-batches, which must not change the sum."""
    order = case.inputs["micro_batches"][::-1]
    given = [gradient for gradients in order for gradient in gradients]
    return changed(case, "the last one first", {**case.expected, "given": given}, micro_batches=order)


def update_cases(seed: int) -> Sequence[Case]:
    """Two usual batches, large gradients, and a batch that is NaN after one that is not."""
    generator = torch.Generator().manual_seed(seed)

    def batch(size: float = 0.3) -> list[Tensor]:
        return [torch.randn(2, 3, generator=generator) * size for _ in range(3)]

    weight, broken = torch.randn(3, generator=generator), batch()
    broken[1] = broken[1] * torch.nan
    rows = [
        ([batch(), batch()], *TEXTS["two_usual"]),
        ([batch(30.0), batch(0.3)], *TEXTS["large"]),
        ([batch(), broken], *TEXTS["then_broken"]),
    ]
    given = [(what, {"weight": weight, "batches": both}, why) for both, what, why in rows]
    return cases_by(pages.solved(__file__, "update").update, given, updates_in_turn)


def _micro_batches_moved(case: Case, draw: random.Random) -> Case:
    """Reorder the micro-batches, which must not change the update."""
    batches = [[batch[place] for place in reordered(len(batch), draw)] for batch in case.inputs["batches"]]
    return changed(case, "micro-batches in another order", case.expected, batches=batches)


def _split(case: Case, draw: random.Random) -> Case:
    """Split every micro-batch in two: each has half of the rows and twice the loss, so that the mean stays."""
    batches = [[2 * half for x in batch for half in x.split(1)] for batch in case.inputs["batches"]]
    return changed(case, "each micro-batch in two", case.expected, batches=batches)


def _weights_moved(case: Case, draw: random.Random) -> Case:
    """Reorder the weights, and the columns that they are multiplied by."""
    order = reordered(len(case.inputs["weight"]), draw)
    batches = [[x[:, order] for x in batch] for batch in case.inputs["batches"]]
    expected = {**case.expected, "weight": case.expected["weight"][order]}
    return changed(case, "weights in another order", expected, weight=case.inputs["weight"][order], batches=batches)


# The learner's configuration -----------------------------------------------------------------------------------------

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
    """Whether the reported configuration with the answer's changes learns when healthy, and survives each harm."""
    guards = trials.guards_of(values["guards"])
    overrides = trials.overrides_of(values["overrides"], SECTIONS)
    config = trials.affordable(preset("original").with_(*overrides).with_guards(guards))
    yield from trials.learns(config, seed)
    yield denominator(config, seed)
    yield trials.leaves_gradient(config, seed)
    for what, harm in HARMS.items():
        harmed = config.with_("data.num_prompts=4", "run.num_steps=6", *harm)
        why = "{}: which link broke first? Run it with lab.run, print first_break(), and find a guard before that link."
        yield trials.survives(harmed, what, seed, Sentence(why, Sentence(what)))  # so that no row counts another harm


def denominator(config: Config, seed: int) -> Finding:
    """Whether every ratio is 1 before the first update of a batch, where the policy is still the one that sampled."""
    session = trials.run(config.with_("data.num_prompts=4", "run.num_steps=6", "loss.num_iterations=1"), seed)
    steps = [event.metrics for event in session.events if isinstance(event, Stepped)]
    ratios = [metrics.get("ratio/max", math.nan) for metrics in steps]
    fine = all(ratio < 1.05 for ratio in ratios)
    why = "Which policy is in the denominator? Before a batch's first update no weight has moved since sampling."
    what = "with one update a batch every ratio is 1"
    return Finding(fine, what, Sentence("largest ratio {:.4g}", max(ratios)), "1, but for rounding", why)


_FIELDS = ("logprobs", "old_logprobs", "ref_logprobs")
CHECKS = {
    "by_hand": Naming(("answer",), by_hand, RUNS, NAMES),
    "first_break": Function(
        "first_break", first_break_cases, relations=(begun_earlier, ended_at_the_break, ten_times_as_large)
    ),
    "verdicts": Naming(("answer",), verdicts, RUNS, NAMES, earlier="by_hand"),
    "objective": Function(
        "objective",
        objective_cases,
        value_and_gradient,
        (
            permuted(*_FIELDS, "advantages", "mask"),
            permuted(*_FIELDS, "mask", dim=1),
            padded(mask="mask", logprobs=math.nan, old_logprobs=-math.inf, ref_logprobs=-1.0),
            shifted(*_FIELDS),
            _batch_twice,
        ),
    ),
    "gradients": Function(
        "set_gradients", gradient_cases, gradients_left, (_reversed, scaled("micro_batches", power=1))
    ),
    "update": Function("update", update_cases, updates_in_turn, (_micro_batches_moved, _split, _weights_moved)),
    "stable": Values(("overrides", "guards"), stable),
}
