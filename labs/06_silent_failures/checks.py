"""The checks of lab 6: accumulation, the completion mask, the sampler mismatch, and the cause behind a record."""

import random
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from grpo_lab import seeds
from grpo_lab.course import pages
from grpo_lab.course.exercises import Case, Function, cases_by
from grpo_lab.course.probes import as_floats, updates_made
from grpo_lab.course.relations import changed, padded, permuted, repeated, shifted
from grpo_lab.errors import Sentence

TEXTS = pages.case_texts(__file__)


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
        ([4, 4, 4], [[2, 2]] * 6, *TEXTS["alike"]),
        ([6, 4, 2], [[4, 3], [4, 4], [3, 4], [1, 2], [1, 1], [1, 1]], *TEXTS["unequal"]),
        ([12], [[4, 1]] * 6, *TEXTS["one_part"]),
    ]
    if seed:
        sizes = torch.randint(1, 5, (4,), generator=generator).tolist()
        lengths = torch.randint(1, 5, (sum(sizes),), generator=generator).tolist()
        rows.append((sizes, [lengths], Sentence("micro-batches of {} completions", sizes), TEXTS["unequal"][1]))
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
    return changed(case, Sentence("in parts of {}", sizes), case.expected, sizes=torch.tensor(sizes))


def _twice_the_batch(case: Case, draw: random.Random) -> Case:
    """Repeat every micro-batch, which must not change the mean."""
    inputs = {name: torch.cat([case.inputs[name]] * 2) for name in ("x", "mask", "sizes")}
    return changed(case, "the whole batch twice", case.expected, **inputs)


# The mask ------------------------------------------------------------------------------------------------------------

END, OTHER_PAD = 9, 0


def _mask_cases(seed: int) -> Sequence[Case]:
    drawn = torch.randint(1, 8, (3, 5), generator=_generator(seed))
    same, other, cut = drawn.clone(), drawn.clone(), drawn.clone()
    same[0, 2:], same[1, 4:] = END, END
    other[0, 2], other[0, 3:], other[1, 3], other[1, 4:] = END, OTHER_PAD, END, OTHER_PAD
    cut[0, 1], cut[0, 2:] = END, torch.tensor([3, END, 4])
    rows = [
        (same, *TEXTS["pad_is_end"]),
        (other, *TEXTS["other_pad"]),
        (drawn, *TEXTS["cut_off"]),
        (cut, *TEXTS["after_the_end"]),
    ]
    if seed:
        rows += [(_drawn(seed, number), "ends drawn at random", "The first end token decides.") for number in range(4)]
    given = [(what, {"tokens": tokens, "end": END}, why) for tokens, what, why in rows]
    return cases_by(pages.solved(__file__, "completion_mask").completion_mask, given)


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
    return changed(case, Sentence("the end token is {}", inputs["end"]), case.expected, **inputs)


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
        (old.clone(), *TEXTS["agreeing"]),
        (old - shift, *TEXTS["less_likely"]),
        (old + shift * signs, *TEXTS["both_directions"]),
        ((old + shift).masked_fill(~mask, -50.0), *TEXTS["padding_differs"]),
    ]
    given = [
        (what, {"old_logprobs": old, "sampling_logprobs": sampled, "mask": mask}, why) for sampled, what, why in rows
    ]
    return cases_by(pages.solved(__file__, "mismatch").mismatch, given)


def _swapped(case: Case, draw: random.Random) -> Case:
    """Swap sampler and trainer, which must not change a distance."""
    old, sampled = case.inputs["old_logprobs"], case.inputs["sampling_logprobs"]
    return changed(case, "sampler and trainer swapped", case.expected, old_logprobs=sampled, sampling_logprobs=old)


# Which failure -------------------------------------------------------------------------------------------------------

