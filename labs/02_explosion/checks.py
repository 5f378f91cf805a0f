"""The checks of lab 2: gradients of the clipped loss, the token with the largest one, and bounded estimates."""

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from grpo_lab import seeds
from grpo_lab.algorithm import kl
from grpo_lab.core.loss import clipped_surrogate
from grpo_lab.course import pages
from grpo_lab.course.compare import is_number, other_kind, shown
from grpo_lab.course.exercises import Case, Finding, Function, Values, cases_by
from grpo_lab.course.probes import by_delta, in_a_batch
from grpo_lab.course.relations import changed, elementwise, lines_alike, padded, reordered, scaled, shifted, without_use
from grpo_lab.errors import Sentence

TEXTS = pages.case_texts(__file__)
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


def slope(log_ratio: float, advantage: float) -> float:
    """The derivative of one token's clipped surrogate by its log-ratio."""
    return float(_surrogate_slope(torch.tensor([[log_ratio]]), torch.tensor([advantage])))


def _gradient_cases(seed: int) -> Sequence[Case]:
    far, near, below, size = torch.rand(4, generator=_generator(seed), dtype=torch.float64).tolist()
    size = 0.5 + size
    inside = "Inside the range the loss is -r A."
    clipped = "min picks the clipped branch here, which is constant."
    rows = [
        (0.1 * near, size, "inside the clip range, A > 0", inside),
        (0.1 * near, -size, "inside the clip range, A < 0", inside),
        (-0.05 - 0.1 * near, -size, "inside the clip range, A < 0", inside),
        (1 + far, size, "far above the range, A > 0", clipped),
        (-1 - below, -size, "far below the range, A < 0", clipped),
        (-1 - below, size, *TEXTS["unclipped_side"]),
        (1 + far, -size, *TEXTS["open_side"]),
        (0.16, size, *TEXTS["upper_end"]),
        (0.2, size, *TEXTS["above_the_end"]),
        (-0.21, -size, *TEXTS["lower_end"]),
        (-0.24, -size, *TEXTS["below_the_end"]),
        (17 + 2 * far, -1.0, *TEXTS["far_out"]),
    ]
    given = []
    for log_ratio, a, what, why in rows:
        said = Sentence("{}: log-ratio {:.3g}, A = {:.3g}", Sentence(what), log_ratio, a)
        given.append((said, {"log_ratio": log_ratio, "advantage": a}, why))
    return cases_by(slope, given)


# The log-ratio of the reported norm ----------------------------------------------------------------------------------


def _judge_nats(values: Mapping[str, Any], seed: int) -> Iterator[Finding]:
    nats = values["nats"]
    if not is_number(nats) or not -300 < nats < 300:
        why = other_kind(nats, "a number") or "A log-ratio is a number, here below 20."
        yield Finding(False, "nats", shown(nats), "a number of nats", why)
        return
    slope = math.exp(nats)
    right = abs(slope / REPORTED_NORM - 1) < 0.02
    expected = Sentence("{:,}, within 2 %", REPORTED_NORM)
    yield Finding(right, f"e^{nats:.4g}", f"{slope:,.0f}", expected, _why_not_nats(nats))


