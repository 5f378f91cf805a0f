"""Token notes: the few completions of a step that explain its numbers, token by token (`events.CompletionNote`).

The numbers of a micro-batch come while its loss is computed: an observer begins them at the log-ratio, and the recorder
hands on the tensors (b, T) of later links, up to the gradient at the log-ratio. With several processes, the first one
notes completions of its own.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from grpo_lab.core.batch import Batch
from grpo_lab.core.loss import k3, of_tokens
from grpo_lab.events import CompletionNote

LINKS = {"ratio": "ratio", "kl_delta": "kl", "log_ratio_gradient": "gradient"}
"""The tensors of the recorder that a note holds, by its field."""
WORST = ("log_ratio", "gradient", "kl")
"""The numbers of which the completion with the largest magnitude is kept."""
CHAIN = ("advantage", "old_logprobs", "ref_logprobs", "logprobs", "log_ratio", "ratio", "kl", "gradient")
"""In the order in which a step computes them."""


class _Row(NamedTuple):
    """A completion of a micro-batch: its number in the batch of the step, and (n, T) values by name."""

    update: int
    number: int
    prompt: list[int]
    """Token ids, without padding."""
    values: dict[str, np.ndarray]
    clip: tuple[float, float] | None


class _Table(NamedTuple):
    """The numbers of a micro-batch, in one tensor: of each name (b, T), then the prompts (b, S), -1 where padded."""

    names: Sequence[str]
    shape: torch.Size
    """(n, b, T)."""
    packed: Tensor
    """On their device, so that all of a step are moved at once."""
    update: int
    first: int
    """The number of its first completion in the batch of the step."""
    clip: tuple[float, float] | None


class TokenNotes:
    """Keeps of a step at most seven completions: the worst of each of WORST, the first with a value that is not finite,
    and three at the quartiles of the gradients of the last update.

    A CPU's numbers are read at once, those of a GPU at `flush`; see recorder.py.
    """

    def __init__(self) -> None:
        self.kl: Callable[[Tensor], Tensor] | None = k3
        """The estimate of the run's loss; None for one of the user's own, which is called for the loss alone."""
        self._parts: dict[str, Tensor] = {}
        self._about: tuple[Batch, tuple[str, int], tuple[float, float] | None] | None = None
        self._last, self._next = ("", -1), 0
        self._waiting: list[_Table] = []
        self._kept: dict[str, tuple[float, _Row]] = {}
        self._usual: list[_Row] = []
        self._texts: dict[int, str] = {}

    def tensor(self, link: str, value: Tensor) -> None:
        """Take a tensor (b, T) that the recorder notes; the log-probabilities begin a micro-batch."""
        if link == "logprobs":
            self._finish()
            self._parts = {link: value}
        elif self._about and link == "kl_delta":
            self._parts |= {LINKS[link]: self.kl(value)} if self.kl else {}
        elif self._about and link in LINKS:
            self._parts[LINKS[link]] = value
            if link == "log_ratio_gradient":
                self._finish()

    def begin(
        self, batch: Batch, objective: str, update: int, log_ratio: Tensor, clip: tuple[float, float] | None
    ) -> None:
        """Begin a micro-batch with its log-ratios, before any guard, and the range that PPO clips ratios to."""
        if batch.advantages is not None and batch.weights is not None and "logprobs" in self._parts:
            self._about = batch, (objective, update), clip
            self._parts["log_ratio"] = log_ratio

    def flush(self, tokenizer: Any) -> tuple[CompletionNote, ...]:
        """The notes since the last flush."""
        self._finish()
        if self._waiting:
            ends = np.cumsum([len(table.packed) for table in self._waiting])[:-1]
            moved = torch.cat([table.packed for table in self._waiting]).cpu().numpy()
            for table, packed in zip(self._waiting, np.split(moved, ends), strict=True):
                self._choose(table, packed)
        rows, whys = dict[tuple[int, int], _Row](), dict[tuple[int, int], list[str]]()
        usual = [("usual", row) for row in self._usual]
        for why, row in [*((name, row) for name, (_, row) in self._kept.items()), *usual]:
            key = row.update, row.number
            if why != "usual" or key not in rows:
                rows[key] = row
                whys.setdefault(key, []).append(why)
        self._waiting, self._kept, self._usual, self._last, self._next = [], {}, [], ("", -1), 0
        return tuple(self._note(rows[key], tuple(why), tokenizer) for key, why in whys.items())

    def _finish(self) -> None:
        """Choose among the completions of the micro-batch at hand, whose numbers are complete."""
        if self._about is None:
            return
        (batch, place, clip), parts = self._about, self._parts
        self._about, self._parts = None, {}
        assert batch.advantages is not None
        first = self._next if place == self._last else 0
        self._last, self._next = place, first + len(batch.group)
        parts |= {
            "tokens": batch.completions,
            "trained": batch.completion_mask,
            "advantage": of_tokens(batch.advantages),
        }
        for name in ("weights", "old_logprobs", "ref_logprobs"):
            if (found := getattr(batch, name)) is not None:
                parts[name] = found
        numbers = torch.stack([each.detach().float().expand(batch.completions.shape) for each in parts.values()])
        prompts = batch.prompt_ids.masked_fill(batch.prompt_mask == 0, -1)[batch.group]
        packed = torch.cat([numbers.flatten(), prompts.flatten()])
        table = _Table(tuple(parts), numbers.shape, packed, place[1], first, clip)
        if packed.is_cuda:
            self._waiting.append(table)
        else:
            self._choose(table, packed.numpy())

    def _choose(self, table: _Table, packed: np.ndarray) -> None:
        numbers, prompts = np.split(packed, [table.shape.numel()])
        numbers, prompts = numbers.reshape(table.shape), prompts.reshape(table.shape[1], -1).astype(int)

        def row_of(row: int) -> _Row:
            own = {name: each[row] for name, each in values.items()}
            prompt = prompts[row][prompts[row] >= 0].tolist()
            return _Row(table.update, table.first + row, prompt, own, table.clip)

        values = dict(zip(table.names, numbers, strict=True))
        sizes = {name: np.fmax.reduce(np.abs(values[name]), axis=1, initial=-1.0) for name in WORST if name in values}
        for name, size in sizes.items():
            row = int(size.argmax())
            if size[row] > self._kept.get(name, (0.0,))[0]:
                self._kept[name] = float(size[row]), row_of(row)
        if "nonfinite" not in self._kept and not np.isfinite(numbers).all():
            broken = next(values[name] for name in CHAIN if name in values and not np.isfinite(values[name]).all())
            self._kept["nonfinite"] = np.inf, row_of(int(np.abs(broken).argmax()) // broken.shape[1])
        if not table.first:
            order = sizes["gradient" if "gradient" in sizes else "log_ratio"].argsort()
            self._usual = [row_of(int(order[len(order) * quarter // 4])) for quarter in (1, 2, 3)]

    def _note(self, row: _Row, why: tuple[str, ...], tokenizer: Any) -> CompletionNote:
        values, length = row.values, int(np.flatnonzero(row.values["trained"])[-1:].sum()) + 1
        ids = values["tokens"][:length].astype(int).tolist()
        self._texts |= {each: token_text(tokenizer, each) for each in ids if each not in self._texts}
        columns: dict[str, Any] = {name: _rounded(values[name][:length]) for name in CHAIN[1:] if name in values}
        if row.clip and "ratio" in values:
            ratio, gain = values["ratio"][:length], values["advantage"][:length]
            columns["clipped"] = tuple((ratio * gain > ratio.clip(*row.clip) * gain).tolist())
        advantage, weight = _rounded(np.array([values["advantage"][0], values["weights"].max()]))
        prompt, texts = _without_broken(tokenizer.decode(row.prompt)), tuple(self._texts[each] for each in ids)
        return CompletionNote(why, row.number, row.update, prompt, texts, advantage, weight, **columns)


def _rounded(numbers: np.ndarray) -> tuple[float, ...]:
    """The numbers with five digits."""
    return tuple(map(float, ("%.5g " * len(numbers) % tuple(numbers.tolist())).split()))


def token_text(tokenizer: Any, token: int) -> str:
    """A token as text: a special one by its name, and bytes that are no whole letter as `\\xef`."""
    text = tokenizer.decode([token])
    if "\ufffd" not in text:
        return text
    name = tokenizer.convert_ids_to_tokens(token)
    if byte := re.fullmatch(r"<0x([0-9A-F]{2})>", name):
        return f"\\x{byte[1].lower()}"
    letters = _bytes_of_letters()
    if not all(letter in letters for letter in name):
        return _without_broken(text)
    return bytes(letters[letter] for letter in name).decode(errors="backslashreplace")


@functools.cache
def _bytes_of_letters() -> dict[str, int]:
    """The bytes that the letters of a byte-level vocabulary stand for."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode  # takes a while to import

    return {letter: byte for byte, letter in bytes_to_unicode().items()}


def _without_broken(text: str) -> str:
    """The text with a mark for each byte that its decoder lost."""
    return text.replace("\ufffd", r"\x??")
