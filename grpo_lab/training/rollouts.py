"""Sampling completions token by token.

A prompt is run once per group and its cache expanded to the group's completions.
"""

from __future__ import annotations

import warnings
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from grpo_lab.config.sections import SamplingConfig
from grpo_lab.core.batch import Batch
from grpo_lab.core.hooks import Stage
from grpo_lab.core.logprobs import entropies
from grpo_lab.errors import ConfigError
from grpo_lab.tasks.conversations import Prompt, tokenized
from grpo_lab.training.decoding import Growing
from grpo_lab.training.sampling_filters import SamplingFilters


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
    known = sorted({*_own_terminators(model), *_in_vocabulary(model, [tokenizer.eos_token_id])})
    if not known:
        raise ConfigError(f"no completion could end: {_named(model)}, nor does the tokenizer; {_WAY_OUT}")
    return torch.tensor(known).to(model.device, non_blocking=True)


def check_terminators(model: Any, tokenizer: Any) -> None:
    """Warn of a model that names no end token itself. Raises ConfigError where its completions could not end."""
    ids = terminators(model, tokenizer).tolist()
    if not _own_terminators(model):
        warnings.warn(
            f"{_named(model)}: completions end at the tokenizer's {tokenizer.eos_token!r} ({ids[0]}) alone, and never "
            f"end if the model was not trained with it; {_WAY_OUT}",
            stacklevel=2,
        )


_WAY_OUT = "set eos_token_id in the model's generation_config.json"


def _own_terminators(model: Any) -> list[int]:
    """The end tokens of the model's generation config, without those that its vocabulary lacks."""
    ids = model.generation_config.eos_token_id
    return _in_vocabulary(model, ids if isinstance(ids, list) else [ids])


def _in_vocabulary(model: Any, ids: Sequence[int | None]) -> list[int]:
    return [each for each in ids if each is not None and 0 <= each < model.config.vocab_size]


def _named(model: Any) -> str:
    ids = model.generation_config.eos_token_id
    return f"generation_config.eos_token_id = {ids} names none of the model's {model.config.vocab_size} tokens"


