"""Two runs compared: their events field by field, and their final weights."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from grpo_lab.errors import RunError
from grpo_lab.events import Checkpointed, Resumed, lineage, to_json
from grpo_lab.metrics import OF_THE_MACHINE
from grpo_lab.runs import run_folder
from grpo_lab.runs.recordings import find
from grpo_lab.runs.session import Record

SAME = "the same"


@dataclass(frozen=True)
class Difference:
    """A field of an event that two runs tell differently; None for a value that one of them lacks."""

    step: int | None
    """None for the events at the beginning and at the end of a run."""
    field: str
    first: Any
    second: Any

    def __str__(self) -> str:
        place = "" if self.step is None else f"step {self.step}, "
        return f"{place}{self.field}: {self.first!r} and {self.second!r}"


@dataclass(frozen=True)
class RunDifference:
    """How two runs differ, in the order of the first one's events; those of the second alone come last."""

    steps: int
    """Steps that either of them made."""
    differences: tuple[Difference, ...]
    weights: str
    """`the same`, how they differ, or why they are not compared."""
    weights_differ: bool

    @property
    def same(self) -> bool:
        """Whether nothing differs."""
        return not self.differences and not self.weights_differ

    @property
    def steps_that_differ(self) -> tuple[int, ...]:
        """The steps in which a field differs."""
        return tuple(sorted({each.step for each in self.differences if each.step is not None}))

    @property
    def text(self) -> str:
        """The first difference and a summary, as `grpo-lab diff` prints them."""
        lines = [f"first difference: {self.differences[0]}"] if self.differences else []
        if found := self.steps_that_differ:
            lines.append(f"steps: {len(found)} of {self.steps} differ, from step {found[0]}")
        else:
            lines.append(f"steps: {self.steps}, all the same")
        if outside := {each.field.partition(".")[0] for each in self.differences if each.step is None}:
            lines.append(f"beside the steps: {', '.join(sorted(outside))} differ")
        return "\n".join([*lines, f"final weights: {self.weights}"])

    def tree(self) -> dict[str, Any]:
        """Plain values, as `grpo-lab diff --json` prints them."""
        about = {"same": self.same, "steps": self.steps, "steps_that_differ": list(self.steps_that_differ)}
        return {**about, "weights": self.weights, "differences": [asdict(each) for each in self.differences]}


def difference(first: Record | str | Path, second: Record | str | Path) -> RunDifference:
    """Compare two runs: sessions, run folders, names of recordings, or files of events.

    Left out are the events that tell of checkpoints and resumes, those that a resume replaced, and metrics that tell of
    the machine. Events are compared with those of the same kind and step. Raises RunError for a place without a run
    and for a run that never began.

    >>> difference("cuda-001-smollm2-135m-original", "cuda-001-smollm2-135m-original").same
    True
    """
    runs = [_told(each) for each in (first, second)]
    found = []
    for key in dict.fromkeys(key for run in runs for key in run):
        kind, step, _ = key
        one, other = (run.get(key) for run in runs)
        if one is None or other is None:
            found.append(Difference(step, kind, *("there" if each else None for each in (one, other))))
            continue
        found += [Difference(step, name, *pair) for name, pair in differing(one, other)]
    steps = {step for run in runs for kind, step, _ in run if kind == "Stepped"}
    return RunDifference(len(steps), tuple(found), *_weights(_model(first), _model(second)))


def differing(before: dict[str, Any], after: dict[str, Any]) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """Names and values that differ between two events; None where an event lacks the name."""
    old, new = dict(fields_of(before)), dict(fields_of(after))
    for name in {**old, **new}:
        if old.get(name) != new.get(name) and name.rpartition(".metrics.")[2] not in OF_THE_MACHINE:
            yield name, (old.get(name), new.get(name))


def fields_of(event: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Every number and text of an event by its path; a link or an action is named, not numbered."""

    def walk(path: str, value: Any) -> Iterator[tuple[str, Any]]:
        if isinstance(value, dict):
            for key, inner in value.items():
                if key != "said":  # the parts of a sentence that is compared as a whole
                    yield from walk(f"{path}.{key}", inner)
        elif isinstance(value, list):
            for place, inner in enumerate(value):
                label = inner.get("link") or inner.get("name") if isinstance(inner, dict) else ""
                yield from walk(f"{path}[{place}{' ' + label if label else ''}]", inner)
        else:
            yield path, value

    yield from walk(str(event.get("event", "")), event)


def _told(run: Record | str | Path) -> dict[tuple[str, int | None, int], dict[str, Any]]:
    """The events of a run as JSON, by kind, step and their number among those of this kind and step."""
    if isinstance(run, Record):
        events = run.events
    elif not (path := find(run)).is_file():
        events = run_folder.read(path)[1]
    else:
        try:
            events = lineage(run_folder.whole_events(path.parent, path.name))
        except (OSError, ValueError) as error:
            raise RunError(f"{path} cannot be read: {error}; give the folder of a run") from error
    found, seen = {}, Counter[tuple[str, int | None]]()
    for event in events:
        if not isinstance(event, Checkpointed | Resumed):
            tree = json.loads(to_json(event))
            place = (tree["event"], tree.get("step"))
            found[(*place, seen[place])] = tree
            seen[place] += 1
    if not found:
        raise RunError(f"{run.directory if isinstance(run, Record) else run}: this run never began: it has no events")
    return found


def _model(run: Record | str | Path) -> Path:
    """The folder of the final weights of a run, which may not exist."""
    folder = run.directory if isinstance(run, Record) else find(run)
    return (folder.parent if folder.is_file() else folder) / run_folder.MODEL


def _weights(first: Path, second: Path) -> tuple[str, bool]:
    """How the weights in two folders differ, in words, and whether they do."""
    if lacking := [str(path.parent) for path in (first, second) if not path.is_dir()]:
        return f"not compared: none in {' and '.join(dict.fromkeys(lacking))}", False
    one, other = _tensors(first), _tensors(second)
    if one.keys() != other.keys():
        return f"other tensors: {', '.join(sorted(one.keys() ^ other.keys())[:3])}, …", True
    if shapes := [name for name in one if one[name].shape != other[name].shape]:
        return f"other shapes: {shapes[0]} {tuple(one[shapes[0]].shape)} and {tuple(other[shapes[0]].shape)}", True
    changed = [name for name in one if one[name].dtype != other[name].dtype or not torch.equal(one[name], other[name])]
    if not changed:
        return SAME, False
    most = max(float((one[name].double() - other[name].double()).abs().max()) for name in changed)
    return f"{len(changed)} of {len(one)} tensors differ, by {most:.3g} at most", True


def _tensors(folder: Path) -> dict[str, Tensor]:
    try:
        return {name: value for path in sorted(folder.glob("*.safetensors")) for name, value in load_file(path).items()}
    except (OSError, SafetensorError) as error:
        raise RunError(f"{folder} cannot be read: {error}; remove that folder to compare the events alone") from error
