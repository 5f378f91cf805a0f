"""TensorBoard's event files. Needs the package `tensorboard` (the extra of the same name), imported only here."""

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


def read(path: Path) -> Log:
    """The scalars of an event file, or of all event files in a folder.

    Raises LogError if the package `tensorboard` is missing, or no scalar is a known metric.
    """
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError as error:
        raise LogError(f"{path} is a TensorBoard file; to read it: {INSTALL}, or export the scalars as CSV") from error
    folders = sorted({file.parent for file in event_files(path)}) if path.is_dir() else [path]
    columns: Columns = {}
    hides_nan, source = False, ""
    for folder in folders:
        events = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
        events.Reload()
        scalars = {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
        scalars |= {tag: _of_tensors(events, tag) for tag in events.Tags()["tensors"]}
        hides_nan = hides_nan or any(tag.startswith("train/") for tag in scalars)
        source = source or source_of(scalars)
        for tag in (*choose(scalars).values(), *reward_functions(scalars).values()):
            found = np.array(scalars[tag], dtype=np.float64).reshape(-1, 2)
            columns[tag] = (found[:, 0].astype(np.int64), found[:, 1])
    if not columns:
        raise LogError(f"{path}: TensorBoard files, but none of their scalars is a metric known here")
    last = max(int(rows.max()) for rows, _ in columns.values())
    columns["step"] = (np.arange(last + 1), np.arange(last + 1, dtype=np.float64))
    return make(columns, "TensorBoard", hides_nan=hides_nan, source=source)


def _of_tensors(events: object, tag: str) -> list[tuple[int, float]]:
    """(step, value) of scalars as TensorFlow 2 writes them: tensors of one number."""
    from tensorboard.util.tensor_util import make_ndarray

    found = [(event.step, make_ndarray(event.tensor_proto)) for event in events.Tensors(tag)]  # type: ignore[attr-defined]
    return [(step, float(value)) for step, value in found if value.shape == () and value.dtype.kind in "fiu"]