@torch.no_grad()
def sample(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[Prompt],
    num_generations: int,
    sampling: SamplingConfig,
    generator: torch.Generator | Sequence[torch.Generator],
    apply: Callable[..., Any] = untouched,
) -> Batch:
    """Draw `num_generations` completions of each prompt: softmax, then torch.multinomial, one token at a time.

    Rows that have ended leave the computation. Several generators draw for equal shares of the prompts. `apply`
    receives the logits and the next-token distribution of every token. Raises ConfigError where the model has too few
    positions or no end token.
    """
    prompt_ids, prompt_mask = encode(tokenizer, prompts, model.device)
    _check_length(model, prompt_ids.shape[1], sampling)
    group = torch.arange(len(prompts), device=model.device).repeat_interleave(num_generations)
    tape = _Tape.blank(len(group), sampling.max_completion_length, tokenizer.pad_token_id, model.device)
    filters = SamplingFilters(sampling, prompt_ids, prompt_mask, group, model.config.vocab_size)
    ends = terminators(model, tokenizer)
    decoder = Growing(model, prompt_ids, prompt_mask, group, sampling.max_completion_length)
    alive, numbers = torch.arange(len(group), device=model.device), [*range(len(group))]
    generators = [generator] if isinstance(generator, torch.Generator) else generator
    ends_of = [(len(group) * end // len(generators), each) for end, each in enumerate(generators, start=1)]
    for position in range(sampling.max_completion_length):
        logits = apply(Stage.LOGITS, decoder.logits, "sampling")[:, -1].float()
        probabilities = apply(Stage.PROBABILITIES, filters(logits, alive).softmax(dim=-1))
        tokens = _drawn(probabilities, numbers, ends_of)
        tape.write(alive, position, tokens, probabilities, entropies(logits, sampling.temperature))
        filters.seen(alive, tokens)
        ended = torch.isin(tokens[:, 0], ends).tolist()  # the only wait for the device
        going = [row for row, over in enumerate(ended) if not over]
        if position + 1 == sampling.max_completion_length or not going:
            break
        if len(going) < len(numbers):
            kept, numbers = torch.tensor(going).to(alive.device, non_blocking=True), [numbers[row] for row in going]
            alive, tokens = alive[kept], tokens[kept]
            decoder.keep(kept)
        decoder.advance(tokens)
    return tape.batch(prompt_ids, prompt_mask, group, ends)


def streams(purpose: str, count: int) -> list[str]:
    """The purposes of this many random streams; the first one draws as the only one of a run does.

    >>> streams("sampling", 2)
    ['sampling', 'sampling/stream-1']
    """
    return [purpose + (f"/stream-{number}" if number else "") for number in range(count)]


def _drawn(probabilities: Tensor, numbers: Sequence[int], streams: Sequence[tuple[int, torch.Generator]]) -> Tensor:
    """(b, 1) tokens of the rows of these numbers; each stream is a generator and the end of the rows it draws for."""
    (_, first), *others = streams
    if not others:
        return torch.multinomial(probabilities, 1, generator=first)
    ends = [bisect_left(numbers, end) for end, _ in streams]
    parts = zip([0, *ends], ends, streams, strict=False)
    drawn = [torch.multinomial(probabilities[a:b], 1, generator=each) for a, b, (_, each) in parts if b > a]
    return torch.cat(drawn)


@dataclass
class _Tape:
    """The record of sampling: tensors (B, T) with a column for each token."""

    completions: Tensor
    mask: Tensor
    logprobs: Tensor
    entropy: Tensor
    width: int = 0
    """Columns that are written; known here without a wait for the device."""

    @staticmethod
    def blank(rows: int, width: int, pad: int, device: torch.device) -> _Tape:
        floats = torch.zeros(2, rows, width, device=device)
        tokens = torch.full((rows, width), pad, device=device)
        return _Tape(tokens, torch.zeros(rows, width, dtype=torch.bool, device=device), floats[0], floats[1])

    def write(self, alive: Tensor, column: int, tokens: Tensor, probabilities: Tensor, entropy: Tensor) -> None:
        """Store one token of the rows `alive` (b,): tokens (b, 1), probabilities (b, V) and entropy (b,) in nats."""
        self.completions[alive, column] = tokens[:, 0]
        self.mask[:, column].index_fill_(0, alive, True)  # `= True` would copy it to the device, and wait
        self.logprobs[alive, column] = probabilities.gather(1, tokens)[:, 0].log()
        self.entropy[alive, column] = entropy
        self.width = column + 1

    def batch(self, prompt_ids: Tensor, prompt_mask: Tensor, group: Tensor, ends: Tensor) -> Batch:
        """Cut to the longest completion; `ends` (E,) are the tokens that end one."""
        columns = (t[:, : self.width] for t in (self.completions, self.mask, self.logprobs, self.entropy))
        ended = (torch.isin(self.completions, ends) & self.mask).any(dim=1)
        return Batch(prompt_ids, prompt_mask, group, *columns, ended=ended)


def token_ids(batch: Batch) -> list[list[int]]:
    """The tokens of each completion, its end token included, without padding."""
    lengths = batch.completion_mask.sum(dim=1, keepdim=True)
    return [ids[:length] for length, *ids in torch.cat([lengths, batch.completions], dim=1).tolist()]


def texts(tokenizer: Any, ids: Sequence[Sequence[int]]) -> list[str]:
    """Completions of these tokens as text, without special tokens."""
    return tokenizer.batch_decode(ids, skip_special_tokens=True)


def _check_length(model: Any, prompt_length: int, sampling: SamplingConfig) -> None:
    """Raise ConfigError where prompt and completion exceed the model's positions, or the window of its attention."""
    for name, what in (("max_position_embeddings", "positions"), ("sliding_window", "tokens of attention")):
        limit = getattr(model.config, name, None)
        if limit and prompt_length + sampling.max_completion_length > limit:
            raise ConfigError(
                f"a prompt of {prompt_length} tokens and sampling.max_completion_length = "
                f"{sampling.max_completion_length} exceed the model's {limit} {what} ({name}); shorten one of them"
            )
