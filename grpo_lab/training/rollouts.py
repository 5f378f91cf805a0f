"""Completions of prompts that are texts: tokens in, samples out, texts back."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from grpo_lab.algorithm.losses import entropies
from grpo_lab.config.sections import SamplingConfig
from grpo_lab.core import sample as core
from grpo_lab.core.batch import Batch
from grpo_lab.core.hooks import Stage
from grpo_lab.errors import ConfigError
from grpo_lab.tasks.conversations import Prompt, tokenized
from grpo_lab.training.passes import prepare_attention
from grpo_lab.training.sampling_filters import distribution

Draw = Callable[[Tensor, Tensor], Batch]
"""From prompts (B, S), padded on the left, and their mask to a batch with one completion of each."""


def untouched(stage: Stage, value: Any, note: str = "") -> Any:
    """Return the value as it is; replaces `Context.apply` in evaluation, which has no interventions."""
    return value


def encode(tokenizer: Any, prompts: Sequence[Prompt], device: torch.device) -> tuple[Tensor, Tensor]:
    """(P, S) token ids padded on the left, and their mask."""
    encoded = tokenized(tokenizer, prompts, return_tensors="pt", padding=True, padding_side="left")
    ids, mask = (encoded[name].to(device, non_blocking=True) for name in ("input_ids", "attention_mask"))
    return ids, mask


def terminators(model: Any, tokenizer: Any) -> Tensor:
    """(E,) ids of every token that ends a completion: the model's and the tokenizer's, as far as the model has them.

    Raises ConfigError where it has none of them.
    """
    known = {*_known(model, model.generation_config.eos_token_id), *_known(model, tokenizer.eos_token_id)}
    if not known:
        raise ConfigError(f"no completion could end: {_without(model)}, nor does the tokenizer; {_WAY_OUT}")
    return torch.tensor(sorted(known)).to(model.device, non_blocking=True)


def check_terminators(model: Any, tokenizer: Any) -> None:
    """Warn of a model that names no end token itself. Raises ConfigError where its completions could not end."""
    ids = terminators(model, tokenizer).tolist()
    if not _known(model, model.generation_config.eos_token_id):
        warnings.warn(
            f"{_without(model)}: completions end at the tokenizer's {tokenizer.eos_token!r} ({ids[0]}) alone, and "
            f"never end if the model was not trained with it; {_WAY_OUT}",
            stacklevel=2,
        )


_WAY_OUT = "set eos_token_id in the model's generation_config.json"


def _known(model: Any, ids: int | list[int] | None) -> list[int]:
    """The tokens among these end tokens that the model's vocabulary has."""
    ids = ids if isinstance(ids, list) else [ids] if ids is not None else []
    return [each for each in ids if 0 <= each < model.config.vocab_size]


def _without(model: Any) -> str:
    ids = model.generation_config.eos_token_id
    return f"generation_config.eos_token_id = {ids} names none of the model's {model.config.vocab_size} tokens"


def sample(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[Prompt],
    num_generations: int,
    sampling: SamplingConfig,
    generator: torch.Generator,
    apply: Callable[..., Any] = untouched,
    encoded: tuple[Tensor, Tensor] | None = None,
) -> Batch:
    """Draw `num_generations` completions of each prompt, by `core.sample`, outside of a step.

    Prompts may be `encoded` already: (P, S) token ids, padded on the left, and their mask.
    Raises ConfigError where the model has too few positions, no end token, or an attention that takes no mask.
    """
    prepare_attention(model)
    ids, mask = encoded or encode(tokenizer, prompts, model.device)
    check_length(model, ids.shape[1], sampling.max_completion_length)
    drawn_from = distribution(sampling, ids, mask, num_generations, model.config.vocab_size)
    noted = NotedEntropies(drawn_from, sampling, ids, num_generations)
    ends, pad = terminators(model, tokenizer), tokenizer.pad_token_id
    batch = core.sample(model, ids, mask, num_generations, sampling, ends, pad, generator, apply, noted)
    return noted.added(batch)


