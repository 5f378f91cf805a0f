"""Prompts with the completions that SFT teaches: read, checked before training, and padded or packed into batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from grpo_lab.config.schema import Config
from grpo_lab.core.batch import Batch
from grpo_lab.errors import ConfigError, DataError
from grpo_lab.tasks import sft_data, tasks
from grpo_lab.tasks.conversations import tokenized
from grpo_lab.training import passes, rollouts
from grpo_lab.training.passes import Head, Packing, Pass


@dataclass(frozen=True)
class Row:
    """Token ids: those of a prompt, and those of its completion with an end token."""

    prompt: list[int]
    completion: list[int]


@dataclass(frozen=True)
class Demonstrations:
    """The rows of a file, and the pass of a model over a batch of them."""

    rows: Sequence[Row]
    pad: int
    run: Pass

    def batch(self, seed: int, step: int, size: int, device: torch.device) -> Batch:
        """The rows of one step, drawn as `Tasks.batch` draws problems: one completion for each prompt."""
        drawn = tasks.drawn(self.rows, seed, step, size)
        prompt_ids, prompt_mask = _padded([row.prompt[::-1] for row in drawn], self.pad, device)
        completions, mask = _padded([row.completion for row in drawn], self.pad, device)
        unknown = torch.zeros(completions.shape, device=device)
        group = torch.arange(size, device=device)
        return Batch(prompt_ids.flip(1), prompt_mask.flip(1).long(), group, completions, mask, unknown, unknown)


def load(config: Config, model: Any, tokenizer: Any) -> Demonstrations:
    """The demonstrations of a config for a model.

    Raises DataError, naming file and line, for a file that cannot be read, for a row without a completion and for one
    that is too long; ConfigError for packing with a model that the mask of a packed sequence does not fit.
    """
    named = config.model.prompt_pass
    if config.sft.packing and named != "shared":
        raise ConfigError(f"sft.packing needs model.prompt_pass=shared, and it is {named}; set sft.packing=off")
    problems = sft_data.load(config.sft.data)
    completions = {place: problem.columns.get("completion") for place, problem in problems.items()}
    for place, text in completions.items():
        if not isinstance(text, str) or not text:
            raise DataError(f'{place}: "completion" is {text!r}; it must be a string of at least one character')
    # As in GRPO, a prompt is encoded alone, and the tokens of its completion follow it.
    prompts = tokenized(tokenizer, [problem.prompt for problem in problems.values()]).input_ids
    answers = tokenizer(list(completions.values()), add_special_tokens=False).input_ids
    ends = [[end] for end in rollouts.terminators(model, tokenizer).tolist()]
    end = [tokenizer.eos_token_id] if [tokenizer.eos_token_id] in ends else ends[0]
    rows = [Row(p, a if a[-1:] in ends else a + end) for p, a in zip(prompts, answers, strict=True)]
    for place, row in zip(problems, rows, strict=True):
        _check_length(row, config.sft.max_length, model, place)
    packed = partial(packed_pass, length=config.sft.max_length)
    return Demonstrations(rows, tokenizer.pad_token_id, packed if config.sft.packing else passes.PASSES[named])


def packed_pass(model: Any, batch: Batch, length: int) -> tuple[Tensor, Head]:
    """Rows behind each other in sequences of at most `length` tokens; none sees another, and positions begin anew."""
    return passes.packed(model, pack(batch, length))


def pack(batch: Batch, length: int) -> Packing:
    """The sequences of a batch with one completion for each prompt: the longest rows first, each where it first fits.

    A row's last token predicts nothing and is left out. The host lays the rows out, so that it waits a few times only.
    """
    given = (batch.prompt_ids, batch.prompt_mask, batch.completions, batch.completion_mask)
    prompt_ids, prompt_mask, completions, mask = (tensor.cpu() for tensor in given)
    prompts, answers = prompt_mask.sum(dim=1).tolist(), mask.sum(dim=1).tolist()
    sizes = [prompt + answer - 1 for prompt, answer in zip(prompts, answers, strict=True)]
    filled: list[int] = []
    places = [(0, 0)] * len(sizes)
    for row in sorted(range(len(sizes)), key=lambda row: -sizes[row]):
        at = next((at for at, used in enumerate(filled) if used + sizes[row] <= length), len(filled))
        filled += [0] * (at == len(filled))
        places[row] = at, filled[at]
        filled[at] += sizes[row]
    width = max(filled)
    tokens, positions = torch.zeros(2, len(filled), width, dtype=torch.long)
    segments = torch.full_like(tokens, -1)
    predicts = torch.zeros(completions.shape, dtype=torch.long)
    for row, (at, first) in enumerate(places):
        slots = slice(first, first + sizes[row])
        ids = torch.cat([prompt_ids[row][prompt_mask[row] > 0], completions[row][: answers[row] - 1]])
        tokens[at, slots], segments[at, slots] = ids, row + 1
        positions[at, slots] = torch.arange(sizes[row])
        start = at * width + first + prompts[row] - 1
        predicts[row, : answers[row]] = torch.arange(start, start + answers[row])
    return Packing(
        *(each.to(batch.group.device, non_blocking=True) for each in (tokens, positions, segments, predicts))
    )


def _padded(rows: Sequence[list[int]], pad: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """(N, T) token ids padded on the right, and where they are real."""
    lengths = torch.tensor([len(row) for row in rows])
    mask = torch.arange(int(lengths.max())) < lengths[:, None]
    ids = torch.full(mask.shape, pad).masked_scatter(mask, torch.tensor([token for row in rows for token in row]))
    return ids.to(device, non_blocking=True), mask.to(device, non_blocking=True)


def _check_length(row: Row, limit: int, model: Any, where: str) -> None:
    """Raise DataError for a row with more tokens than the limit, or than the model has positions."""
    size, positions = len(row.prompt) + len(row.completion), getattr(model.config, "max_position_embeddings", limit)
    if size > min(limit, positions):
        what = f"sft.max_length = {limit}" if limit < positions else f"the {positions} positions of the model"
        raise DataError(
            f"{where}: prompt, completion and end token are {size} tokens > {what}; a cut completion would have no "
            "end, so none is cut: shorten it" + (", or raise sft.max_length" if limit < positions else "")
        )
