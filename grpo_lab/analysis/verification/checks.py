"""The checks of a trainer, each one line with a number and its limit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from grpo_lab.algorithm import kl as kl_estimators
from grpo_lab.analysis.verification import oracle
from grpo_lab.analysis.verification.cycles import Cycle, Trainer
from grpo_lab.analysis.verification.runs import NotChecked, Runs, Wrong
from grpo_lab.config import user_code
from grpo_lab.errors import GrpoLabError
from grpo_lab.training.snapshots import SMALL

Result = tuple[bool, str, str]
"""Whether a check holds, its number and its limit in words."""
NOISE = 0.01
"""The largest advantage of equal rewards that counts as 0.

The mean of a group's rewards of 0.7 is off by 6e-8 or 1.2e-7 in fp32. TRL divides that by its eps of 1e-4, which gives
up to 0.0012; an eps of 1e-8 gives a whole advantage.
"""
NOISE_IN_WORDS = f"<= {NOISE:g}, as rounding over an eps of 1e-4 leaves"


@dataclass(frozen=True)
class Line:
    """The result of one check."""

    name: str
    ok: bool | None
    """None: not checked, for the reason in `measured`."""
    measured: str
    limit: str = ""


def check(fresh: Callable[[], Trainer]) -> list[Line]:
    """Make every check on trainers that `fresh` returns, each in the same first state.

    Raises ConfigError for an adapter without a model or a step, and GrpoLabError for a config that cannot run.
    """
    runs, threads = Runs(fresh), torch.get_num_threads()
    small = sum(p.numel() for p in runs.trainer.model.parameters()) < SMALL
    torch.set_num_threads(1 if small else threads)  # the checks of a small model take too little for a second
    try:
        each = {
            f"{name} ({objective})" if objective else name: partial(one, objective=objective)
            for name, one in EACH.items()
            for objective in runs.objectives or [""]
        }
        return [
            _line(name, one, runs) for name, one in {**each, **WHOLE, **(TOGETHER if runs.objectives else {})}.items()
        ]
    finally:
        torch.set_num_threads(threads)


def _line(name: str, one: Callable[[Runs], Result], runs: Runs) -> Line:
    try:
        return Line(name, *one(runs))
    except NotChecked as reason:
        return Line(name, None, str(reason))
    except Wrong as reason:
        return Line(name, False, str(reason))
    except GrpoLabError:
        raise
    except Exception as error:  # a user's trainer may raise anything, and return tensors of any shape
        return Line(name, False, f"raised {user_code.said(error, runs.file)}")


def temperature(runs: Runs, objective: str = "") -> Result:
    """The log-probabilities of sampler and loss against the policy's at the temperature of the loss."""
    limit, worst, said = (0.2 if runs.half else 0.01), {"sampler": 0.0, "loss": 0.0}, ""
    for cycle, rows in runs.tables(runs.turn, "logprobs", objective):
        inside, wanted = runs.inside(rows), rows.get("temperature", 1.0)
        policy = partial(_policy, cycle.model, rows, inside)
        for who, name in (("sampler", "logprobs"), ("loss", "old_logprobs")):
            if rows.get(name) is None:
                continue
            own = rows[name].float()[inside]
            largest = float((own - policy(wanted)).abs().max())
            if not largest <= max(limit, worst[who]):
                named = f" ({rows['filters']})" if rows.get("filters") else ""
                said = said or f"; {who}: {_mismatch(own, policy, wanted, limit)}{named}"
            worst[who] = max(worst[who], largest)
    shown = ", ".join(f"{who} {gap:.4f}" for who, gap in worst.items())
    return max(worst.values()) <= limit, f"farthest from the policy: {shown} nats{said}", f"<= {limit:g} nats"


def _policy(model: Any, rows: Mapping[str, Any], inside: Tensor, at: float) -> Tensor:
    """Log-probabilities (N,) of the sampled tokens under the policy before its update."""
    return oracle.logprobs(model, rows, at)[inside]