def _why_not_nats(nats: float) -> str:
    """The reason for a wrong number of nats; another base is named only where it was taken."""
    for base in (2, 10):
        if abs(base**nats / REPORTED_NORM - 1) < 0.1:
            said = "This is the logarithm to base {}. Nats are natural: the slope on the open side is e^nats."
            return Sentence(said, base)
    if round(nats, 1) == round(math.log(REPORTED_NORM), 1):
        away = abs(math.exp(nats) / REPORTED_NORM - 1)
        return Sentence("Nearly: e^{:.4g} is {:.0%} away. Give two decimals.", nats, away)
    if abs(math.exp(-nats) / REPORTED_NORM - 1) < 0.1:
        return "The size is right and the sign is not: e^nats is far above 1."
    return "The slope on the open side is e^nats: which number has this exponential? Give two decimals."


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
    rows: list[tuple[dict[int, float], str, str]] = [
        ({1: nats}, *TEXTS["likelier"]),
        ({2: -nats}, *TEXTS["unlearned"]),
        ({0: nats, 2: -7.0}, *TEXTS["clipped_side"]),
        ({3: nats, 4: -6.0}, *TEXTS["no_advantage"]),
        ({5: 6.0, 4: -nats}, *TEXTS["both_open"]),
        ({5: 9.0, 4: -10.0}, *TEXTS["small_beta"]),
    ]
    given = []
    for planted, what, why in rows:
        log_ratio = usual.clone()
        for row, value in planted.items():
            log_ratio[row, tokens[row]] = value
        inputs = {"log_ratio": log_ratio, "advantages": advantages, "beta": 0.05}
        given.append((Sentence(what, nats) if "{" in what else what, inputs, why))
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


def _log_ratio_cases(seed: int) -> Sequence[Case]:
    generator = _generator(seed)
    old = -2 * torch.rand(2, 3, generator=generator)
    ref = old - 3 * torch.rand(2, 3, generator=generator)
    batch = {"old_logprobs": old, "ref_logprobs": ref, "sampling_logprobs": old - math.log(0.9)}
    later = old + 0.1 * torch.randn(2, 3, generator=generator)
    rows = [
        ("value", old, *TEXTS["first_update"]),
        ("value", later, *TEXTS["later_update"]),
        ("gradient", later, *TEXTS["through_the_ratio"]),
    ]
    given = [(what, {**batch, "logprobs": logprobs, "look": look}, why) for look, logprobs, what, why in rows]
    return cases_by(pages.solved(__file__, "log_ratio").log_ratio, given, in_a_batch)


# The KL estimate, bounded before exp ---------------------------------------------------------------------------------


def _k3_cases(seed: int) -> Sequence[Case]:
    generator = _generator(seed)
    near = 2 * torch.randn(4, generator=generator)
    far = 12 + 30 * torch.rand(3, generator=generator)
    overflow = 90 + 100 * torch.rand(2, generator=generator)
    rows = [
        ("value", near, "near the reference", "Where |delta| is below 10 it is k3 as before: e^delta - 1 - delta."),
        ("value", far, "far from the reference", "Beyond the bound the value is that of k3 at 10, about 22,015."),
        ("value", -far, *TEXTS["other_side"]),
        ("value", overflow, *TEXTS["infinite"]),
        ("gradient", overflow, *TEXTS["overflow"]),
        ("gradient", near, "the gradient near the reference", "Near the reference the gradient is that of k3."),
    ]
    given = [
        (Sentence("{}: delta = {}", Sentence(what), shown(delta)), {"delta": delta, "look": look}, why)
        for look, delta, what, why in rows
    ]
    return cases_by(lambda delta: kl.k3(delta.clamp(-10, 10)), given, by_delta)


_FIELDS = ("logprobs", "old_logprobs", "ref_logprobs", "sampling_logprobs")
CHECKS = {
    "gradient": Function("gradient", _gradient_cases, relations=(scaled("advantage", power=1),)),
    "reported": Values(("nats",), _judge_nats),
    "culprit": Function(
        "culprit",
        _culprit_cases,
        # A token where policy and reference agree has a ratio of 1 and no KL: its gradient is below any planted one.
        relations=(_moved, padded(result=False, log_ratio=0.0), scaled("advantages", "beta")),
    ),
    "log_ratio": Function(
        "log_ratio",
        _log_ratio_cases,
        in_a_batch,
        (
            *lines_alike(*_FIELDS),
            shifted("logprobs", "old_logprobs"),
            without_use("ref_logprobs", "sampling_logprobs"),
        ),
    ),
    "bounded": Function("k3", _k3_cases, by_delta, (elementwise("delta"),)),
}
