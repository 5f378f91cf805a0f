"""Penalties and filters between the logits and the distribution that is sampled from, in place of `sample.tempered`.

transformers' processors are unfit: they penalise padding, lack a presence penalty, and round top-p differently.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from grpo_lab.config.sections import SamplingConfig
from grpo_lab.core.sample import Distribution, tempered

ONE = 2**52
"""A probability of 1 as an integer: sums of integers are deterministic on a GPU too, and exact."""
Filter = Callable[[Tensor, Tensor, Tensor], Tensor]
"""From logits (b, V), the tokens (B, t) drawn so far and the completions (b,) that go on, to logits (b, V)."""


def distribution(
    sampling: SamplingConfig, prompt_ids: Tensor, prompt_mask: Tensor, num_generations: int, vocab_size: int
) -> Distribution:
    """The softmax after penalties, temperature and filters, in this order, for prompts (P, S) with a group each."""

    def counts(drawn: Tensor, alive: Tensor) -> Tensor:
        """(b, V): how often each token stands in a completion."""
        ones = torch.ones((), device=drawn.device).expand(len(alive), drawn.shape[1])
        return torch.zeros(len(alive), vocab_size, device=drawn.device).scatter_add_(1, drawn[alive], ones)

    def penalise_repetition(logits: Tensor, drawn: Tensor, alive: Tensor) -> Tensor:
        """Divide positive and multiply negative logits of tokens that prompt or completion hold; padding does not count
        (CTRL, https://arxiv.org/abs/1909.05858, section 4.1)."""
        in_prompt = torch.zeros(len(prompt_ids), vocab_size, device=logits.device)
        in_prompt.scatter_add_(1, prompt_ids, prompt_mask.float())
        held = in_prompt[alive // num_generations] + counts(drawn, alive)
        penalty = sampling.repetition_penalty
        return torch.where(held > 0, torch.where(logits > 0, logits / penalty, logits * penalty), logits)

    def penalise_presence(logits: Tensor, drawn: Tensor, alive: Tensor) -> Tensor:
        """Subtract `presence_penalty` once, `frequency_penalty` per occurrence in the completion."""
        held = counts(drawn, alive)
        return logits - (sampling.presence_penalty * (held > 0) + sampling.frequency_penalty * held)

    def divide_by_temperature(logits: Tensor, drawn: Tensor, alive: Tensor) -> Tensor:
        return logits / sampling.temperature

    def keep_top_k(logits: Tensor, drawn: Tensor, alive: Tensor) -> Tensor:
        kept = min(sampling.top_k, logits.shape[-1])
        return logits.masked_fill(logits < logits.topk(kept).values[:, -1:], -torch.inf)

    def keep_top_p(logits: Tensor, drawn: Tensor, alive: Tensor) -> Tensor:
        """Keep the likeliest tokens up to a probability of top_p together (https://arxiv.org/abs/1904.09751)."""
        ordered, order = logits.sort(dim=-1, descending=True)
        shares = (ordered.softmax(dim=-1) * ONE).long()
        outside = shares.cumsum(dim=-1) - shares > int(sampling.top_p * ONE)
        return logits.masked_fill(torch.zeros_like(outside).scatter(1, order, outside), -torch.inf)

    known: list[tuple[bool, Filter]] = [
        (sampling.repetition_penalty != 1, penalise_repetition),
        (bool(sampling.presence_penalty or sampling.frequency_penalty), penalise_presence),
        (not is_plain(sampling) and sampling.temperature != 1, divide_by_temperature),
        (sampling.top_k > 0, keep_top_k),
        (sampling.top_p < 1, keep_top_p),
    ]
    filters = [change for active, change in known if active]

    def probabilities(logits: Tensor, drawn: Tensor, alive: Tensor) -> Tensor:
        for change in filters:
            logits = change(logits, drawn, alive)
        return logits.softmax(dim=-1)

    return probabilities if filters else tempered(sampling.temperature)


def is_plain(sampling: SamplingConfig) -> bool:
    """Whether the sampled distribution is the model's own at the sampling temperature: no filter, no penalty."""
    neutral = SamplingConfig(temperature=sampling.temperature, max_completion_length=sampling.max_completion_length)
    return sampling == neutral
