"""CSV: one row a step, the export of a W&B panel, TensorBoard's own export of one curve a file; its event files, which
need the package `tensorboard` (the extra of the same name), imported only here.
"""

import csv
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path, PurePath

import numpy as np
import pandas as pd

from grpo_lab.analysis.logs.table import PREFIXES, STEP_NAMES, Columns, Fact, Table, choose, columns_of, fact, number_in
from grpo_lab.analysis.logs.text import Text
from grpo_lab.errors import LogError
from grpo_lab.metrics import METRICS, OTHER_NAMES

OF_TENSORBOARD = ["wall time", "step", "value"]
_OF_A_RUN = re.compile(r"(?P<run>.+) - (?P<name>[^ ]+)$")
_BOUNDS = ("__MIN", "__MAX")
_AGAIN = re.compile(r" ?\(\d+\)$")
"""A browser's mark behind the name of a file that is there already."""
_NAMES = {*METRICS, *(name for names in OTHER_NAMES.values() for name in names)} - {"num_tokens"}
_TAGS = {name.replace("/", "_"): name for name in sorted(_NAMES)}
"""Names as TensorBoard writes them in a file's name; its num_tokens may be a step's or those since the start."""
_CURVE = re.compile(
    r"(?:(?P<run>.*?)(?:-tag)?[_\-. ])??(?P<prefix>train_|rollout_)?"
    rf"(?:(?P<tag>{'|'.join(map(re.escape, _TAGS))})|rewards_(?P<function>.+)_mean)$"
)
"""The end of a file's name, whose slashes are underscores, is that of its curve."""
_DASHES = re.compile(r"[\s|:+=─━│┃┏┓┗┛┡┩├┤┼╇┴┬└┘┌┐╞╡╪-]*$")
_NO_NAME = re.compile(r"[{}=]|\d\.\d")
_EMPTY = ("-", "—", "None", "No log", "n/a", "N/A", "<NA>")
_OTHERS = ("eval", "val", "test", "ppo", "approx", "max", "min", "std", "old", "target")
"""Words before a metric's name that make it another metric."""


def read_table(text: Text) -> list[Table]:
    """The longest table in a text, as Markdown, pandas and rich print it: a line of names over lines of numbers."""
    found: dict[str, list[list[str]]] = {}
    cells: list[str] = []
    for line in text.said.split("\n"):
        if not line.strip() or _DASHES.match(line):
            continue
        row = _cells(line)
        numbers = [number_in(cell) is not None or not cell or cell in _EMPTY for cell in row]
        of_names = len(row) > 1 and not any(number_in(cell) is not None for cell in row)
        if of_names and choose(row) and not _NO_NAME.search(line):
            cells = row
            found.setdefault("\t".join(cells), [])
        elif cells and len(row) - len(cells) in (0, 1) and 2 * sum(numbers) > len(row) and "".join(row):
            found["\t".join(cells)].append(row[len(row) - len(cells) :])  # pandas numbers the rows
        else:
            cells = []
    names, rows = max(found.items(), key=lambda table: len(table[1]), default=("", []))
    empty = [["" if cell in _EMPTY else cell for cell in row] for row in rows]
    return read_csv(replace(text, said="\n".join([names, *map("\t".join, empty)]) + "\n")) if rows else []


def _cells(line: str) -> list[str]:
    """The cells of a line of a table: between bars, tabs, or blanks, of which two or more count if there are such."""
    line = line.strip()
    for separator in (r"\s*[|│┃║]\s*", r"\t", r"\s{2,}", r"\s*,\s*", r"\s+"):
        if re.search(separator, line):
            return re.split(separator, re.sub(r"^[|│┃║]\s*|\s*[|│┃║]$", "", line))
    return [line]


def read_csv(text: Text) -> list[Table]:
    """A table for each run of a CSV; none if its first line names no metric. Raises LogError for a damaged file."""
    if " | " in text.first:
        return []
    separator = max(",\t;", key=text.first.count)
    names = _header(text.first, separator)
    if {"Name", "State"} <= set(names):
        raise LogError(f"{text.name} is W&B's table of runs, with one row a run; export the panels of a run as CSV")
    if [name.lower() for name in names] == OF_TENSORBOARD:
        return _of_curve(*_read(text, separator), text.name)
    if choose(match["name"] for each in names if (match := _OF_A_RUN.match(each)) and not each.endswith(_BOUNDS)):
        return _of_panel(*_read(text, separator), names[0])
    if not choose(names) or any(map(_NO_NAME.search, names)):
        return []
    columns, notes = _read(text, separator)
    return [Table(columns, "csv", notes, hides_nan=_of_a_callback(columns))]


def together(tables: Sequence[Table]) -> list[Table]:
    """The runs of several exports, each with the columns that any of them has."""
    runs: dict[str, Table] = {}
    named = {table.name for table in tables if table.name}
    for table in tables:
        run = table.name or (min(named) if len(named) == 1 else "")  # the name of one curve alone may tell no run
        known = runs.setdefault(run, replace(table, columns={}))
        after = known.size
        for name, column in table.columns.items():
            moved = column.set_axis(column.index + after)
            known.columns[name] = pd.concat([known.columns[name], moved]) if name in known.columns else moved
    notes = [note for table in tables for note in table.notes]
    return _of_runs({name: table.columns for name, table in runs.items()}, tables[0].format, notes) if tables else []


