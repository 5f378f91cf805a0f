"""TensorBoard's event files. Needs the package `tensorboard` (the extra of the same name), imported only here."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from grpo_lab.analysis.logs.names import choose, reward_functions, source_of
from grpo_lab.analysis.logs.rows import Columns, Log, make
from grpo_lab.errors import LogError

INSTALL = 'pip install "grpo-lab[tensorboard]"'


def event_files(folder: Path) -> list[Path]:
    """The event files in a folder and below it."""
    return sorted(path for path in folder.rglob("*tfevents*") if path.is_file())


def is_event_file(head: bytes) -> bool:
    """Whether a file with this beginning is an event file: its first record names the version of the format."""
    return b"brain.Event:" in head[:64]


def read(path: Path) -> list[Log]:
    """The runs in an event file, or in the folders below a folder, the oldest first.

    Folders that have no curve in common, as some writers make one for each curve, belong to one run. Raises LogError if
    the package `tensorboard` is missing, or no scalar is a known metric.
    """
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError as error:
        raise LogError(f"{path} is a TensorBoard file; to read it: {INSTALL}, or export the scalars as CSV") from error
    newest = {file.parent: file.name for file in event_files(path)} if path.is_dir() else {path: ""}
    runs: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for folder in sorted(newest, key=lambda folder: (newest[folder], folder)):
        events = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
        events.Reload()
        scalars = {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
        scalars |= {tag: _of_tensors(events, tag) for tag in events.Tags()["tensors"]}
        other = next((run for run in runs.values() if run.keys().isdisjoint(scalars)), None)
        if other is None:
            runs[folder.relative_to(path).as_posix() if path.is_dir() else ""] = scalars
        else:
            other.update(scalars)
    logs = [_log(scalars, name) for name, scalars in runs.items() if choose(scalars)]
    if not logs:
        raise LogError(f"{path}: TensorBoard files, but none of their scalars is a metric known here")
    said = [f"the folder holds {len(logs)} runs: {', '.join(log.name for log in logs)}"] if len(logs) > 1 else []
    return [replace(log, notes=(*log.notes, *said)) for log in logs]


def _log(scalars: Mapping[str, list[tuple[int, float]]], name: str) -> Log:
    """The log of one run's curves."""
    tags = (*choose(scalars).values(), *reward_functions(scalars).values())
    curves = {tag: np.array(scalars[tag], dtype=np.float64).reshape(-1, 2) for tag in tags}
    steps = np.unique(np.concatenate([curve[:, 0] for curve in curves.values()]))
    columns: Columns = {tag: (np.searchsorted(steps, curve[:, 0]), curve[:, 1]) for tag, curve in curves.items()}
    columns["step"] = (np.arange(len(steps)), steps)
    hides_nan = any(tag.startswith("train/") for tag in scalars)
    return make(columns, "TensorBoard", hides_nan=hides_nan, source=source_of(scalars), name=name)


def _of_tensors(events: object, tag: str) -> list[tuple[int, float]]:
    """(step, value) of scalars as TensorFlow 2 writes them: tensors of one number."""
    from tensorboard.util.tensor_util import make_ndarray

    found = [(event.step, make_ndarray(event.tensor_proto)) for event in events.Tensors(tag)]  # type: ignore[attr-defined]
    return [(step, float(value)) for step, value in found if value.shape == () and value.dtype.kind in "fiu"]
