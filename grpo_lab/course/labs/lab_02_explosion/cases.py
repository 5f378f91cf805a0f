"""The checks of lab 2: gradients of the clipped loss, the token with the largest one, and bounded estimates."""

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from grpo_lab import seeds
from grpo_lab.algorithm import kl
from grpo_lab.algorithm.batch import Batch
from grpo_lab.algorithm.losses import clipped_surrogate
from grpo_lab.course.compare import is_number, shown
from grpo_lab.course.exercises import Case, Finding, Function, Values, cases_by
from grpo_lab.course.probes import by_delta, in_a_batch
from grpo_lab.course.relations import (
    changed,
    elementwise,
    padded,
    permuted,
    reordered,
    repeated,
    scaled,
    shifted,
    without_use,
)

REPORTED_NORM = 113_818_385
"""TRAIN-001's gradient norm."""
EPSILON = 0.2


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seeds.derive(seed, 0, "02_explosion"))


# The gradient of one token -------------------------------------------------------------------------------------------


def _surrogate_slope(log_ratio: Tensor, advantages: Tensor) -> Tensor:
    """(B, T) derivative of the clipped surrogate by the log-ratio (B, T), from autograd; advantages are (B,)."""
    at = log_ratio.detach().double().requires_grad_()
    (slope,) = torch.autograd.grad(clipped_surrogate(at, advantages.double(), EPSILON).sum(), at)
    return slope


def _slope_of_a_token(log_ratio: float, advantage: float) -> float:
    return float(_surrogate_slope(torch.tensor([[log_ratio]]), torch.tensor([advantage])))


def _gradient_cases(seed: int) -> Sequence[Case]:
    far, near, below, size = torch.rand(4, generator=_generator(seed), dtype=torch.float64).tolist()
    size = 0.5 + size
    rows = [
        (0.1 * near, size, "inside the clip range, A > 0", "Inside the range the loss is -r A. What is d e^x / dx?"),
        (0.1 * near, -size, "inside the clip range, A < 0", "Inside the range the loss is -r A for either sign of A."),
        (1 + far, size, "far above the range, A > 0", "min picks the clipped branch here, which is constant."),
        (-1 - below, -size, "far below the range, A < 0", "Work out both branches: which is smaller, with A < 0?"),
        (-1 - below, size, "far below the range, A > 0", "Which branch does min pick? Here it is not the clipped one."),
        (
            1 + far,
            -size,
            "above the range, A < 0",
            "With A < 0 both branches are negative, and min picks the one further from 0. Nothing clips it.",
        ),
        (0.16, size, "nearly at the upper end of the range, A > 0", "The range ends at a ratio of 1.2."),
        (0.2, size, "just above the range, A > 0", "The range ends at a ratio of 1.2."),
        (-0.2, -size, "nearly at the lower end of the range, A < 0", "The range begins at a ratio of 0.8."),
        (-0.24, -size, "just below the range, A < 0", "The range begins at a ratio of 0.8."),
        (
            17 + 2 * far,
            -1.0,
            "17 nats and more above the range, A = -1",
            "The same side, further out. The slope is as large as the ratio itself.",
        ),
    ]
    given = [
        (f"{what}: log-ratio {log_ratio:.3g}, A = {a:.3g}", {"log_ratio": log_ratio, "advantage": a}, why)
        for log_ratio, a, what, why in rows
    ]
    return cases_by(_slope_of_a_token, given)


# The log-ratio of the reported norm ----------------------------------------------------------------------------------


def _judge_nats(values: Mapping[str, Any], seed: int) -> Iterator[Finding]:
    nats = values["nats"]
    if not is_number(nats) or not -700 < nats < 700:
        yield Finding(False, "nats", shown(nats), "a number of nats", "A log-ratio is a number, here below 20.")
        return
    slope = math.exp(nats)
    right = abs(slope / REPORTED_NORM - 1) < 0.02
    why = "The slope on the open side is e^nats. Nats are natural: base e, neither 10 nor 2."
    yield Finding(right, f"e^{nats:.4g}", f"{slope:,.0f}", f"{REPORTED_NORM:,}, within 2 %", why)


# The token that caused it --------------------------------------------------------------------------------------------


def _culprit(log_ratio: Tensor, advantages: Tensor, beta: float) -> tuple[int, int, str]:
    """Row, token and term of the largest derivative by a token's log-probability.

    `log_ratio` (B, T) is to the reference, `advantages` is (B,).
    """
    delta = -log_ratio.detach().double().requires_grad_()
    (of_kl,) = torch.autograd.grad(beta * kl.k3(delta).sum(), delta)
    terms = {"ratio": _surrogate_slope(log_ratio, advantages).abs(), "kl": of_kl.abs()}
    term = max(terms, key=lambda name: float(terms[name].max()))
    row, token = divmod(int(terms[term].argmax()), log_ratio.shape[1])
    return row, token, term


