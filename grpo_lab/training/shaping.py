"""What a step does between sampling and advantages: it draws again for groups without spread, and changes rewards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from grpo_lab import seeds
from grpo_lab.algorithm.combinations import Scores
from grpo_lab.algorithm.credit import soft_overlong
from grpo_lab.core.batch import Batch
from grpo_lab.core.hooks import Stage, Verdict
from grpo_lab.tasks.tasks import Problem, Tasks
from grpo_lab.training.batches import joined, of_groups
from grpo_lab.training.interventions import Step, known
from grpo_lab.training.objectives import Objective, Part

Scored = tuple[Part, list[Scores]]
"""A part of a step's batch, and the scores of each objective that scores it."""


def problems(tasks: Tasks, seed: int, step: int, count: int, draw: int) -> list[Problem]:
    """The prompts of a step's draw: the first one follows the epochs; others are random, by seed, step and draw."""
    own = (seeds.derive(seed, step, f"prompts/{draw}"), 0) if draw else (seed, step)
    return tasks.batch(*own, count)


def with_spread(ctx: Step, first: Part, draw: Callable[[int], Part], score: Callable[[Part], list[Scores]]) -> Scored:
    """The part and its scores, groups of equal rewards replaced by groups of further draws (DAPO, eq. 11,
    https://arxiv.org/abs/2503.14476).

    Where `loss.dynamic_sampling` further draws find too few, the step goes on with fewer groups, and an action says so.
    Raises Refused where no group has spread.
    """
    limit, wanted, size = ctx.config.loss.dynamic_sampling, len(first.problems), first.group_size
    scored, draws = (first, score(first)), 0
    if not limit:
        return scored
    found = [_chosen(*scored, wanted)]
    while (missing := wanted - sum(len(part.problems) for part, _ in found)) and draws < limit:
        draws += 1
        more = draw(draws)
        found.append(_chosen(more, score(more), missing))
    ctx.recorder.metric("dynamic_sampling/draws", torch.tensor(float(draws)), first.number)
    if missing:
        reason = (
            f"{wanted - missing} of {wanted} groups have spread after {1 + draws} draws of {wanted * size} completions"
        )
        if missing == wanted:
            ctx.refuse("dynamic_sampling", Stage.REWARDS, reason)
        ctx.act("dynamic_sampling", Stage.REWARDS, Verdict.KEEP, reason)
    return _joined([(part, scores) for part, scores in found if part.problems])


def _chosen(part: Part, scores: list[Scores], most: int) -> Scored:
    """The groups of a part whose rewards differ, this many at most, and their scores."""
    (one,) = scores  # `objectives.resolve` refuses dynamic sampling where several objectives score a batch
    high, low = (one.rewards.masked_fill(~one.scorable, end) for end in (-torch.inf, torch.inf))
    index = (high.amax(dim=1) > low.amin(dim=1)).nonzero()[:most, 0]
    kept = index.tolist()
    chosen = replace(
        part,
        problems=[part.problems[place] for place in kept],
        first_completions=[part.first_completions[place] for place in kept],
        batch=of_groups(part.batch, index),
    )
    return chosen, [one._replace(rewards=one.rewards[index], scorable=one.scorable[index])]


def _joined(found: list[Scored]) -> Scored:
    parts, scores = zip(*found, strict=True)
    whole = replace(
        parts[0],
        problems=[problem for part in parts for problem in part.problems],
        first_completions=[text for part in parts for text in part.first_completions],
        batch=joined([part.batch for part in parts]),
    )
    rewards, scorable = (torch.cat([getattr(one, name) for (one,) in scores]) for name in ("rewards", "scorable"))
    return whole, [scores[0][0]._replace(rewards=rewards, scorable=scorable)]


def overlong(values: Tensor, batch: Batch, longest: int, share: float) -> Tensor:
    """Rewards (B,) minus `soft_overlong` of the completions' lengths; as they are where the share is 0."""
    return (
        values + soft_overlong(batch.completion_mask.sum(dim=1).to(values.device), longest, share) if share else values
    )


def scored(ctx: Step, mask: Tensor, unscored: str) -> Tensor:
    """(b,) index of the completions that were scored, for the mask (B, T) of all; `unscored` ends the sentence on none.

    Raises Refused where no completion was scored, and where none of those that were has a token to train.
    """
    scorable = known(ctx.scorable, "scorable").flatten()
    judged, trained = torch.stack([scorable, scorable & mask.any(dim=1)]).tolist()
    for stage, left, what in ((Stage.REWARDS, judged, unscored), (Stage.BATCH, trained, "is trained")):
        if not any(left):
            ctx.refuse("trainer", stage, f"none of {len(judged)} completions {what}")
    rows = torch.tensor([row for row, counts in enumerate(judged) if counts])
    return rows.to(scorable.device, non_blocking=True)


def paid(scores: Sequence[Scores], penalties: Tensor | None) -> Sequence[Scores]:
    """The scores, of whose rewards each completion pays the penalties (B, T) of its tokens, where there are any."""
    if penalties is None:
        return scores
    (one,) = scores  # `objectives.resolve` refuses it where several objectives score a batch
    return [one._replace(rewards=one.rewards - penalties.sum(dim=1).view_as(one.rewards))]


def with_penalties(ctx: Step, batch: Batch, objective: Objective) -> Batch:
    """The batch with the penalties of its tokens, by the step's weight of the objective's KL."""
    return replace(batch, penalties=k1_of_each_token(batch, ctx.beta))


def k1_of_each_token(batch: Batch, beta: float) -> Tensor | None:
    """beta x (old_logprobs - ref_logprobs), (B, T) in nats: k1 of each token, whose mean over samples is the KL.

    None without a reference, which a run with beta 0 does not load.
    """
    if batch.ref_logprobs is None:
        return None
    assert batch.old_logprobs is not None
    return (beta * (batch.old_logprobs - batch.ref_logprobs)).masked_fill(~batch.completion_mask, 0.0)


IN_THE_LOSS = {"loss": 1.0, "reward": 0.0}
"""The share of the KL penalty that the loss holds, by the setting `loss.kl_place`."""