_MEAN, _MAX = (f"sampling/sampling_logp_difference/{which}" for which in ("mean", "max"))
_MOVE = "weights/max_move"
USUAL = {
    "frac_reward_zero_std": (0.05, 0.5),
    "kl": (0.05, 0.3),
    "grad_norm": (1.8, 3.5),
    "ratio/max": (1.0, 1.0),
    "completions/mean_length": (3.2, 3.8),
    _MEAN: (0.0, 1e-3),
    _MAX: (0.0, 1e-3),
    _MOVE: (2e-4, 4e-4),
}
"""Ranges of the means over the first eight steps of a healthy run of the tiny model: measured with seeds 0 to 4, a
little wider."""
CHANGED: dict[str, dict[str, tuple[float, float]]] = {
    "healthy": {},
    "zeroed": {"kl": (0, 1e-4), "grad_norm": (0, 0), _MOVE: (0, 0)},
    "step_inside": {"grad_norm": (0, 0), "ratio/max": (1.25, 1.8), _MOVE: (9e-4, 2e-3), "kl": (0.1, 0.4)},
    # Without spread, policy and reference stay equal; rounding between passes may move them, and Adam enlarges that.
    "no_spread": {"frac_reward_zero_std": (1, 1), "grad_norm": (0, 0.05), "kl": (0, 0.03), _MOVE: (0, 4e-4)},
    "temperature": {_MEAN: (0.35, 0.65), _MAX: (3.5, 5), "grad_norm": (3.8, 7), "kl": (0.3, 1)},
    "padding": {_MEAN: (1.2, 3.2), _MAX: (11, 16), "completions/mean_length": (4, 4.7)},
    "dropout": {"ratio/max": (3, 9), "kl": (0.25, 1.3), "grad_norm": (2, 5.5)},
}
"""Cause -> the metrics that change, measured in the same way."""


def _record(cause: str, generator: torch.Generator, high: bool) -> dict[str, float]:
    """A record with its metrics near the lower end of their ranges, or near the upper one.

    A limit inside of a range is then wrong with every seed. With draws from the whole range it was right with some.
    """
    ranges = {**USUAL, **CHANGED[cause]}
    draws = torch.rand(len(ranges), generator=generator).mul(0.1).tolist()
    draws = [1 - draw for draw in draws] if high else draws
    return {name: low + (top - low) * draw for (name, (low, top)), draw in zip(ranges.items(), draws, strict=True)}


def _which_cases(seed: int) -> Sequence[Case]:
    generator = _generator(seed)
    order = torch.randperm(2 * len(CHANGED), generator=generator).tolist()
    rows = enumerate(((list(CHANGED)[place % len(CHANGED)], place >= len(CHANGED)) for place in order), start=1)
    return [
        Case(Sentence(TEXTS[cause][0], number), {"record": _record(cause, generator, high)}, cause, TEXTS[cause][1])
        for number, (cause, high) in rows
    ]


def _longer_record(case: Case, draw: random.Random) -> Case:
    """Add other metrics to the record, and reorder it."""
    record = {**case.inputs["record"], "reward": draw.random(), "entropy": draw.random(), "loss": 0.0}
    names = draw.sample(sorted(record), len(record))
    return changed(case, "with more metrics", case.expected, record={name: record[name] for name in names})


_FIELDS = ("old_logprobs", "sampling_logprobs")
CHECKS = {
    "one_update": Function(
        "one_update",
        _update_cases,
        updates_made,
        (
            _other_parts,
            _twice_the_batch,
            permuted("x", "mask", result=False),
            permuted("x", "mask", dim=1, result=False),
        ),
    ),
    "completion_mask": Function(
        "completion_mask", _mask_cases, relations=(permuted("tokens"), repeated("tokens"), _other_ids, _wider)
    ),
    "mismatch": Function(
        "mismatch",
        _mismatch_cases,
        as_floats,
        (
            permuted(*_FIELDS, "mask"),
            permuted(*_FIELDS, "mask", dim=1),
            repeated(*_FIELDS, "mask"),
            padded(mask="mask", old_logprobs=-90.0, sampling_logprobs=-1.0),
            shifted(*_FIELDS),
            _swapped,
        ),
    ),
    "which": Function("which", _which_cases, relations=(_longer_record,)),
}