def _mismatch(own: Tensor, policy: Callable[[float], Tensor], wanted: float, limit: float) -> str:
    """The distribution that was used instead, as far as its log-probabilities (N,) tell."""
    gap = own - policy(wanted)
    cut = 1 - float(gap.neg().exp().min())
    if (gap >= -limit).all() and cut < 0.9:
        return f"top-p or top-k cut off up to {cut:.0%} of the probability"
    tried = {step / 20: float((own - policy(step / 20)).abs().max()) for step in range(2, 41)}
    best = min(tried, key=lambda at: tried[at])
    if tried[best] <= max(limit, 0.1 * float(gap.abs().max())):
        return f"temperature {best:g} instead of {wanted:g}"
    return "no temperature explains this, but penalties, old weights or dropout may"


def ratio(runs: Runs, objective: str = "") -> Result:
    """The log-ratio at the first update of each cycle, before anything has moved."""
    limit = 0.2 if runs.half else 1e-3
    found: dict[int, list[Tensor]] = {}
    for cycle, rows in runs.tables(runs.cycles, "log_ratio", objective):
        found.setdefault(cycle.number, []).append(rows["log_ratio"].flatten())
    worst = {number: float(torch.cat(each).abs().max()) for number, each in found.items()}
    shown = ", ".join(f"{value:.4f} in cycle {number}" for number, value in worst.items())
    return all(value <= limit for value in worst.values()), f"largest |log-ratio| {shown}", f"<= {limit:g}"


def reference(runs: Runs, objective: str = "") -> Result:
    """Whether the reference of a later cycle is still the policy before the first."""
    if len(runs.cycles) <= runs.turns:
        raise NotChecked(f"the weights are not finite after cycle {len(runs.cycles)}")
    away, moved = [], []
    for cycle, rows in runs.tables(runs.cycles[1:], "ref_logprobs", objective):
        inside, at = runs.inside(rows), rows.get("temperature", 1.0)
        start, now = (_policy(model, rows, inside, at) for model in (runs.first.model, cycle.model))
        away.append((rows["ref_logprobs"][inside].float() - start).abs())
        moved.append((now - start).abs())
    distance, movement = float(torch.cat(away).mean()), float(torch.cat(moved).mean())
    rounding = 0.03 if runs.half else 1e-5
    if movement < 2 * rounding:
        raise NotChecked(f"the policy moved by {movement:.1e} nats only, so that nothing tells the two apart")
    limit = max(rounding, 0.1 * movement)
    said = f"{distance:.4f} nats from the first policy, which has moved by {movement:.4f}"
    return distance <= limit, said, f"<= {limit:.4f}"


def _small_policies() -> tuple[Tensor, Tensor]:
    """Scores (7,) of a policy and log-probabilities (7,) of a reference near it: KL 0.02 nats."""
    generator = torch.Generator().manual_seed(0)
    scores, shift = torch.randn(7, generator=generator), torch.randn(7, generator=generator)
    return scores.requires_grad_(), (scores.detach() + 0.2 * shift).log_softmax(dim=-1)


def _penalties(kl: Callable[..., Tensor], scores: Tensor, log_q: Tensor) -> Tensor:
    """The trainer's penalty (7,) for each token of the small vocabulary."""
    return kl(scores.log_softmax(dim=-1)[None], log_q[None])[0]


def kl_value(runs: Runs, objective: str = "") -> Result:
    """The expected penalty, summed over a vocabulary of 7 tokens, against the KL."""
    scores, log_q = _small_policies()
    log_p = scores.detach().log_softmax(dim=-1)
    value = float((log_p.exp() * _penalties(runs.kl(objective), scores, log_q).detach()).sum())
    exact = float(kl_estimators.exact(log_p, log_q))
    return abs(value / exact - 1) <= 0.2, f"expected value {value:.4f}, KL {exact:.4f}", "within 20 %"


