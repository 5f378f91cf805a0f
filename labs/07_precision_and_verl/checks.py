"""The checks of lab 7: limits of number formats, loss scaling, a log-ratio without NaN, and remedies."""

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from grpo_lab import seeds
from grpo_lab.config.catalog import scenario
from grpo_lab.config.schema import Config, Switches
from grpo_lab.course import judges, pages
from grpo_lab.course.compare import Span, other_kind, shown
from grpo_lab.course.exercises import Case, Finding, Function, Values, cases_by
from grpo_lab.course.probes import as_floats, ratio_in_a_batch
from grpo_lab.course.relations import changed, padded, permuted, repeated, scaled, shifted
from grpo_lab.course.trials import HERE, guards_of
from grpo_lab.errors import Sentence
from grpo_lab.events import Stepped
from grpo_lab.training.trainer import train

TEXTS = pages.case_texts(__file__)


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seeds.derive(seed, 0, "07_precision_and_verl"))


# The largest log-ratio -----------------------------------------------------------------------------------------------


def _largest_log_ratio(dtype: str) -> Span:
    """From the largest x of the format to the x whose exponential lies half a spacing above the largest number.

    Everything below rounds to a finite number, so that a search among all x ends at the second, and one among the
    numbers of the format at the first: 88.5 and 88.72 in bf16. The logarithm of the largest number lies between them.
    """
    of = torch.finfo(getattr(torch, dtype))
    limit = math.log(of.max)
    spacing = of.eps * 2 ** math.floor(math.log2(limit))
    return Span(math.floor(limit / spacing) * spacing, limit + math.log((2 - of.eps / 2) / (2 - of.eps)))


def _largest_cases(seed: int) -> Sequence[Case]:
    why = "e^x overflows where it exceeds the largest number of the dtype, which torch.finfo gives. Solve for x."
    names = ["float16", "float32", "bfloat16", "float64"]
    if seed:  # so that an answer cannot count on the number of each
        names += random.Random(seed).choices(names, k=8)
    return cases_by(_largest_log_ratio, [(Sentence("dtype '{}'", name), {"dtype": name}, why) for name in names])


# Loss scaling --------------------------------------------------------------------------------------------------------


def _true_scales(overflowed: str, scale: float, interval: int) -> list[float]:
    """The scale of torch's own GradScaler after each of these updates; `x` marks an overflow."""
    weight = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=interval)
    scales = []
    for mark in overflowed:
        scaler.scale(weight.sum()).backward()
        weight.grad = torch.full((1,), math.inf if mark == "x" else scaler.get_scale())
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return scales


def _scales_cases(seed: int) -> Sequence[Case]:
    generator = _generator(seed)
    drawn = [_marks(generator) for _ in range(4 if seed else 1)]
    rows = [
        ("x", 65536.0, 3, "An update with inf gradients is skipped, and the scale is halved for the next one."),
        ("..", 1024.0, 3, "Two good updates are too few: the scale grows after three in a row."),
        ("......", 1024.0, 3, "After each three good updates in a row the scale doubles, and the count begins again."),
        ("..x..", 1024.0, 3, "An overflow begins the count again: good updates must be consecutive."),
        ("...x...", 8.0, 3, "Up by two, down by two, up by two."),
        ("xxxx", 65536.0, 2, "Each overflow halves it again."),
        *((marks, 4096.0, 2 + number, "All rules together, at random.") for number, marks in enumerate(drawn)),
    ]
    what = "updates '{}' (x = overflowed), scale {:g}, interval {}"
    given = [({"overflowed": marks, "scale": scale, "interval": count}, why) for marks, scale, count, why in rows]
    return cases_by(_true_scales, [(Sentence(what, *inputs.values()), inputs, why) for inputs, why in given])


def _marks(generator: torch.Generator) -> str:
    return "".join("x" if mark == 0 else "." for mark in torch.randint(4, (14,), generator=generator).tolist())


def _one_overflow_before(case: Case, draw: random.Random) -> Case:
    """Begin at twice the scale with an overflow, after which the case begins as before."""
    inputs = {"overflowed": f"x{case.inputs['overflowed']}", "scale": 2 * case.inputs["scale"]}
    return changed(case, "an overflow before, at twice the scale", [case.inputs["scale"], *case.expected], **inputs)


# A log-ratio without NaN ---------------------------------------------------------------------------------------------


_LOOKS = {"value": ("healthy", "both", "now", "old", "padding"), "gradient": ("both", "old", "padding")}
"""The keys of `_damaged` for which the value of the log-ratio is compared, and its gradient through exp."""


def _damaged(seed: int) -> dict[str, dict[str, Tensor]]:
    """Log-probabilities (B, T) and masks (B, T), healthy and damaged, by the keys in _LOOKS."""
    generator = _generator(seed)
    old = -2 * torch.rand(2, 4, generator=generator)
    now = old + 0.2 * torch.randn(2, 4, generator=generator)
    everything, padded = torch.ones(2, 4, dtype=torch.bool), torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]]).bool()
    filtered = torch.zeros(2, 4, dtype=torch.bool)
    filtered[0, int(torch.randint(3, (1,), generator=generator))] = True
    no_now, no_old = now.masked_fill(filtered, -torch.inf), old.masked_fill(filtered, -torch.inf)
    return {
        "healthy": {"logprobs": now, "old_logprobs": old, "completion_mask": everything},
        "both": {"logprobs": no_now, "old_logprobs": no_old, "completion_mask": everything},
        "now": {"logprobs": no_now, "old_logprobs": old, "completion_mask": everything},
        "old": {"logprobs": now, "old_logprobs": no_old, "completion_mask": everything},
        "padding": {"logprobs": now.masked_fill(~padded, 300.0), "old_logprobs": old, "completion_mask": padded},
    }


