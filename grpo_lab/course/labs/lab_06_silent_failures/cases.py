"""The checks of lab 6: accumulation, the completion mask, the sampler mismatch, and the cause behind a record."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from grpo_lab import seeds
from grpo_lab.course.exercises import Case, Function, cases_by
from grpo_lab.course.probes import updates_made
from grpo_lab.course.relations import changed, padded, permuted, repeated, shifted


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed + 600)


# One update from many micro-batches ----------------------------------------------------------------------------------


def _whole_batch(weight: Tensor, x: Tensor, mask: Tensor, sizes: Tensor) -> dict[str, Any]:
    """The gradient (D,) of the mean over every trained token, computed without autograd: 2 (x w) x.

    `weight` is (D,), `x` (B, T, D), `mask` (B, T); the sizes of the micro-batches must not matter.
    """
    gradient = 2 * ((x @ weight) * mask)[..., None] * x
    return {"updates": 1, "gradient of the last one": gradient.sum(dim=(0, 1)) / mask.sum()}


def _update_cases(seed: int) -> Sequence[Case]:
    generator = _generator(seed)
    rows = [
        (
            [4, 4, 4],
            [[2, 2]] * 6,
            "three micro-batches alike",
            "One update from the sum over all micro-batches; each of them counts a third.",
        ),
        (
            [6, 4, 2],
            [[4, 3], [4, 4], [3, 4], [1, 2], [1, 1], [1, 1]],
            "three micro-batches of 22, 5 and 2 tokens",
            "A token must count the same in every micro-batch: divide by the tokens of all, not by the number of "
            "micro-batches. Otherwise a token in the last one counts eleven times as much.",
        ),
        ([12], [[4, 1]] * 6, "one micro-batch", "With one part there is nothing to add up; the result must be right."),
    ]
    if seed:
        sizes = torch.randint(1, 5, (4,), generator=generator).tolist()
        lengths = torch.randint(1, 5, (sum(sizes),), generator=generator).tolist()
        rows.append((sizes, [lengths], f"micro-batches of {sizes} completions", "Every trained token counts the same."))
    given = []
    for sizes, lengths, what, why in rows:
        inputs = {
            "weight": torch.randn(3, generator=generator),
            "x": torch.randn(sum(sizes), 4, 3, generator=generator),
            "mask": torch.arange(4) < torch.tensor(lengths).flatten()[:, None],
            "sizes": torch.tensor(sizes),
        }
        given.append((what, inputs, why))
    return cases_by(_whole_batch, given)


def _other_parts(case: Case, draw: random.Random) -> Case:
    """Divide the batch into other micro-batches, which must not change the gradient."""
    count = len(case.inputs["x"])
    ends = sorted(draw.sample(range(1, count), k=draw.randint(1, min(4, count - 1))))
    sizes = [end - start for start, end in zip([0, *ends], [*ends, count], strict=True)]
    return changed(case, f"in parts of {sizes}", case.expected, sizes=torch.tensor(sizes))


def _twice_the_batch(case: Case, draw: random.Random) -> Case:
    """Repeat every micro-batch, which must not change the mean."""
    inputs = {name: torch.cat([case.inputs[name]] * 2) for name in ("x", "mask", "sizes")}
    return changed(case, "the whole batch twice", case.expected, **inputs)


# The mask ------------------------------------------------------------------------------------------------------------

END, OTHER_PAD = 9, 0


def _by_position(tokens: Tensor, end: int) -> Tensor:
    rows = [row.index(end) + 1 if end in row else len(row) for row in tokens.tolist()]
    return torch.arange(tokens.shape[1]) < torch.tensor(rows)[:, None]


def _mask_cases(seed: int) -> Sequence[Case]:
    drawn = torch.randint(1, 8, (3, 5), generator=_generator(seed))
    same, other, cut = drawn.clone(), drawn.clone(), drawn.clone()
    same[0, 2:], same[1, 4:] = END, END
    other[0, 2], other[0, 3:], other[1, 3], other[1, 4:] = END, OTHER_PAD, END, OTHER_PAD
    cut[0, 1], cut[0, 2:] = END, torch.tensor([3, END, 4])
    rows = [
        (
            same,
            "the pad token is the end token, 9",
            "The first 9 was sampled, and must be trained: from it the model learns to stop. The others are padding.",
        ),
        (other, "the pad token is another one, 0", "The same rule: up to the first end token, and including it."),
        (
            drawn,
            "no completion ends: all were cut off",
            "Without an end token every token was sampled, and all of them are trained.",
        ),
        (
            cut,
            "other tokens after an end token",
            "Every token after the first end token is padding, also another end token.",
        ),
    ]
    if seed:
        rows += [(_drawn(seed, number), "ends drawn at random", "The first end token decides.") for number in range(4)]
    return cases_by(_by_position, [(what, {"tokens": tokens, "end": END}, why) for tokens, what, why in rows])


def _drawn(seed: int, number: int) -> Tensor:
    """Completions (B, T), about two in three of which end, at any place, with any tokens after the end."""
    generator = torch.Generator().manual_seed(seeds.derive(seed, number, "completion_mask"))
    rows, width = torch.randint(3, 8, (2,), generator=generator).tolist()
    tokens = torch.randint(1, 8, (rows, width), generator=generator)
    ended = torch.rand(rows, width, generator=generator) < 1 / width
    return tokens.masked_fill(ended, END)


def _other_ids(case: Case, draw: random.Random) -> Case:
    """Use other token ids, also for the end token."""
    more = draw.choice((1, 50, 247))
    inputs = {"tokens": case.inputs["tokens"] + more, "end": case.inputs["end"] + more}
    return changed(case, f"the end token is {inputs['end']}", case.expected, **inputs)


def _wider(case: Case, draw: random.Random) -> Case:
    """Append a column: sampled in rows that have not ended yet, padding in all others."""
    tokens = case.inputs["tokens"]
    ended = (tokens == case.inputs["end"]).any(dim=1, keepdim=True)
    column = torch.full_like(tokens[:, :1], 5)
    expected = torch.cat([case.expected, ~ended], dim=1)
    return changed(case, "one more column", expected, tokens=torch.cat([tokens, column], dim=1))


# The sampler mismatch ------------------------------------------------------------------------------------------------


def _mismatch_cases(seed: int) -> Sequence[Case]:
    generator = _generator(seed)
    old = -3 * torch.rand(3, 4, generator=generator)
    mask = torch.arange(4) < torch.tensor([4, 2, 1])[:, None]
    shift = 0.3 + torch.rand(3, 4, generator=generator)
    signs = torch.tensor([1.0, -1.0, 1.0, -1.0])
    rows = [
        (old.clone(), "sampler and trainer agree", "Nothing differs: 0 and 0."),
        (
            old - shift,
            "every token less likely under the sampler",
            "Differences of log-probabilities, in nats: no exp.",
        ),
        (
            old + shift * signs,
            "some tokens less likely, some likelier",
            "Differences in both directions must not cancel: take their magnitude before the mean.",
        ),
        (
            (old + shift).masked_fill(~mask, -50.0),
            "nonsense where the mask is 0",
            "Padding was never sampled. It must not count, neither in the mean and its divisor nor in the largest "
            "difference.",
        ),
    ]
    given = [
        (what, {"old_logprobs": old, "sampling_logprobs": sampled, "mask": mask}, why) for sampled, what, why in rows
    ]
    return cases_by(_mismatch, given)


def _mismatch(old_logprobs: Tensor, sampling_logprobs: Tensor, mask: Tensor) -> tuple[float, float]:
    """The mean and the largest difference in nats; all three tensors are (B, T)."""
    gaps = (old_logprobs - sampling_logprobs)[mask].abs()
    return float(gaps.mean()), float(gaps.max())


def _swapped(case: Case, draw: random.Random) -> Case:
    """Swap sampler and trainer, which must not change a distance."""
    old, sampled = case.inputs["old_logprobs"], case.inputs["sampling_logprobs"]
    return changed(case, "sampler and trainer swapped", case.expected, old_logprobs=sampled, sampling_logprobs=old)


# Which failure -------------------------------------------------------------------------------------------------------

USUAL = {
    "frac_reward_zero_std": (0.05, 0.5),
    "kl": (0.05, 0.3),
    "grad_norm": (1.8, 3.5),
    "ratio/max": (1.0, 1.0),
    "completions/mean_length": (3.2, 3.8),
    "sampling/sampling_logp_difference/mean": (0.0, 1e-3),
    "sampling/sampling_logp_difference/max": (0.0, 1e-3),
    "weights/max_move": (2e-4, 4e-4),
}
"""Ranges of the means over the first eight steps of a healthy run of the tiny model: measured with seeds 0 to 4, a
little wider."""
MISMATCH = "sampling/sampling_logp_difference"
CHANGED: dict[str, tuple[Mapping[str, tuple[float, float]], str]] = {
    "healthy": ({}, "Nothing stands out in this one."),
    "zeroed": (
        {"kl": (0.0, 1e-4), "grad_norm": (0.0, 0.0), "weights/max_move": (0.0, 0.0)},
        "The gradient is 0 and no weight has moved, although rewards differed within the groups.",
    ),
    "step_inside": (
        {"grad_norm": (0.0, 0.0), "ratio/max": (1.25, 1.8), "weights/max_move": (9e-4, 2e-3), "kl": (0.1, 0.4)},
        "The logged gradient is 0, and yet weights move and the ratio is not 1: the updates were made elsewhere.",
    ),
    "no_spread": (
        {"frac_reward_zero_std": (1.0, 1.0), "grad_norm": (0.01, 0.05), "kl": (0.005, 0.03)},
        "How many groups had rewards that differ? Check that before you look at the gradient.",
    ),
    "temperature": (
        {f"{MISMATCH}/mean": (0.35, 0.65), f"{MISMATCH}/max": (3.5, 5.0), "grad_norm": (3.8, 7.0), "kl": (0.3, 1.0)},
        "Every token was sampled, but from another distribution than the one that is trained.",
    ),
    "padding": (
        {f"{MISMATCH}/mean": (1.2, 3.2), f"{MISMATCH}/max": (11.0, 16.0), "completions/mean_length": (4.0, 4.7)},
        "Some of the tokens that are trained were not sampled at all: how far from the sampler is the worst of them?",
    ),
    "dropout": (
        {"ratio/max": (3.0, 9.0), "kl": (0.25, 1.3), "grad_norm": (2.0, 5.5)},
        "One update a batch, and the ratio is not 1: the two passes do not run the same network.",
    ),
}
"""Cause -> the metrics that change, measured in the same way, and the reason given to a learner who misses it."""


def _record(cause: str, generator: torch.Generator) -> dict[str, float]:
    ranges = {**USUAL, **CHANGED[cause][0]}
    draws = torch.rand(len(ranges), generator=generator).tolist()
    return {name: low + (high - low) * draw for (name, (low, high)), draw in zip(ranges.items(), draws, strict=True)}


def _which_cases(seed: int) -> Sequence[Case]:
    generator = _generator(seed)
    order = torch.randperm(2 * len(CHANGED), generator=generator).tolist()
    causes = [list(CHANGED)[place % len(CHANGED)] for place in order]
    return [
        Case(f"run {number}", {"record": _record(cause, generator)}, cause, CHANGED[cause][1])
        for number, cause in enumerate(causes, start=1)
    ]


def _longer_record(case: Case, draw: random.Random) -> Case:
    """Add other metrics to the record, and reorder it."""
    record = {**case.inputs["record"], "reward": draw.random(), "entropy": draw.random(), "loss": 0.0}
    names = draw.sample(sorted(record), len(record))
    return changed(case, "with more metrics", case.expected, record={name: record[name] for name in names})


ONE_UPDATE = Function(
    "one_update",
    _update_cases,
    updates_made,
    (_other_parts, _twice_the_batch, permuted("x", "mask", result=False), permuted("x", "mask", dim=1, result=False)),
)
MASK = Function(
    "completion_mask",
    _mask_cases,
    relations=(permuted("tokens"), repeated("tokens"), _other_ids, _wider),
)
_FIELDS = ("old_logprobs", "sampling_logprobs")
MISMATCHES = Function(
    "mismatch",
    _mismatch_cases,
    relations=(
        permuted(*_FIELDS, "mask"),
        permuted(*_FIELDS, "mask", dim=1),
        repeated(*_FIELDS, "mask"),
        padded(mask="mask", old_logprobs=-90.0, sampling_logprobs=-1.0),
        shifted(*_FIELDS),
        _swapped,
    ),
)
WHICH = Function("which", _which_cases, relations=(_longer_record,))
