"""The section `loss` of a config: the formulas of an algorithm by name, and their numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from grpo_lab.config.fields import AtLeast, Between, OneOf, Settings


@dataclass(frozen=True)
class LossConfig(Settings):
    """The GRPO objective (DeepSeekMath, eq. 3), with the places where algorithms and implementations differ."""

    epsilon: Annotated[float, Between(0, 1)] = 0.2
    """The ratio is clipped below at 1 - epsilon."""
    epsilon_high: Annotated[float | None, Between(0)] = None
    """The ratio is clipped above at 1 + epsilon_high; none uses epsilon. TRL's epsilon_high for CISPO is 1 more."""
    beta: Annotated[float, AtLeast(0)] = 0.02
    """Weight of the KL penalty; 0 loads no reference model."""
    kl_estimator: str = "k3"
    """`k1`, `k2`, `k3`, `hinge`, a named wrong formula, or `file.py:name`: (delta) -> penalty, both (b, T)."""
    log_ratio: str = "old"
    """The policy that the current one is compared with: `old` (the one that sampled), a named wrong formula, or
    `file.py:name`: (logprobs, batch) -> log-ratio (b, T)."""
    importance_sampling_level: str = "token"
    """Unit of the ratio: each `token`; the completion, exp of its mean log-ratio (`sequence`: GSPO) or of its sum
    (`sequence_sum`: RLOO); `sequence_token`, the value of `sequence` with the gradient of each token; or
    `file.py:name`: (log_ratio (b, T), mask (b, T)) -> log-weights (b, T)."""
    surrogate: str = "clip"
    """The loss of a token by its ratio: `clip` (PPO), `cispo` (a clipped weight without gradient, times the
    log-probability), `sapo` (a soft gate), `unclipped`, `reinforce` (no ratio), or `file.py:name`:
    (log_weights (b, T), logprobs (b, T), advantages (b,), limits) -> losses (b, T)."""
    sapo_temperature_pos: Annotated[float, Between(0)] = 1.0
    """Of `sapo`: how fast its gate closes around ratio 1 where the advantage is above 0."""
    sapo_temperature_neg: Annotated[float, Between(0)] = 1.05
    """Of `sapo`: the same where the advantage is not above 0."""
    importance_sampling_mode: str = "none"
    """A weight for the gap between sampler and trainer, policy before the updates / sampler, on each token's loss:
    `none`; `token_truncate` or `sequence_truncate`, bounded by the two settings below; `token_mask` or `sequence_mask`,
    0 beyond them; or `file.py:name`: (losses (b, T), batch, clip_min, clip_max) -> losses (b, T)."""
    importance_sampling_clip_max: Annotated[float | None, Between(0)] = 3.0
    """Upper bound of that weight; none for no bound."""
    importance_sampling_clip_min: Annotated[float | None, AtLeast(0)] = None
    """Lower bound of that weight; none for no bound."""
    aggregation: Annotated[str, OneOf("token", "sequence", "constant", "sum")] = "token"
    """Mean over tokens, mean over completions of their means, the sum divided by the number of completions times
    `sampling.max_completion_length`, or the mean over completions of their sums."""
    advantage_scale: str = "group"
    """How rewards become advantages: minus the mean of the group, divided by the standard deviation of the `group`, of
    the `batch`, or by nothing (`none`); minus the mean of the group's others (`leave_one_out`); minus the mean of the
    batch, divided by its standard deviation (`global`); as they are (`reward`); a named wrong formula, or
    `file.py:name`: (rewards (P, G), scorable=...) -> advantages (P, G)."""
    credit_assignment: str = "completion"
    """How the advantage of a completion becomes those of its tokens: `completion` (the same for all), `reward_to_go`
    (REINFORCE++), which begins with advantage_scale=reward and compares tokens of the whole batch, or `file.py:name`:
    (batch, gamma) -> batch."""
    gamma: Annotated[float, AtLeast(0, 1)] = 1.0
    """Of `reward_to_go`: the discount of a reward that comes one token later."""
    kl_place: Annotated[str, OneOf("loss", "reward")] = "loss"
    """Where the KL penalty is paid: in the `loss`, by kl_estimator, or in the `reward`: beta times k1 of each token."""
    dynamic_sampling: Annotated[int, AtLeast(0)] = 0
    """Further draws of prompts, at most, in place of groups whose rewards are all equal (DAPO); 0 trains those too."""
    soft_overlong: Annotated[float, AtLeast(0, 1)] = 0.0
    """The last part of max_completion_length in which the reward falls, by 1 at its end (DAPO); 0 for none."""
    top_entropy_quantile: Annotated[float, Between(0, 1)] = 1.0
    """The share of tokens that are trained, those with the highest entropy when they were sampled; 1 trains all."""
    entropy_coef: Annotated[float, AtLeast(0)] = 0.0
    """Weight of the entropy, a mean over tokens in nats, that is subtracted from the loss; 0 for no bonus."""
    completion_mask: str = "position"
    """The tokens that are trained: `position` (up to the end token), `not_truncated` (the same, but none of a
    completion that was cut off), a named wrong mask, or `file.py:name`: (batch, pad) -> mask (B, T)."""
    accumulation: str = "add"
    """How gradients of micro-batches add up: `add`, a wrong way by name, or `file.py:name`: (loss, optimizer)."""
    combination: str = "separate"
    """How several objectives are combined: `separate` (the sum of their losses), `alternate` (one a step), `pcgrad`
    (no part of a gradient against another's), `sum_then_normalize` or `normalize_then_sum` (of rewards: every objective
    scores all completions; the second is GDPO), or a named wrong way."""
    num_iterations: Annotated[int, AtLeast(1)] = 1
    """Updates on each batch of completions (the mu of the paper)."""