def _masked_cases(seed: int) -> Sequence[Case]:
    damaged = _damaged(seed)
    rows = [(which, look, *TEXTS[f"{look}_{which}"]) for look, names in _LOOKS.items() for which in names]
    given = [(what, {**damaged[which], "look": look}, why) for which, look, what, why in rows]
    return cases_by(pages.solved(__file__, "masked").log_ratio, given, ratio_in_a_batch)


# The remedy for !!!!!!!! ---------------------------------------------------------------------------------------------

STEPS, LEAST = 12, 10
"""Steps of a run that judges guards, and the least number of them with an update."""


def _filtered(guards: Switches, seed: int) -> Config:
    """verl-nan-logprob with eight tokens kept instead of twenty, so that nearly every step has a filtered token."""
    draw = seeds.derive(seed, 0, "remedy") % 2**31
    settings = ("faults.filter_logits.keep=8", f"run.num_steps={STEPS}", f"run.seed={draw}")
    return scenario("verl-nan-logprob").config().with_(*settings, *HERE).with_guards(guards)


def _outcome(config: Config) -> tuple[bool, int, bool]:
    """Whether every weight stays finite, the updates up to then, and whether the loss of each is a number."""
    updates, readable = 0, True
    for event in train(config):
        if isinstance(event, Stepped):
            updates += event.updates
            readable &= not event.updates or math.isfinite(event.metrics["loss"])
            if event.metrics.get("weights/nonfinite", 0.0) > 0:
                return False, updates, readable
    return True, updates, readable


def _judge_guards(values: Mapping[str, Any], seed: int) -> Iterator[Finding]:
    guards = guards_of(values["guards"])
    finite, updates, readable = _outcome(_filtered(guards, seed))
    why = "A NaN still reached the weights. At which link does it appear, and which guard looks there?"
    yield Finding(finite, "every weight is finite", _word(finite), "yes", why)
    if not finite:
        return
    lost = STEPS - updates
    why = Sentence("The run survives, but makes no update in {} of {} steps.", lost, STEPS)
    what, expected = Sentence("updates made in {} steps", STEPS), Sentence("at least {}", LEAST)
    yield Finding(updates >= LEAST, what, str(updates), expected, why)
    why = "clamp passes a NaN on without a gradient: the run survives, but its logged loss is NaN."
    yield Finding(readable, "the logged loss is a number", _word(readable), "yes", why)


def _word(yes: bool) -> Sentence:
    return Sentence("yes" if yes else "no")


# The remedies for a spike --------------------------------------------------------------------------------------------

REMEDIES = {letter: TEXTS[letter][0] for letter in "abcdefgh"}
"""Remedies for bad-batch; all of them are cures or decoys of that scenario."""


def _judge_cures(values: Mapping[str, Any], seed: int) -> Iterator[Finding]:
    given = values["cures"]
    letters = [judges.letter(each) for each in given] if isinstance(given, tuple | list | str) else [None]
    known = all(isinstance(each, str) and each in REMEDIES for each in letters)
    if not known:
        kind = other_kind(given, "a tuple", "a list", "a text")
        why = 'Give letters from a to h in a tuple, as in ("a", "b"); one letter needs a comma behind it.'
        why = Sentence("{} {}", kind, Sentence(why)) if kind else why
        yield Finding(False, "cures", shown(given), Sentence("letters of {}", ", ".join(REMEDIES)), why)
        return
    stops = {override for (override, *others) in scenario("bad-batch").cures if not others}
    for letter, override in REMEDIES.items():
        said, true = letter in letters, override in stops
        got = Sentence("keeps it out" if said else "does not")
        yield Finding(said == true, Sentence("{}: {}", letter, override), got, "as measured", TEXTS[letter][1])


_FIELDS = ("logprobs", "old_logprobs", "completion_mask")
CHECKS = {
    "largest": Function("largest_log_ratio", _largest_cases),  # a name: nothing to permute, pad or scale
    "scaler": Function("scales", _scales_cases, as_floats, (scaled("scale", power=1), _one_overflow_before)),
    "masked": Function(
        "log_ratio",
        _masked_cases,
        ratio_in_a_batch,
        (
            permuted(*_FIELDS),
            permuted(*_FIELDS, dim=1),
            repeated(*_FIELDS),
            padded(mask="completion_mask", logprobs=math.nan, old_logprobs=-1.0),
            padded(mask="completion_mask", logprobs=-1.0, old_logprobs=-300.0),
            shifted("logprobs", "old_logprobs"),
        ),
    ),
    "remedy": Values(("guards",), _judge_guards),
    "cures": Values(("cures",), _judge_cures),
}
