"""TensorBoard's event files. Needs the package `tensorboard` (the extra of the same name), imported only here."""

from pathlib import Path

import numpy as np
import pandas as pd

from grpo_lab.analysis.logs.table import Columns, Table, choose, fact
from grpo_lab.errors import LogError

INSTALL = 'pip install "grpo-lab[tensorboard]"'


def event_files(folder: Path) -> list[Path]:
    """The event files in a folder and below it."""
    return sorted(path for path in folder.rglob("*tfevents*") if path.is_file())


def read(path: Path) -> list[Table]:
    """The runs in an event file, or in the folders below a folder, the oldest first.

    Folders that have no curve in common, as some writers make one for each curve, belong to one run. Raises LogError if
    the package `tensorboard` is missing, or no scalar is a known metric.
    """
    newest = {file.parent: file.name for file in event_files(path)} if path.is_dir() else {path: ""}
    runs: dict[str, Columns] = {}
    for folder in sorted(newest, key=lambda folder: (newest[folder], folder)):
        scalars = _scalars(folder)
        other = next((run for run in runs.values() if run.keys().isdisjoint(scalars)), None)
        if other is None:
            runs[folder.relative_to(path).as_posix() if path.is_dir() else ""] = scalars
        else:
            other.update(scalars)
    runs = {name: scalars for name, scalars in runs.items() if choose(scalars)}
    if not runs:
        raise LogError(f"{path}: TensorBoard files, but none of their scalars is a metric known here")
    notes = [fact("runs_in_folder", count=len(runs), names=", ".join(runs))] if len(runs) > 1 else []
    tables = []
    for name, scalars in runs.items():
        steps = np.unique(np.concatenate([curve.index for curve in scalars.values()]))
        columns = {**scalars, "step": pd.Series(steps, steps, dtype=np.float64)}
        hides_nan = any(tag.startswith("train/") for tag in scalars)
        tables.append(Table(columns, "tensorboard", notes, hides_nan=hides_nan, one_run=True, name=name))
    return tables


def _scalars(place: Path) -> Columns:
    """The curve of each tag in an event file or a folder of them; the index is the step."""
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        from tensorboard.util.tensor_util import make_ndarray
    except ImportError as error:
        raise LogError(
            f"{place} has TensorBoard files; to read them: {INSTALL}, or export the scalars as CSV"
        ) from error
    events = EventAccumulator(str(place), size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    found = {tag: [(each.step, each.value) for each in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    for tag in events.Tags()["tensors"]:  # as TensorFlow 2 writes scalars
        values = [(each.step, make_ndarray(each.tensor_proto)) for each in events.Tensors(tag)]
        found[tag] = [(step, float(value)) for step, value in values if value.shape == () and value.dtype.kind in "fiu"]
    points = {tag: np.array(curve, dtype=np.float64).reshape(-1, 2) for tag, curve in found.items()}
    return {tag: pd.Series(each[:, 1], each[:, 0].astype(np.int64)) for tag, each in points.items()}
