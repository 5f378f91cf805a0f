"""Token notes: the few completions of a step that explain its numbers, token by token (`events.CompletionNote`).

The numbers of a micro-batch come while its loss is computed: an observer begins them at the log-ratio, and the recorder
hands on the tensors (b, T) of later links, up to the gradient at the log-ratio. With several processes, the first one
notes completions of its own.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from grpo_lab.core.batch import Batch
from grpo_lab.core.loss import k3, of_tokens
from grpo_lab.events import CompletionNote
from grpo_lab.messages import visible_bytes

LINKS = {"ratio": "ratio", "log_ratio_gradient": "gradient"}
"""Links of the recorder whose tensors a note holds, and the names of its fields."""
WORST = ("log_ratio", "gradient", "kl")
"""The numbers of which the completion with the largest magnitude is kept."""
CHAIN = ("advantage", "old_logprobs", "ref_logprobs", "logprobs", "log_ratio", "ratio", "kl", "gradient")
"""In the order in which a step computes them."""


@dataclass
class _Table:
    """The numbers of a micro-batch."""

    names: Sequence[str]
    """Those of WORST first, then the others of CHAIN, then what describes a token."""
    packed: Tensor
    """(n x T + S, b), in one tensor so that all of a step are moved at once: the names, then the prompts, with -1 where
    they are padded. Completions are columns: numpy is slow at the largest of few numbers that are neighbours."""
    length: int
    """T."""
    update: int
    first: int
    """The number of its first completion in the batch of the step."""
    clip: tuple[float, float] | None

    @functools.cached_property
    def read(self) -> tuple[np.ndarray, np.ndarray]:
        """The numbers (n, T, b), and the prompts (S, b), once they are on the host."""
        columns, end = self.packed.numpy(), len(self.names) * self.length
        return columns[:end].reshape(len(self.names), self.length, -1), columns[end:]


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
        self._begin_step()

    def _begin_step(self) -> None:
        self._last, self._next = ("", -1), 0
        self._waiting: list[_Table] = []
        self._kept: dict[str, tuple[float, _Table, int]] = {}
        """By reason: the size, and the completion as a row of its table."""
        self._usual: list[tuple[_Table, int]] = []

    def tensor(self, link: str, value: Tensor) -> None:
        """Take a tensor (b, T) that the recorder notes; the log-probabilities begin a micro-batch."""
        if link == "logprobs":
            self._finish()
            self._parts = {link: value}
        elif self._about and link == "kl_delta":
            self._parts |= {"kl": self.kl(value)} if self.kl else {}
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

    def flush(self, texts: Texts) -> tuple[CompletionNote, ...]:
        """The notes since the last flush."""
        self._finish()
        if self._waiting:
            shapes = [table.packed.shape for table in self._waiting]
            moved = torch.cat([table.packed.flatten() for table in self._waiting]).cpu()
            for table, packed in zip(self._waiting, moved.split([*map(torch.Size.numel, shapes)]), strict=True):
                table.packed = packed.view(table.packed.shape)
                self._choose(table)
        found: dict[tuple[int, int], tuple[_Table, int, list[str]]] = {}
        usual = [("usual", *place) for place in self._usual]
        for why, table, row in [*((name, table, row) for name, (_, table, row) in self._kept.items()), *usual]:
            # Objectives may share an update and its numbers, so the table tells them apart.
            _, _, reasons = found.setdefault((id(table), row), (table, row, []))
            if why != "usual" or not reasons:
                reasons.append(why)
        self._begin_step()
        return tuple(self._note(table, row, tuple(why), texts) for table, row, why in found.values())

    def _finish(self) -> None:
        """Choose among the completions of the micro-batch at hand, whose numbers are complete."""
        if self._about is None:
            return
        (batch, place, clip), parts = self._about, self._parts
        self._about, self._parts = None, {}
        assert batch.advantages is not None
        first = self._next if place == self._last else 0
        self._last, self._next = place, first + len(batch.group)
        shape = batch.completions.shape
        parts |= {"advantage": of_tokens(batch.advantages).expand(shape), "trained": batch.completion_mask}
        parts |= {"tokens": batch.completions.float()}  # so that all are fp32 together
        for name in ("weights", "old_logprobs", "ref_logprobs"):
            if (value := getattr(batch, name)) is not None:
                parts[name] = value
        names = [name for name in dict.fromkeys((*WORST, *CHAIN[1:], *parts)) if name in parts]
        prompts = batch.prompt_ids.masked_fill(batch.prompt_mask == 0, -1)[batch.group]
        packed = torch.cat([value.t() for value in (*(parts[name] for name in names), prompts)]).detach()
        table = _Table(names, packed, shape[1], place[1], first, clip)
        if packed.is_cuda:
            self._waiting.append(table)
        else:
            self._choose(table)

    def _choose(self, table: _Table) -> None:
        """Keep the completions of a table on the host that are worse than those kept before."""
        (numbers, _), names = table.read, table.names
        worst = [name for name in names if name in WORST]
        sizes = np.fmax.reduce(np.abs(numbers[: len(worst)]), axis=1, initial=-1.0)
        for name, size, row in zip(worst, sizes, sizes.argmax(axis=1).tolist(), strict=True):
            if size[row] > self._kept.get(name, (0.0,))[0]:
                self._kept[name] = float(size[row]), table, row
        if "nonfinite" not in self._kept and not np.isfinite(numbers).all():
            values = dict(zip(names, numbers, strict=True))
            broken = next(values[name] for name in CHAIN if name in names and not np.isfinite(values[name]).all())
            self._kept["nonfinite"] = np.inf, table, int(np.abs(broken.T).argmax()) // table.length
        if not table.first:
            order = sizes[worst.index("gradient" if "gradient" in worst else "log_ratio")].argsort()
            self._usual = [(table, int(order[len(order) * quarter // 4])) for quarter in (1, 2, 3)]

    def _note(self, table: _Table, row: int, why: tuple[str, ...], texts: Texts) -> CompletionNote:
        numbers, prompt = (each[..., row] for each in table.read)
        values = dict(zip(table.names, numbers, strict=True))
        length = int(values["trained"].nonzero()[0][-1:].sum()) + 1
        tokens = tuple(texts.token(each) for each in values["tokens"][:length].astype(int).tolist())
        about = visible_bytes(texts.prompt(tuple(prompt[prompt >= 0].astype(int).tolist())))
        rounded = _rounded(numbers[: table.names.index("advantage"), :length])
        columns: dict[str, Any] = dict(zip(table.names, rounded, strict=False))
        if table.clip and "ratio" in values:
            ratio, gain = values["ratio"][:length], values["advantage"][:length]
            columns["clipped"] = tuple((ratio * gain > ratio.clip(*table.clip) * gain).tolist())
        ((advantage, weight),) = _rounded(np.array([[values["advantage"][0], values["weights"].max()]]))
        return CompletionNote(why, table.first + row, table.update, about, tokens, advantage, weight, **columns)


def _rounded(numbers: np.ndarray) -> list[tuple[float, ...]]:
    """The rows of numbers (n, T) with five digits."""
    found = tuple(map(float, ("%.5g " * numbers.size % tuple(numbers.ravel().tolist())).split()))
    return [found[at : at + numbers.shape[1]] for at in range(0, numbers.size, numbers.shape[1])]


class Texts:
    """The texts of a run's prompts and tokens, each decoded once: many notes have the same ones."""

    def __init__(self, tokenizer: Any) -> None:
        self.prompt = functools.lru_cache(2**10)(lambda ids: str(tokenizer.decode(list(ids))))
        self.token = functools.lru_cache(2**16)(functools.partial(token_text, tokenizer))


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
        return visible_bytes(text)
    return bytes(letters[letter] for letter in name).decode(errors="backslashreplace")


@functools.cache
def _bytes_of_letters() -> dict[str, int]:
    """The bytes that the letters of a byte-level vocabulary stand for."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode  # takes a while to import

    return {letter: byte for byte, letter in bytes_to_unicode().items()}