def kl_gradient(runs: Runs, objective: str = "") -> Result:
    """The expected gradient of the penalty against those of KL(policy || reference) and KL(reference || policy)."""
    scores, log_q = _small_policies()
    log_p = scores.log_softmax(dim=-1)
    loss = (log_p.detach().exp() * _penalties(runs.kl(objective), scores, log_q)).sum()
    (found,) = torch.autograd.grad(loss, scores) if loss.requires_grad else (torch.zeros(7),)
    kls = (kl_estimators.exact(log_p, log_q), kl_estimators.exact(log_q, log_p))
    exact = [torch.autograd.grad(kl, scores, retain_graph=True)[0] for kl in kls]
    cosine = max(float(torch.cosine_similarity(found, each, dim=0)) for each in exact)
    size = float(found.norm() / exact[0].norm())
    said = f"expected gradient {size:.2f} x that of a KL, cosine {cosine:.2f}"
    return cosine >= 0.95 and 0.5 <= size <= 2, said, "0.5 to 2 x, cosine >= 0.95"


def equal_rewards(runs: Runs, objective: str = "") -> Result:
    """Advantages of equal rewards."""
    worst = _largest_advantage(runs.tables(runs.equal, "advantages", objective))
    return worst <= NOISE, f"largest |advantage| of equal rewards {worst:g}", NOISE_IN_WORDS


def unscored(runs: Runs, objective: str = "") -> Result:
    """Advantages of equal rewards where every other completion has None: a 0 in its place would show."""
    if not equal_rewards(runs, objective)[0]:
        raise NotChecked("the advantages of equal rewards are not 0")
    worst = _largest_advantage(runs.tables(runs.every_other, "advantages", objective))
    return worst <= NOISE, f"largest |advantage| {worst:g} with None among equal rewards", NOISE_IN_WORDS


def _largest_advantage(tables: Sequence[tuple[Cycle, Mapping[str, Any]]]) -> float:
    found = torch.cat([rows["advantages"].flatten() for _, rows in tables])
    return float(found.abs().max()) if len(found) else 0.0


def gradient(runs: Runs) -> Result:
    """The gradient of the first update against those of the sampled tokens' log-probabilities."""
    norm, share = float(runs.gradient(runs.first).norm()), runs.parts["all"]
    said = f"norm {norm:.3g}, of which the sampled tokens explain {share:.1%}"
    return share >= runs.enough, said, f">= {runs.enough:.0%}"


def micro_batches(runs: Runs) -> Result:
    """The gradient of two micro-batches against that of one batch."""
    runs.need_explained()
    for one, other in zip(runs.first.objectives, runs.halves.objectives, strict=False):
        if not torch.equal(one["completions"], other["completions"]):
            raise NotChecked("two fresh trainers sampled different completions: seed the sampler")
    whole = runs.first.gradient
    apart, limit = float((runs.halves.gradient - whole).norm() / whole.norm()), 0.05 if runs.half else 1e-3
    return apart <= limit, f"gradients of two halves and of the whole differ by {apart:.2%}", f"<= {limit:.1%}"


def optimizer_steps(runs: Runs) -> Result:
    """Optimizer steps in a cycle with two micro-batches."""
    wanted, found = getattr(runs.trainer, "num_iterations", 1), runs.halves.optimizer_steps
    return found == wanted, f"{found} in a cycle of two micro-batches", f"{wanted}"


def update_size(runs: Runs) -> Result:
    """The largest change of a weight in a cycle against the learning rate."""
    cycle = runs.first
    limit = 2 * cycle.rate + cycle.rounding if cycle.adam else float("inf")
    said = f"largest change of a weight {cycle.largest_move:.2g}, rate {cycle.rate:.2g}"
    return 0 < cycle.largest_move <= limit, said, f"> 0, <= {limit:.2g}"


def terminators(runs: Runs) -> Result:
    """Sampling where one token in two is the terminator: what follows it must be padding."""
    pad, active = runs.optional("pad_token_id"), []
    for token, cycle in runs.favoured.items():
        sampled = [rows["completions"] for rows in cycle.objectives]
        later = sum(int((~oracle.until_end(each, [token]) & (each != pad)).sum()) for each in sampled)
        if not later and any(bool((each == token).any()) for each in sampled):
            active.append(token)
    silent = [token for token in runs.terminators if token not in active]
    said = f"active: {active}" + (f"; sampling goes on after {silent}" if silent else "")
    return not silent, said, f"all of {runs.terminators}"