def _culprit_cases(seed: int) -> Sequence[Case]:
    generator = _generator(seed)
    usual = 0.3 * torch.randn(6, 5, generator=generator)
    advantages = torch.tensor([1.0, -1.0, 0.5, 0.0, 1.2, -1.2])
    tokens = torch.randint(5, (6,), generator=generator).tolist()
    nats = 12 + 4 * float(torch.rand(1, generator=generator))
    rows: list[tuple[str, dict[int, float], str]] = [
        (
            f"a token of row 1 (A < 0) at +{nats:.1f}",
            {1: nats},
            "This token is far likelier under the policy than under the reference, and A < 0 leaves that side open.",
        ),
        (
            f"a token of row 2 at -{nats:.1f}",
            {2: -nats},
            "The policy has nearly unlearned this token. The ratio is about 0; the KL estimate takes e^(+distance).",
        ),
        (
            f"row 0 (A > 0) at +{nats:.1f}, row 2 at -7",
            {0: nats, 2: -7.0},
            "The furthest token is not always the cause: with A > 0 its surrogate is clipped, and there the KL "
            "estimate is flat. Compare gradients, not distances.",
        ),
        (
            f"row 3 (A = 0) at +{nats:.1f}, row 4 at -6",
            {3: nats, 4: -6.0},
            "Where all rewards of a group are equal the advantage is 0, and a ratio of a million has no gradient.",
        ),
        (
            f"row 5 (A < 0) at +6, row 4 at -{nats:.1f}",
            {5: 6.0, 4: -nats},
            "Both are on an open side. beta scales one of them down; which is still larger?",
        ),
        (
            "row 5 (A < 0) at +9, row 4 at -10",
            {5: 9.0, 4: -10.0},
            "The larger distance loses here, because beta is small. Did you multiply by beta, and by the advantage?",
        ),
    ]
    given = []
    for what, planted, why in rows:
        log_ratio = usual.clone()
        for row, value in planted.items():
            log_ratio[row, tokens[row]] = value
        given.append((f"{what}, beta 0.05", {"log_ratio": log_ratio, "advantages": advantages, "beta": 0.05}, why))
    return cases_by(_culprit, given)


def _moved(case: Case, draw: random.Random) -> Case:
    """Reorder rows and tokens, and the culprit with them."""
    row, token, term = case.expected
    rows, tokens = (reordered(size, draw) for size in case.inputs["log_ratio"].shape)
    return changed(
        case,
        "rows and tokens in another order",
        (rows.index(row), tokens.index(token), term),
        log_ratio=case.inputs["log_ratio"][rows][:, tokens],
        advantages=case.inputs["advantages"][rows],
    )


# The log-ratio that is right -----------------------------------------------------------------------------------------


def _log_ratio(logprobs: Tensor, batch: Batch) -> Tensor:
    assert batch.old_logprobs is not None
    return logprobs - batch.old_logprobs


def _log_ratio_cases(seed: int) -> Sequence[Case]:
    generator = _generator(seed)
    old = -2 * torch.rand(2, 3, generator=generator)
    ref = old - 3 * torch.rand(2, 3, generator=generator)
    batch = {"old_logprobs": old, "ref_logprobs": ref, "sampling_logprobs": old - math.log(0.9)}
    later = old + 0.1 * torch.randn(2, 3, generator=generator)
    rows = [
        (
            "the first update: the policy is still the one that sampled",
            "value",
            old,
            "Before the first update no weight has moved, so every ratio must be 1 and every log-ratio 0, however far "
            "the reference is. With sampling_logprobs it is not 0 either: those are of the distribution after top_p.",
        ),
        (
            "a later update",
            "value",
            later,
            "The policy now, minus the policy that sampled. A token that became likelier has a log-ratio above 0.",
        ),
        (
            "its gradient by the policy's log-probabilities",
            "gradient",
            later,
            "It must be 1 everywhere: the policy learns through the log-ratio. Was something detached?",
        ),
    ]
    given = [(what, {**batch, "logprobs": logprobs, "look": look}, why) for what, look, logprobs, why in rows]
    return cases_by(_log_ratio, given, in_a_batch)


# The KL estimate, bounded before exp ---------------------------------------------------------------------------------


def _bounded(delta: Tensor) -> Tensor:
    return kl.k3(delta.clamp(-10, 10))


def _k3_cases(seed: int) -> Sequence[Case]:
    generator = _generator(seed)
    near = 2 * torch.randn(4, generator=generator)
    far = 12 + 30 * torch.rand(3, generator=generator)
    overflow = 90 + 100 * torch.rand(2, generator=generator)
    rows = [
        ("value", near, "near the reference", "Where |delta| is below 10 it is k3 as before: e^delta - 1 - delta."),
        ("value", far, "far from the reference", "Nothing may be larger than k3 at 10, about 22,015."),
        ("value", -far, "far on the other side", "Clamp on both sides, and use the result in both terms of k3."),
        ("value", overflow, "so far that e^delta is inf", "inf here means that exp came before the clamp."),
        (
            "gradient",
            overflow,
            "the gradient there",
            "NaN: exp overflowed, and backward multiplied the clamp's 0 by inf. A clamp after exp repairs the value "
            "alone.",
        ),
        ("gradient", near, "the gradient near the reference", "Near the reference the gradient is that of k3."),
    ]
    given = [
        (f"{what}: delta = {shown(delta)}", {"delta": delta, "look": look}, why) for look, delta, what, why in rows
    ]
    return cases_by(_bounded, given, by_delta)


GRADIENT = Function("gradient", _gradient_cases, relations=(scaled("advantage", power=1),))
NATS = Values(("nats",), _judge_nats)
CULPRIT = Function(
    "culprit",
    _culprit_cases,
    relations=(
        _moved,
        # A token where policy and reference agree has a ratio of 1 and no KL: its gradient is below any planted one.
        padded(result=False, log_ratio=0.0),
        scaled("advantages", "beta"),
    ),
)
_FIELDS = ("logprobs", "old_logprobs", "ref_logprobs", "sampling_logprobs")
LOG_RATIO = Function(
    "log_ratio",
    _log_ratio_cases,
    in_a_batch,
    (
        permuted(*_FIELDS),
        permuted(*_FIELDS, dim=1),
        repeated(*_FIELDS),
        shifted("logprobs", "old_logprobs"),
        without_use("ref_logprobs", "sampling_logprobs"),
    ),
)
BOUNDED = Function("k3", _k3_cases, by_delta, (elementwise("delta"),))
