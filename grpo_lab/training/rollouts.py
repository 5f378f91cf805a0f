"""Sampling completions token by token.

A prompt is run once per group and its cache expanded to the group's completions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from grpo_lab.algorithm.batch import Batch
from grpo_lab.algorithm.logprobs import entropies
from grpo_lab.config.schema import SamplingConfig
from grpo_lab.errors import ConfigError
from grpo_lab.events import Stage
from grpo_lab.training.sampling_filters import SamplingFilters


def untouched(stage: Stage, value: Any, note: str = "") -> Any:
    """Return the value as it is; replaces Attempt.apply in evaluation, which has no interventions."""
    return value


def encode(tokenizer: Any, prompts: Sequence[str], device: torch.device) -> tuple[Tensor, Tensor]:
    """(P, S) token ids padded on the left, and their mask."""
    encoded = tokenizer(list(prompts), return_tensors="pt", padding=True, padding_side="left")
    return encoded["input_ids"].to(device), encoded["attention_mask"].to(device)


def terminators(model: Any, tokenizer: Any) -> Tensor:
    """(E,) ids of every token that ends a completion. Raises ConfigError where the model names none."""
    ids = model.generation_config.eos_token_id
    listed = ids if isinstance(ids, list) else [ids]
    known = sorted({i for i in [*listed, tokenizer.eos_token_id] if i is not None})
    if not known:
        raise ConfigError("the model names no end token: set eos_token_id in its generation_config.json")
    return torch.tensor(known, device=model.device)


@torch.no_grad()
def sample(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[str],
    num_generations: int,
    sampling: SamplingConfig,
    generator: torch.Generator,
    apply: Callable[..., Any] = untouched,
) -> Batch:
    """Draw `num_generations` completions of each prompt: softmax, then torch.multinomial, one token at a time.

    Rows that have ended leave the computation. `apply` receives the logits and the next-token distribution of every
    token. Raises ConfigError where the model has too few positions or no end token.
    """
    prompt_ids, prompt_mask = encode(tokenizer, prompts, model.device)
    _check_length(model, prompt_ids.shape[1], sampling)
    group = torch.arange(len(prompts), device=model.device).repeat_interleave(num_generations)
    tape = _Tape.blank(len(group), sampling.max_completion_length, tokenizer.pad_token_id, model.device)
    filters = SamplingFilters(sampling, prompt_ids, prompt_mask, group, model.config.vocab_size)
    ends = terminators(model, tokenizer)
    passes = _prompt_pass(model, prompt_ids, prompt_mask, group)
    alive = torch.arange(len(group), device=model.device)
    for position in range(sampling.max_completion_length):
        logits = apply(Stage.LOGITS, passes.logits, "sampling")[:, -1]
        probabilities = apply(Stage.PROBABILITIES, filters(logits.float(), alive).softmax(dim=-1))
        tokens = torch.multinomial(probabilities, 1, generator=generator)
        tape.write(alive, position, tokens, probabilities, entropies(logits, sampling.temperature))
        filters.seen(alive, tokens)
        going = ~torch.isin(tokens[:, 0], ends)
        if position + 1 == sampling.max_completion_length or not going.any():
            break
        if not going.all():
            alive = alive[going]
            passes.cache.batch_select_indices(going.nonzero()[:, 0])
        passes = _token_pass(model, passes.cache, tokens[going], prompt_mask[group[alive]], position)
    return tape.batch(prompt_ids, prompt_mask, group)


@dataclass
class _Pass:
    """The logits (b, t, V) of a forward pass, and the cache to continue from."""

    logits: Tensor
    cache: Any


def _prompt_pass(model: Any, prompt_ids: Tensor, prompt_mask: Tensor, group: Tensor) -> _Pass:
    """Run each prompt once, and expand its last logits (B, 1, V) and its cache to the completions."""
    output = model(
        input_ids=prompt_ids,
        attention_mask=prompt_mask,
        position_ids=(prompt_mask.cumsum(dim=1) - 1).clamp(min=0),
        use_cache=True,
        logits_to_keep=1,
    )
    output.past_key_values.batch_select_indices(group)
    return _Pass(output.logits[group], output.past_key_values)


def _token_pass(model: Any, cache: Any, tokens: Tensor, prompt_mask: Tensor, position: int) -> _Pass:
    """Run further completion tokens (b, t) on top of a cache of the prompt and `position` completion tokens."""
    width = position + tokens.shape[1]
    done = prompt_mask.new_ones(len(tokens), width)
    start = prompt_mask.sum(dim=1, keepdim=True) + position
    output = model(
        input_ids=tokens,
        attention_mask=torch.cat([prompt_mask, done], dim=1),
        position_ids=start + torch.arange(tokens.shape[1], device=tokens.device),
        past_key_values=cache,
        use_cache=True,
    )
    return _Pass(output.logits, output.past_key_values)


@dataclass
class _Tape:
    """The record of sampling: tensors (B, T) with a column for each token."""

    completions: Tensor
    mask: Tensor
    logprobs: Tensor
    entropy: Tensor

    @staticmethod
    def blank(rows: int, width: int, pad: int, device: torch.device) -> _Tape:
        floats = torch.zeros(2, rows, width, device=device)
        tokens = torch.full((rows, width), pad, device=device)
        return _Tape(tokens, torch.zeros(rows, width, dtype=torch.bool, device=device), floats[0], floats[1])

    def write(self, alive: Tensor, column: int, tokens: Tensor, probabilities: Tensor, entropy: Tensor) -> None:
        """Store one token of the rows `alive` (b,): tokens (b, 1), probabilities (b, V) and entropy (b,) in nats."""
        self.completions[alive, column] = tokens[:, 0]
        self.mask[alive, column] = True
        self.logprobs[alive, column] = probabilities.gather(1, tokens)[:, 0].log()
        self.entropy[alive, column] = entropy

    def batch(self, prompt_ids: Tensor, prompt_mask: Tensor, group: Tensor) -> Batch:
        """Cut to the longest completion."""
        width = int(self.mask.sum(dim=1).max())
        columns = (t[:, :width] for t in (self.completions, self.mask, self.logprobs, self.entropy))
        return Batch(prompt_ids, prompt_mask, group, *columns)


def texts(tokenizer: Any, batch: Batch) -> list[str]:
    """The completions as text, without special tokens."""
    lengths = batch.completion_mask.sum(dim=1).tolist()
    rows = [ids[:length] for ids, length in zip(batch.completions.tolist(), lengths, strict=True)]
    return tokenizer.batch_decode(rows, skip_special_tokens=True)


def _check_length(model: Any, prompt_length: int, sampling: SamplingConfig) -> None:
    """Raise ConfigError where prompt and completion exceed the model's positions."""
    limit = getattr(model.config, "max_position_embeddings", None)
    if limit and prompt_length + sampling.max_completion_length > limit:
        raise ConfigError(
            f"a prompt of {prompt_length} tokens and sampling.max_completion_length = "
            f"{sampling.max_completion_length} exceed the model's {limit} positions; shorten one of them"
        )
