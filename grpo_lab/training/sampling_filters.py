"""Penalties, temperature and filters between the logits and the distribution that is sampled from."""

from collections.abc import Callable

import torch
from torch import Tensor

from grpo_lab.config.sections import SamplingConfig

ONE = 2**52
"""A probability of 1 as an integer: sums of integers are deterministic on a GPU too, and exact."""


class _RepetitionPenalty:
    """Divides positive and multiplies negative logits (b, V) of tokens that prompt or completion already hold.

    CTRL, https://arxiv.org/abs/1909.05858, section 4.1. Padding of the prompt does not count.
    """

    def __init__(self, penalty: float, prompt_ids: Tensor, prompt_mask: Tensor, group: Tensor, vocab_size: int) -> None:
        self._penalty = penalty
        in_prompt = torch.zeros(len(prompt_ids), vocab_size, device=group.device)
        self._known = (in_prompt.scatter_add_(1, prompt_ids, prompt_mask.float()) > 0)[group]
        self._yes = torch.ones((), dtype=torch.bool, device=group.device)

    def __call__(self, logits: Tensor, alive: Tensor) -> Tensor:
        penalised = torch.where(logits > 0, logits / self._penalty, logits * self._penalty)
        return torch.where(self._known[alive], penalised, logits)

    def seen(self, alive: Tensor, tokens: Tensor) -> None:
        self._known[alive, tokens[:, 0]] = self._yes


class _PresencePenalty:
    """Subtracts from the logits (b, V) of a completion's tokens: `presence` once, `frequency` per occurrence."""

    def __init__(self, presence: float, frequency: float, group: Tensor, vocab_size: int) -> None:
        self._presence, self._frequency = presence, frequency
        self._counts = torch.zeros(len(group), vocab_size, device=group.device)

    def __call__(self, logits: Tensor, alive: Tensor) -> Tensor:
        counts = self._counts[alive]
        return logits - (self._presence * (counts > 0) + self._frequency * counts)

    def seen(self, alive: Tensor, tokens: Tensor) -> None:
        self._counts[alive, tokens[:, 0]] += 1


class SamplingFilters:
    """The penalties, temperature and filters of one sampling, in that order; neutral ones are left out.

    transformers' processors are unfit: they penalise padding, lack a presence penalty, and round top-p differently.
    """

    def __init__(
        self, sampling: SamplingConfig, prompt_ids: Tensor, prompt_mask: Tensor, group: Tensor, vocab_size: int
    ) -> None:
        self._sampling = sampling
        self._penalties: list[_RepetitionPenalty | _PresencePenalty] = []
        if sampling.repetition_penalty != 1:
            penalty = _RepetitionPenalty(sampling.repetition_penalty, prompt_ids, prompt_mask, group, vocab_size)
            self._penalties.append(penalty)
        if sampling.presence_penalty or sampling.frequency_penalty:
            penalty = _PresencePenalty(sampling.presence_penalty, sampling.frequency_penalty, group, vocab_size)
            self._penalties.append(penalty)
        filters: list[tuple[bool, Callable[[Tensor, Tensor], Tensor]]] = [
            (sampling.temperature != 1, self._divide_by_temperature),
            (sampling.top_k > 0, self._keep_top_k),
            (sampling.top_p < 1, self._keep_top_p),
        ]
        self._filters = [*self._penalties, *(apply for active, apply in filters if active)]

    def __call__(self, logits: Tensor, alive: Tensor) -> Tensor:
        """Filtered logits (b, V) of the completions `alive` (b,)."""
        for apply in self._filters:
            logits = apply(logits, alive)
        return logits

    def seen(self, alive: Tensor, tokens: Tensor) -> None:
        """Tell the penalties which tokens (b, 1) were sampled for the completions `alive` (b,)."""
        for penalty in self._penalties:
            penalty.seen(alive, tokens)

    def _divide_by_temperature(self, logits: Tensor, alive: Tensor) -> Tensor:
        return logits / self._sampling.temperature

    def _keep_top_k(self, logits: Tensor, alive: Tensor) -> Tensor:
        kept = min(self._sampling.top_k, logits.shape[-1])
        return logits.masked_fill(logits < logits.topk(kept).values[:, -1:], -torch.inf)

    def _keep_top_p(self, logits: Tensor, alive: Tensor) -> Tensor:
        """Keep the likeliest tokens up to a probability of top_p together (https://arxiv.org/abs/1904.09751)."""
        ordered, order = logits.sort(dim=-1, descending=True)
        shares = (ordered.softmax(dim=-1) * ONE).long()
        outside = shares.cumsum(dim=-1) - shares > int(self._sampling.top_p * ONE)
        return logits.masked_fill(torch.zeros_like(outside).scatter(1, order, outside), -torch.inf)


def is_plain(sampling: SamplingConfig) -> bool:
    """Whether the sampled distribution is the model's own at the sampling temperature: no filter, no penalty."""
    neutral = SamplingConfig(temperature=sampling.temperature, max_completion_length=sampling.max_completion_length)
    return sampling == neutral