def continued(first: Batch, outputs: Sequence[str], tokenizer: Any, draw: Draw, again: bool = False) -> Batch:
    """First turns, the tool's output behind each, and the second turns drawn behind that, as one completion each.

    The policy has not sampled the tool's tokens: `completion_mask` is False there, and their log-probabilities are 0.
    """
    ids, mask = _tokens(tokenizer, outputs, first.group.device)
    tokens = torch.cat([first.prompt_ids[first.group], first.completions, ids], dim=1)
    real = torch.cat([first.prompt_mask[first.group], first.completion_mask, mask], dim=1)
    order, width = real.argsort(dim=1, stable=True), int(real.sum(dim=1).max())
    second = draw(*(values.gather(1, order)[:, -width:] for values in (tokens, real)))
    first, second = (tokenised_again(turn, tokenizer) if again else turn for turn in (first, second))

    blank = torch.zeros(ids.shape, device=ids.device)
    tool = replace(first, completions=ids, completion_mask=blank.bool(), sampling_logprobs=blank, entropy=blank)
    real = torch.cat([first.completion_mask, mask, second.completion_mask], dim=1)
    order, width = real.argsort(dim=1, descending=True, stable=True), int(real.sum(dim=1).max())
    whole = {
        name: torch.cat([getattr(turn, name) for turn in (first, tool, second)], dim=1).gather(1, order)[:, :width]
        for name in ("completions", "completion_mask", "sampling_logprobs", "entropy")
    }
    return replace(first, ended=second.ended, **whole)


def tokenised_again(turn: Batch, tokenizer: Any) -> Batch:
    """A turn as a chat template writes its text: with an end token, which has log-probability 0 if none was sampled."""
    written = [text + tokenizer.eos_token for text in texts(tokenizer, token_ids(turn))]
    ids, mask = _tokens(tokenizer, written, turn.group.device)
    more = ids.shape[1] - turn.completions.shape[1]  # `pad` cuts off where it is negative
    noted = {each: F.pad(getattr(turn, each), (0, more)) * mask for each in ("sampling_logprobs", "entropy")}
    return replace(turn, completions=ids, completion_mask=mask.bool(), **noted)


def _tokens(tokenizer: Any, lines: Sequence[str], device: torch.device) -> tuple[Tensor, Tensor]:
    """(B, T) ids of texts, padded on the right, and their mask, 1 = a real token."""
    return padded(tokenizer(list(lines), add_special_tokens=False).input_ids, tokenizer.pad_token_id, device)


def padded(rows: Sequence[list[int]], pad: int, device: torch.device, side: str = "right") -> tuple[Tensor, Tensor]:
    """(N, T) token ids padded on this side, and their mask, 1 = a real token."""
    ids = [torch.tensor(row).long() for row in rows]
    real = pad_sequence([*map(torch.ones_like, ids)], True, padding_side=side)
    return pad_sequence(ids, True, pad, side).to(device, non_blocking=True), real.to(device, non_blocking=True)


class NotedEntropies:
    """A distribution for `core.sample` that keeps the entropy of the policy's own, before any filter."""

    def __init__(self, drawn_from: core.Distribution, sampling: SamplingConfig, ids: Tensor, size: int) -> None:
        self.drawn_from, self.temperature = drawn_from, sampling.temperature
        # In one piece: a small tensor for each token, between large ones, fragments the heap.
        self.entropy = torch.zeros(len(ids) * size, sampling.max_completion_length, device=ids.device)

    def __call__(self, logits: Tensor, drawn: Tensor, alive: Tensor) -> Tensor:
        self.entropy[alive, drawn.shape[1]] = entropies(logits, self.temperature)
        return self.drawn_from(logits, drawn, alive)

    def added(self, batch: Batch) -> Batch:
        """The batch that was drawn, with its entropy (B, T)."""
        return replace(batch, entropy=self.entropy[:, : batch.completions.shape[1]])


def token_ids(batch: Batch) -> list[list[int]]:
    """The tokens of each completion, its end token and those of tools included, without padding."""
    places = torch.arange(1, batch.completions.shape[1] + 1, device=batch.group.device)
    lengths = (batch.completion_mask * places).amax(dim=1, keepdim=True)
    return [ids[:length] for length, *ids in torch.cat([lengths, batch.completions], dim=1).tolist()]


def texts(tokenizer: Any, ids: Sequence[Sequence[int]]) -> list[str]:
    """Completions of these tokens as text, without special tokens."""
    return tokenizer.batch_decode(ids, skip_special_tokens=True)


def check_length(model: Any, prompt_length: int, longest: int) -> None:
    """Raise ConfigError where prompt and completion exceed the model's positions, or the window of its attention."""
    for name, what in (("max_position_embeddings", "positions"), ("sliding_window", "tokens of attention")):
        limit = getattr(model.config, name, None)
        if limit and prompt_length + longest > limit:
            raise ConfigError(
                f"a prompt of {prompt_length} tokens and sampling.max_completion_length = {longest} exceed the model's "
                f"{limit} {what} ({name}); shorten one of them"
            )
