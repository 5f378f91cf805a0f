"""The chain recorder: for every link of a step, its magnitude and how many elements are not finite.

`runs/first_break.py` names the first link that is not finite from these notes.

On CUDA notes stay on the device until `flush`, which moves them in one transfer, so that recording costs one
synchronisation. On a CPU their numbers are read at once: small tensors that are kept between the large ones of a step
fragment the heap, and the process can become several times as large.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from grpo_lab.core.batch import Batch
from grpo_lab.core.hooks import Context, Stage
from grpo_lab.errors import ModelError
from grpo_lab.events import LinkNote
from grpo_lab.metrics import of_objective
from grpo_lab.training.token_notes import TokenNotes

LOCATE_LIMIT = 2**14
"""Largest number of elements of a tensor whose worst element is located; in larger ones the search is too slow."""
LARGEST = {"grad_norm", "ratio/max", "log_ratio/max", "sampling/sampling_logp_difference/max"}
"""Metrics of which a step keeps the largest value; of the others it keeps the mean over its updates."""
SUMMED = {"loss", "num_tokens", "judge/time"}
"""Metrics that are added up over the objectives of a run."""
PART = 2**22
"""Elements counted at once, so that counting needs no second tensor of the size of the logits."""
SAMPLE = 256
"""Elements of a tensor, or of MOST_TENSORS tensors together, that a histogram counts: every n-th."""
MOST_TENSORS = 4
"""Weights, or their gradients or moments, that a histogram counts."""
DECADES = [*(10.0**power for power in range(-7, 8)), math.inf]
"""The upper ends of the buckets of a histogram, which do not belong to them."""
PROMPT_LENGTH = 60
"""Characters of a prompt that a note keeps."""
Number = Tensor | float
"""A number (), or numbers (n,), that may still be on a GPU."""


Sample = Tensor | np.ndarray
Key = tuple[str, int, str]
"""Link, update and pass of a note; notes of one key are merged."""


class _Pending(NamedTuple):
    """A note whose numbers may still be on a GPU."""

    key: Key
    statistics: Sequence[Number]
    read: Callable[[Sequence[float], tuple[int, ...]], LinkNote]
    """The note, from the statistics once they are on the host, and its histogram."""
    sample: Sample | None = None
    """The elements that the histogram counts."""


class Notes(NamedTuple):
    """Notes and metrics of a part of a step, as numbers that another process can read."""

    links: Sequence[tuple[Key, LinkNote]]
    metrics: Sequence[tuple[str, str, int, float]]


class Recorder:
    """Collects the notes and metrics of one step, in order of time."""

    def __init__(self) -> None:
        self._listed: tuple[Any, tuple[str, ...], tuple[Tensor, ...]] = None, (), ()
        self._pending: list[_Pending] = []
        self._metrics: list[tuple[str, str, int, Number]] = []
        self.completions = TokenNotes()
        self.objective = ""
        """Name of the objective to which the next notes and metrics belong, "" for all together."""
        self.context: Context | None = None
        """The step, whose micro-batch says whose completion a row is; None outside of a run."""
        self.decode: Callable[[tuple[int, ...]], str] | None = None
        """From tokens to the text of a prompt."""
        self._whole: dict[str, Batch] = {}
        """The step's batch, by objective."""
        self._rows: dict[tuple[int, int], tuple[list[int], list[tuple[int, ...]]]] = {}
        """Of each batch of the notes that are being read."""

    def metric(self, name: str, value: Tensor, update: int = 0) -> None:
        """Note one number, a tensor (). Micro-batches of one update add up; see LARGEST for several updates."""
        self._metrics.append((name, self.objective, update, _read(value.detach())))

    def metrics(self, values: Mapping[str, Tensor], update: int = 0) -> None:
        """Note each of these tensors () as `metric` does."""
        for name, value in values.items():
            self.metric(name, value, update)

    def rewards(self, values: Tensor, scorable: Tensor, number: int = 0) -> None:
        """Note the mean and the spread of the rewards (P, G) that are going to be used; nothing where none is scorable.

        A step may draw several times (`number`); its metric is the mean over the draws.
        """
        if not len(scored := values[scorable]):
            return
        count = scorable.sum(dim=1)
        mean = values.masked_fill(~scorable, 0.0).sum(dim=1) / count.clamp(min=1)
        squares = (values - mean[:, None]).square().masked_fill(~scorable, 0.0).sum(dim=1)
        spread = (squares / (count - 1).clamp(min=1)).sqrt()
        self.metric("reward", scored.mean(), number)
        self.metric("reward_std", spread.mean(), number)
        self.metric("frac_reward_zero_std", (spread == 0).float().mean(), number)

    def batch(self, batch: Batch, ends: Tensor) -> None:
        """Note lengths, entropy and log-probabilities of a batch; completions end with one of the tokens (E,)."""
        self._whole[self.objective] = batch
        mask = batch.completion_mask
        for link, values in (("old_logprobs", batch.old_logprobs), ("ref_logprobs", batch.ref_logprobs)):
            if values is not None:
                self.tensor(link, values)
        ended = (torch.isin(batch.completions, ends) & mask).any(dim=1)
        lengths = mask.sum(dim=1).float()
        self.metric("completions/mean_length", lengths.mean())
        self.metric("completions/clipped_ratio", 1 - ended.float().mean())
        self.metric("num_tokens", lengths.sum())
        assert batch.entropy is not None
        self.metric("entropy", batch.entropy[mask].mean())

    def tensor(self, link: str, value: Tensor, update: int = 0, note: str = "") -> None:
        """Note a tensor of any shape: extremes, number of elements not finite, and place of the worst one.

        The histogram counts a sample of SAMPLE elements.
        """
        seen = value.detach()
        if not seen.numel():
            return
        self.completions.tensor(link, seen)
        located = bool(value.shape) and seen.numel() <= LOCATE_LIMIT
        self._note(link, update, note, seen, [_read(seen.abs().argmax())] if located else [])

    def chunk(self, link: str, value: Tensor, update: int, note: str) -> None:
        """Note a part of a tensor that is never there as a whole; notes of one link, update and pass are merged."""
        self._note(link, update, note, value, [])

    def _note(self, link: str, update: int, note: str, value: Tensor, place: Sequence[Number]) -> None:
        key = link, update, f"{self.objective} {note}".strip()
        of_step = self.context is None or link in ("old_logprobs", "ref_logprobs", Stage.REWARDS, Stage.ADVANTAGES)
        batch = None if of_step or self.context is None else self.context.batch
        owner = partial(self._owner, link, self.objective if of_step else None, batch)
        read = partial(_tensor_note, key, tuple(value.shape), len(place), owner)
        of_token = note == "sampling" or link == Stage.PROBABILITIES  # the first token stands for all of them
        again = of_token and any(each.key == key for each in self._pending[-2:])
        statistics = [*place, *extremes(value)]  # reads all elements, so that the sample finds its own in the cache
        self._pending.append(_Pending(key, statistics, read, None if again else sample_of([value])))

    def _owner(
        self, link: str, objective: str | None, batch: Batch | None, index: Sequence[int], shape: Sequence[int]
    ) -> tuple[dict[str, float], str]:
        """Prompt, completion and token of an element, from 1, and the text of the prompt; nothing if it has none.

        A completion's number counts those of its prompt that are in the batch.
        """
        of_prompts = link in (Stage.REWARDS, Stage.ADVANTAGES)
        batch = batch if objective is None else self._whole.get(objective)
        if batch is None or shape[0] != len(batch.prompt_ids if of_prompts else batch.group):
            return {}, ""
        key = id(batch.group), id(batch.prompt_ids)  # the batches of a step mostly share them
        groups, prompts = self._rows.get(key) or self._rows.setdefault(key, _rows(batch))
        group = index[0] if of_prompts else groups[index[0]]
        number = index[1] if of_prompts else groups[: index[0]].count(group)
        token = {} if of_prompts else {"token": index[1] + 1.0}
        words = self.decode(prompts[group]) if self.decode else ""
        return {"prompt": group + 1.0, "completion": number + 1.0, **token}, words[-PROMPT_LENGTH:]

    @torch.no_grad()
    def parameters(
        self,
        link: str,
        names: Sequence[str],
        tensors: Sequence[Tensor],
        update: int = 0,
        facts: dict[str, float] | None = None,
    ) -> Tensor:
        """Note a tensor per parameter by their 2-norms, and return those norms (tensors,) in fp32.

        The histogram counts a sample of MOST_TENSORS of them.
        Elements that are not finite are counted at `flush`, and only where a norm is not finite.
        Raises ModelError where there is no tensor.
        """
        if not tensors:
            raise ModelError(f"nothing to note for {link}: no parameter has a gradient; is the whole model frozen?")
        norms = torch.stack(torch._foreach_norm(tensors, 2, dtype=torch.float32))  # type: ignore[attr-defined]
        numel = sum(tensor.numel() for tensor in tensors)
        key = link, update, ""
        sample = sample_of(tensors[:: -(-len(tensors) // MOST_TENSORS)])
        read = partial(_parameters_note, key, names, tensors, numel, facts or {})
        self._pending.append(_Pending(key, [norms], read, sample))
        return norms

    def moments(
        self, names: Sequence[str], parameters: Sequence[Tensor], optimizer: Optimizer, eps: float, update: int
    ) -> None:
        """Note the moments of AdamW; another optimizer has none, nor has a weight without a gradient."""
        facts = {"adam_eps": eps, "adam_eps_in_weights_dtype": float(torch.tensor(eps, dtype=parameters[0].dtype))}
        states = [(name, optimizer.state.get(p, {})) for name, p in zip(names, parameters, strict=True)]
        held = [(name, state[of]) for of in ("exp_avg", "exp_avg_sq") for name, state in states if of in state]
        if held:
            of_names, tensors = zip(*held, strict=True)
            self.parameters("moments", of_names, tensors, update, facts)

    def named_parameters(self, policy: Any) -> tuple[tuple[str, ...], tuple[Tensor, ...]]:
        """Names and tensors of a policy's trained parameters, listed once: that takes about as long as reading all."""
        if self._listed[0] is not policy:
            trained = dict(trained_parameters(policy))
            self._listed = policy, tuple(trained), tuple(trained.values())
        return self._listed[1:]

    def named_gradients(self, policy: Any) -> tuple[list[str], list[Tensor]]:
        """Names and gradients (of the parameter's shape) of the trained parameters that have one."""
        named = [(name, p.grad) for name, p in zip(*self.named_parameters(policy), strict=True) if p.grad is not None]
        return [name for name, _ in named], [gradient for _, gradient in named]

    def count_now(self) -> float:
        """Count the broken elements of the last parameters before a guard changes them in place, and release these.

        Return the norm over all of them; both with one synchronisation.
        """
        last = self._pending[-1]
        (norms,) = last.statistics
        assert isinstance(norms, Tensor)
        total, *each = torch.hstack([norms.norm(), norms]).tolist()
        note = last.read(each, ())
        self._pending[-1] = last._replace(statistics=(), read=lambda _, counts: replace(note, histogram=counts))
        return total

    def mark(self) -> tuple[int, int]:
        """The place in the step's notes and metrics from which `take` takes them."""
        return len(self._pending), len(self._metrics)

    def take(self, mark: tuple[int, int] = (0, 0)) -> Notes:
        """Take away the notes and metrics since the mark, moved to the host at once."""
        self._rows = {}
        pending, self._pending = self._pending[mark[0] :], self._pending[: mark[0]]
        metrics, self._metrics = self._metrics[mark[1] :], self._metrics[: mark[1]]
        statistics = [number for note in pending for number in note.statistics]
        samples = [note.sample for note in pending if note.sample is not None]
        on_device = [sample for sample in samples if isinstance(sample, Tensor)]
        numbers = _on_host([*on_device, *statistics, *(row[-1] for row in metrics)])
        read = [np.fromiter(numbers, float, len(each)) if isinstance(each, Tensor) else each for each in samples]
        histograms = _histograms(read) if read else iter(())
        links = []
        for note in pending:
            count = sum(number.numel() if isinstance(number, Tensor) else 1 for number in note.statistics)
            histogram = () if note.sample is None else next(histograms)
            links.append((note.key, note.read([*itertools.islice(numbers, count)], histogram)))
        return Notes(links, [(name, whose, update, next(numbers)) for name, whose, update, _ in metrics])

    def put(self, notes: Notes, rank: int) -> None:
        """Add the notes and metrics of a process; those of several processes are merged like those of micro-batches."""
        for key, note in notes.links:
            self._pending.append(_finished(key, replace(note, where=f"rank {rank} {note.where}".strip())))
        self._metrics += notes.metrics

    def flush(self) -> tuple[tuple[LinkNote, ...], dict[str, float]]:
        """The notes and metrics since the last flush, moved to the host at once.

        Notes of one link, update and pass are merged.
        """
        notes = self.take()
        merged: dict[Key, LinkNote] = {}
        for key, note in notes.links:
            merged[key] = _worse(merged[key], note) if key in merged else note
        self._whole.clear()
        return tuple(merged.values()), _reduce(notes.metrics)


def _reduce(metrics: Iterable[tuple[str, str, int, float]]) -> dict[str, float]:
    """One number a name, and one for each objective: see Recorder.metric.

    The number of all objectives is their mean, but for those in SUMMED and LARGEST. NaN wins over any number.
    """
    by_name: dict[str, dict[str, dict[int, list[float]]]] = {}
    for name, objective, update, value in metrics:
        by_name.setdefault(name, {}).setdefault(objective, {}).setdefault(update, []).append(value)
    reduced = {}
    for name, objectives in by_name.items():
        if name in LARGEST:
            each = {whose: float(np.max([*itertools.chain(*found.values())])) for whose, found in objectives.items()}
            reduced[name] = float(np.max([*each.values()]))
        else:
            each = {whose: sum(map(sum, updates.values())) / len(updates) for whose, updates in objectives.items()}
            reduced[name] = sum(each.values()) / (1 if name in SUMMED else len(each))
        reduced |= {of_objective(name, objective): value for objective, value in each.items() if objective}
    return reduced


def extremes(value: Tensor) -> list[Number]:
    """The smallest and the largest element of a tensor (N, …), 0 without any, and counts of broken ones, by part.

    They are counted at once, because a guard may mend them in place.
    """
    if not value.numel():
        return [0.0, 0.0]
    low, high = (_read(number) for number in torch.aminmax(value))  # NaN where any element is
    if not isinstance(low, Tensor) and math.isfinite(low) and math.isfinite(high):
        return [low, high]
    value = torch.atleast_1d(value)
    parts = value.split(max(1, PART * len(value) // value.numel()))
    return [low, high, *(_read((part - part).count_nonzero()) for part in parts)]  # 0 unless an element is NaN or inf


def sample_of(tensors: Sequence[Tensor]) -> Sample:
    """Every n-th element (n,) of tensors of any shape, SAMPLE at most, without a copy of a tensor or a wait for it."""
    parts = [_every(each.detach(), -(-each.numel() * len(tensors) // SAMPLE)) for each in tensors]
    if isinstance(parts[0], Tensor):
        return torch.cat(parts).float()  # type: ignore[arg-type]
    return np.concatenate(parts) if parts[1:] else parts[0]  # type: ignore[arg-type]


def _every(value: Tensor, step: int) -> Sample:
    while value.shape and math.gcd(step, value.shape[-1]) > 1:
        step += 1  # so that it goes through all columns
    if value.is_cpu and value.dtype != torch.bfloat16:
        numbers = value.numpy()  # takes a sixth of the time of torch
        return numbers.reshape(-1)[::step].copy() if value.is_contiguous() else numbers.flat[::step]
    if value.is_contiguous():
        return value.view(-1)[::step]
    return value[torch.unravel_index(torch.arange(0, value.numel(), step, device=value.device), value.shape)]


def _histograms(samples: Sequence[np.ndarray]) -> Iterator[tuple[int, ...]]:
    """`LinkNote.histogram` of each sample (n,), counted in one pass; a NaN lies behind the last bucket."""
    width, lengths = len(DECADES) + 1, [len(each) for each in samples]
    places = _ENDS.searchsorted(np.abs(np.concatenate(samples)), side="right")
    places += np.repeat(width * np.arange(len(samples)), lengths)
    counts = np.bincount(places, minlength=width * len(samples)).reshape(-1, width)
    return (tuple(row) for row in counts[:, :-1].tolist())


_ENDS = np.array(DECADES, dtype=np.float32)


def _rows(batch: Batch) -> tuple[list[int], list[tuple[int, ...]]]:
    """The prompt's row of each completion, and the tokens of each prompt without padding, moved at once."""
    groups, (count, _) = len(batch.group), batch.prompt_ids.shape
    together = [batch.group, batch.prompt_mask.sum(dim=1), batch.prompt_ids.flatten()]
    numbers = torch.cat(together).tolist()
    lengths, ids = numbers[groups : groups + count], numbers[groups + count :]
    width = len(ids) // max(1, count)
    ends = [(row + 1) * width for row in range(count)]
    return numbers[:groups], [tuple(ids[end - length : end]) for end, length in zip(ends, lengths, strict=True)]


def _read(number: Tensor) -> Number:
    """A number as `flush` will find it: still on its device where reading it would wait."""
    return number if number.is_cuda else number.item()


def _on_host(numbers: Sequence[Number]) -> Iterator[float]:
    """Yield all numbers in turn; those that are still on a device are moved at once."""
    by_type: dict[torch.dtype, list[Tensor]] = {}  # to join tensors of several types launches a copy of each
    for number in numbers:
        if isinstance(number, Tensor):
            by_type.setdefault(number.dtype, []).append(number)
    joined = {dtype: torch.hstack(tensors).double() for dtype, tensors in by_type.items()}
    values = iter(torch.cat([*joined.values()]).tolist()) if joined else iter(())
    moved = {dtype: iter([*itertools.islice(values, len(each))]) for dtype, each in joined.items()}
    for number in numbers:
        yield from itertools.islice(moved[number.dtype], number.numel()) if isinstance(number, Tensor) else (number,)


def trained_parameters(policy: Any) -> list[tuple[str, Tensor]]:
    """Names and tensors of the parameters that are trained."""
    return [(name, parameter) for name, parameter in policy.named_parameters() if parameter.requires_grad]


def count_nonfinite(tensors: Sequence[Tensor]) -> int:
    """Number of elements of these tensors, of any shape, that are NaN or inf, counted with one transfer."""
    return int(torch.stack([(~tensor.isfinite()).sum() for tensor in tensors]).sum())


def _finished(key: Key, note: LinkNote) -> _Pending:
    return _Pending(key, (), lambda numbers, histogram: note)


def _tensor_note(
    key: Key,
    shape: tuple[int, ...],
    places: int,
    owner: Callable[..., tuple[dict[str, float], str]],
    numbers: Sequence[float],
    histogram: tuple[int, ...],
) -> LinkNote:
    """The note of a tensor from the place of its worst element (`places` is 0 without one), extremes, and counts of
    broken elements."""
    (link, update, where), prompt = key, ""
    place, (low, high, *broken) = numbers[:places], numbers[places:]
    facts = {"lowest": low, "highest": high}
    if place:
        index = [int(each) for each in np.unravel_index(int(place[0]), shape)]
        where = f"{where} {index}".strip()
        of_batch, prompt = owner(index, shape)
        facts |= of_batch
    magnitude = max(abs(low), abs(high))  # both are NaN where any element is
    return LinkNote(
        link, update, magnitude, float(sum(broken)), math.prod(shape), where, facts, shape, histogram, prompt
    )


def _parameters_note(
    key: Key,
    names: Sequence[str],
    tensors: Sequence[Tensor],
    numel: int,
    facts: dict[str, float],
    norms: Sequence[float],
    histogram: tuple[int, ...],
) -> LinkNote:
    """The note of a tensor per parameter, from their norms. Only tensors whose norm is not finite are counted."""
    sizes = [norm if math.isfinite(norm) else math.inf for norm in norms]
    worst = sizes.index(max(sizes))  # the first that is not finite, or else the largest
    suspects = [tensor for tensor, norm in zip(tensors, norms, strict=True) if not math.isfinite(norm)]
    broken = float(count_nonfinite(suspects)) if suspects else 0.0
    magnitude, shape = math.sqrt(sum(norm * norm for norm in norms)), tuple(tensors[worst].shape)
    return LinkNote(key[0], key[1], magnitude, broken, numel, names[worst], facts, shape, histogram)


def _worse(old: LinkNote, new: LinkNote) -> LinkNote:
    """Merge two notes of one link: sizes and histograms add up, and the worse note gives magnitude and place."""
    worse = new if not old.broken and not (new.magnitude <= old.magnitude) else old
    counts = [note.histogram for note in (old, new) if note.histogram]
    facts, histogram = dict(worse.facts), tuple(map(sum, zip(*counts, strict=True)))
    for name, end in (("lowest", min), ("highest", max)):
        if name in facts:
            both = [note.facts[name] for note in (old, new)]
            facts[name] = math.nan if any(map(math.isnan, both)) else end(both)
    numbers = {"nonfinite": old.nonfinite + new.nonfinite, "numel": old.numel + new.numel}
    return replace(worse, **numbers, facts=facts, histogram=histogram)