def end_tokens(runs: Runs) -> Result:
    """The part of the gradient that each end token makes up where it is frequent."""
    runs.need_explained()
    shares = {token: parts["end"] for token, parts in runs.favoured_parts.items()}
    said = ", ".join(f"{token} {share:.1%}" for token, share in shares.items())
    return min(shares.values()) >= 0.05, f"{said} of the gradient, if half of the tokens are end tokens", ">= 5%"


def padding_and_prompt(runs: Runs) -> Result:
    """The parts of the gradient that padding and prompt tokens make up, also where completions end early."""
    runs.need_explained()
    found = [runs.parts, *runs.favoured_parts.values()]
    shares = {kind: max(parts[kind] for parts in found) for kind in ("padding", "prompt")}
    limit, said = (0.2 if runs.half else 0.02), ", ".join(f"{kind} {share:.1%}" for kind, share in shares.items())
    return max(shares.values()) <= limit, f"{said} of the gradient", f"<= {limit:.0%}"


def combination(runs: Runs) -> Result:
    """The gradient of each cycle's first update against the combination of the objectives' own."""
    way = runs.optional("combination")
    if way not in oracle.COMBINATIONS:
        known = ", ".join(oracle.COMBINATIONS)
        raise NotChecked(f"`{way}` is none of {known}, which combine gradients; the combination is not verified")
    for name in runs.objectives:
        for needed in ("weights", "advantages"):
            runs.tables(runs.turn, needed, name)
    limit = 0.2 if runs.half else 1e-3
    found = [_compared(runs, c, way) for c in runs.cycles if c.number <= runs.turns or c.optimizer_steps]
    if way == "pcgrad" and max(opposed for *_, opposed in found) <= limit:
        raise NotChecked(f"no gradients oppose each other in {len(found)} cycles, where `pcgrad` is the sum")
    apart, said, _ = max(found, key=lambda each: (not each[0] <= limit, each[0]))  # NaN is too far
    return apart <= limit, f"{apart:.2%} away from `{way}` in {said}", f"<= {limit:.1%}"


def _compared(runs: Runs, cycle: Cycle, way: str) -> tuple[float, str, float]:
    """The distance of a cycle's gradient from what it should be, the count of each objective's, and that of their sum.

    With `alternate`, more than one objective in a cycle are infinitely far.
    """
    total, tables = runs.gradient(cycle), [rows for _, rows in runs.tables([cycle], "weights")]
    kl = runs.optional("kl") if any(rows.get("beta") for rows in tables) else None
    own = torch.stack([oracle.gradient(cycle.model, list(cycle.gradients), rows, kl) for rows in tables])
    wanted = oracle.COMBINATIONS[way](own)
    apart = float("inf") if way == "alternate" and len(tables) > 1 else _distance(total, wanted)
    factors = zip(tables, oracle.counts(own, total).tolist(), strict=True)
    said = ", ".join(f"{rows['objective']} {factor:.2f}" for rows, factor in factors)
    return apart, f"cycle {cycle.number}, where gradients count {said}", _distance(oracle.added(own), wanted)


def _distance(found: Tensor, wanted: Tensor) -> float:
    """The share of a gradient (n,) that the wanted one does not explain, up to a factor, which clipping changes."""
    factor = (found @ wanted / (wanted @ wanted).clamp(min=1e-30)).clamp(min=0)
    return float((found - factor * wanted).norm() / found.norm().clamp(min=1e-30))


EACH: dict[str, Callable[..., Result]] = {
    "temperature": temperature,
    "ratio": ratio,
    "reference": reference,
    "kl value": kl_value,
    "kl gradient": kl_gradient,
    "equal rewards": equal_rewards,
    "unscored": unscored,
}
"""The checks of each objective, in the order of their lines."""
WHOLE: dict[str, Callable[[Runs], Result]] = {
    "gradient": gradient,
    "micro-batches": micro_batches,
    "optimizer steps": optimizer_steps,
    "update size": update_size,
    "terminators": terminators,
    "end tokens": end_tokens,
    "padding and prompt": padding_and_prompt,
}
"""The checks of the policy, which all objectives share."""
TOGETHER: dict[str, Callable[[Runs], Result]] = {"combination": combination}
"""The checks of several objectives."""