def _of_runs(
    runs: dict[str, Columns], format: str, notes: Sequence[Fact] = (), told: str = "runs_in_export"
) -> list[Table]:
    """A table for each run that has a metric, with its name, and a note on all of them if there are several."""
    if len(runs) > 1:
        notes = [*notes, fact(told, count=len(runs), names=", ".join(runs))]
    return [
        Table(columns, format, notes, hides_nan=_of_a_callback(columns), one_run=True, name=name)
        for name, columns in runs.items()
        if choose(columns)
    ]


def _of_a_callback(names: Iterable[str]) -> bool:
    """Whether names have the prefix of the callbacks of Hugging Face's Trainer."""
    return any(name.startswith(PREFIXES[0]) for name in names)


def _header(first: str, separator: str) -> list[str]:
    """The names in the first line of a CSV; one if it is no CSV."""
    try:
        return [name.strip() for name in next(csv.reader([first], delimiter=separator), [])]
    except csv.Error:
        return [first]


def _read(text: Text, separator: str) -> tuple[Columns, list]:
    """The columns of a CSV, and a note if its last row is cut. An empty cell was not logged; the text nan is NaN."""
    lines = text.said.lstrip("\n").split("\n")
    try:
        names, *rows = csv.reader(lines, delimiter=separator, skipinitialspace=True)
    except csv.Error as error:
        raise LogError(f"{text.name}: damaged CSV, {error}; give the file as it was exported") from error
    rows, notes = [row for row in rows if row], []
    for number, row in enumerate(rows, start=2):
        if len(row) > len(names):
            raise LogError(
                f"{text.name}: damaged CSV, row {number} has {len(row)} cells of {len(names)}; give the file as it was "
                "exported"
            )
    if lines[-1] and rows and len(rows[-1]) < len(names):
        rows.pop()
        notes.append(fact("cut"))
    names = [name.strip() for name in names]
    return columns_of(dict(zip(names, row, strict=False)) for row in rows), notes


def _of_panel(columns: Columns, notes: list, axis: str) -> list[Table]:
    """The runs in a W&B panel, whose names are "run - metric", without the bounds."""
    if axis not in STEP_NAMES:
        notes = [*notes, fact("no_axis", axis=repr(axis))]
    runs: dict[str, Columns] = {}
    for name, column in columns.items():
        if (match := _OF_A_RUN.match(name)) and not name.endswith(_BOUNDS):
            shared = {axis: columns[axis]} if axis in STEP_NAMES and axis in columns else {}
            runs.setdefault(match["run"], shared)[match["name"]] = column
    return _of_runs(runs, "wandb_panel", notes)


def _of_curve(columns: Columns, notes: list, name: str) -> list[Table]:
    """The one curve of TensorBoard's export, whose metric stands in the file's name. Raises LogError if it does not."""
    if not (found := named_in(PurePath(name).name)):
        raise LogError(
            f"{name} is TensorBoard's CSV of one curve, and its name tells no metric known here: rename it to that of "
            "the curve, as train_kl.csv, or give the folder of all curves"
        )
    run, metric = found
    new = {"step": "step", "value": metric}
    own = {new[key.lower()]: column for key, column in columns.items() if key.lower() in new}
    return _of_runs({run: own}, "tensorboard_csv", notes)


def named_in(file: str) -> tuple[str, str] | None:
    """The run and the metric in the name of a TensorBoard export, or None if it tells no metric.

    >>> named_in("run_a_train_kl.csv"), named_in("run-a-tag-train_rewards_short_mean.csv"), named_in("eval_kl.csv")
    (('run_a', 'train/kl'), ('run-a', 'train/rewards/short/mean'), None)
    """
    found = _CURVE.match(_AGAIN.sub("", file.removesuffix(".gz").removesuffix(".csv")))
    if found is None:
        return None
    run, prefix = (found["run"] or "").rstrip("_-. "), found["prefix"] or ""
    if "-tag-" in run or (not prefix and ("train_" in run or run.endswith(_OTHERS))):
        return None
    metric = f"rewards/{found['function']}/mean" if found["function"] else _TAGS[found["tag"]]
    return run, prefix.replace("_", "/") + metric


INSTALL = 'pip install "grpo-lab[tensorboard]"'


def event_files(folder: Path) -> list[Path]:
    """The event files in a folder and below it."""
    return sorted(path for path in folder.rglob("*tfevents*") if path.is_file())


def read_events(path: Path) -> list[Table]:
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
    known = {name: scalars for name, scalars in runs.items() if choose(scalars)}
    if not known:
        raise LogError(f"{path}: TensorBoard files, but none of their scalars is a metric known here")
    for scalars in known.values():
        steps = np.unique(np.concatenate([curve.index for curve in scalars.values()]))
        scalars["step"] = pd.Series(steps, steps, dtype=np.float64)
    return _of_runs(known, "tensorboard", told="runs_in_folder")


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
