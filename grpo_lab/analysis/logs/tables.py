"""CSV: one row a step, the export of a W&B panel, and TensorBoard's own export of one curve a file."""

import csv
import functools
import io
import re
from collections.abc import Iterable
from pathlib import PurePath

import numpy as np
import pandas as pd

from grpo_lab.analysis.logs.names import NAMES, PREFIXES, STEP_NAMES, choose
from grpo_lab.analysis.logs.rows import Columns, Log, make, of_frame, size
from grpo_lab.analysis.logs.runs import logs_of
from grpo_lab.errors import LogError

OF_TENSORBOARD = ["wall time", "step", "value"]
_OF_A_RUN = re.compile(r"(?P<run>.+) - (?P<name>[^ ]+)$")
_BOUNDS = ("__MIN", "__MAX")
_AGAIN = re.compile(r" ?\(\d+\)$")
"""A browser's mark behind the name of a file that is there already."""
_TAG = re.compile(r"(?P<run>.*)-tag-(?P<tag>.*)$")
_TAGS = {name.replace("/", "_"): name for name in sorted(NAMES - {"num_tokens"})}
"""Names as TensorBoard writes them in a file's name; its num_tokens may be a step's or those since the start."""
_FUNCTION = re.compile(r"rewards_(.+)_mean$")
_DASHES = re.compile(r"[\s|:-]*$")
_OTHERS = ("eval", "val", "test", "ppo", "approx", "max", "min", "std", "old", "target")
"""Words before a metric's name that make it another metric."""

Parts = dict[str, Columns]
"""The columns of each run by its name, which is empty where a file has one run without a name."""


def read_csv(text: str, first: str, name: str) -> list[Log]:
    """The runs in a CSV; none if its first line names no metric. Raises LogError for a damaged file."""
    if " | " in first:  # a notebook's table as Markdown, whose second line is dashes
        text = "\n".join("\t".join(_cells(line)) for line in text.split("\n") if not _DASHES.match(line))
        first = "\t".join(_cells(first))
    format, parts, notes = parts_of(text, first, name)
    if "" in parts and format == "CSV":
        return logs_of(parts[""], format, notes, hides_nan=_of_a_callback(parts[""]))
    return logs_of_parts(parts, format, notes)


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def logs_of_parts(parts: Parts, format: str, notes: Iterable[str] = ()) -> list[Log]:
    """A log for each run of an export, with its name."""
    said = [f"the export holds {len(parts)} runs: {', '.join(parts)}"] if len(parts) > 1 else []
    both = (*notes, *said)
    return [make(part, format, both, _of_a_callback(part), name=run) for run, part in parts.items() if choose(part)]


def together(found: Iterable[Parts]) -> Parts:
    """The runs of several exports, each with the columns that any of them has."""
    runs: Parts = {}
    for parts in found:
        for run, columns in parts.items():
            whole = runs.setdefault(run, {})
            after = size(whole)
            for name, (rows, numbers) in columns.items():
                old = whole.get(name, (rows[:0], numbers[:0]))
                whole[name] = (np.concatenate([old[0], rows + after]), np.concatenate([old[1], numbers]))
    return runs


def parts_of(text: str, first: str, name: str) -> tuple[str, Parts, list[str]]:
    """The format of a CSV, its runs, and notes. Raises LogError for a damaged file, and one that is no log."""
    separator, names = _header(first)
    if {"Name", "State"} <= set(names):
        raise LogError(f"{name} is W&B's table of runs, with one row a run; export the panels of a run as CSV")
    if of_tensorboard(first):
        frame, notes = _frame(text, separator, name)
        return "TensorBoard's CSV", _of_curve(frame, name), notes
    if choose(match["name"] for each in names if (match := _OF_A_RUN.match(each)) and not each.endswith(_BOUNDS)):
        frame, notes = _frame(text, separator, name)
        axis = [] if names[0] in STEP_NAMES else [f"the axis {names[0]!r} is no step; the rows were counted"]
        return "a W&B panel", _of_panel(of_frame(frame), names[0]), notes + axis
    if choose(names):
        frame, notes = _frame(text, separator, name)
        return "CSV", {"": of_frame(frame)}, notes
    return "CSV", {}, []


def of_tensorboard(first: str) -> bool:
    """Whether the first line of a CSV is that of TensorBoard's export."""
    return [name.lower() for name in _header(first)[1]] == OF_TENSORBOARD


def _of_a_callback(names: Iterable[str]) -> bool:
    """Whether names have the prefix of the callbacks of Hugging Face's Trainer."""
    return any(name.startswith(PREFIXES[0]) for name in names)


def _header(first: str) -> tuple[str, list[str]]:
    """The separator of a CSV, and the names in its first line."""
    separator = max(",\t;", key=first.count)
    return separator, [name.strip() for name in _fields(first, separator)]


def _fields(line: str, separator: str) -> list[str]:
    """The fields of a line; one if it is no CSV."""
    try:
        return next(csv.reader([line], delimiter=separator), [])
    except csv.Error:
        return [line]


def _frame(text: str, separator: str, name: str) -> tuple[pd.DataFrame, list[str]]:
    """The table in a CSV, and a note if its last row is cut. An empty cell is None, and the text nan is NaN."""
    read = functools.partial(pd.read_csv, sep=separator, skipinitialspace=True)
    lines = text.lstrip("\n")
    header, last, notes = lines.partition("\n")[0], lines[lines.rfind("\n") + 1 :], []
    if last and len(_fields(last, separator)) < len(_fields(header, separator)):
        lines, notes = lines.removesuffix(last), ["the last line is incomplete and was left out"]
    try:
        frame = read(io.StringIO(lines), low_memory=False)
        if frame.isna().to_numpy().any():
            cells = read(io.StringIO(lines), dtype=str, keep_default_na=False)
            frame = cells.astype(object).where(cells != "", None)
    except ValueError as error:
        raise LogError(f"{name}: damaged CSV, {error}; give the file as it was exported") from error
    return frame, notes


def _of_panel(columns: Columns, axis: str) -> Parts:
    """The columns of each run in a W&B panel, whose names are "run - metric", without the bounds."""
    runs: Parts = {}
    for name, column in columns.items():
        if (match := _OF_A_RUN.match(name)) and not name.endswith(_BOUNDS):
            runs.setdefault(match["run"], {})[match["name"]] = column
    shared = {axis: columns[axis]} if axis in STEP_NAMES and axis in columns else {}
    return {run: shared | own for run, own in runs.items()}


def _of_curve(frame: pd.DataFrame, name: str) -> Parts:
    """The one curve of TensorBoard's export, whose metric stands in the file's name. Raises LogError if it does not."""
    found = named_in(PurePath(name).name)
    if found is None:
        raise LogError(
            f"{name} is TensorBoard's CSV of one curve, and its name tells no metric known here: rename it to that of "
            "the curve, as train_kl.csv, or give the folder of all curves"
        )
    run, metric = found
    columns = of_frame(frame.set_axis(["wall_time", "step", metric], axis="columns"))
    return {run: {key: column for key, column in columns.items() if key != "wall_time"}}


def named_in(file: str) -> tuple[str, str] | None:
    """The run and the metric in the name of a TensorBoard export, or None if it tells no metric.

    >>> named_in("run_a_train_kl.csv"), named_in("run-a-tag-train_rewards_short_mean.csv"), named_in("eval_kl.csv")
    (('run_a', 'train/kl'), ('run-a', 'train/rewards/short/mean'), None)
    """
    stem = _AGAIN.sub("", file.removesuffix(".gz").removesuffix(".csv"))
    if tag := _TAG.match(stem):
        return _curve(tag["run"], tag["tag"])
    if "train_" in stem:
        run, _, tag = stem.rpartition("train_")
        return _curve(run, f"train_{tag}")
    for known in sorted(_TAGS, key=len, reverse=True):
        before = stem.removesuffix(known)
        if before != stem and (not before or before[-1] in "_-. ") and not before[:-1].endswith(_OTHERS):
            return before.rstrip("_-. "), _TAGS[known]
    return None


def _curve(run: str, tag: str) -> tuple[str, str] | None:
    """A run and its metric from the tag in a file's name, whose slashes are underscores."""
    prefix = next((prefix for prefix in PREFIXES if tag.startswith(prefix.replace("/", "_"))), "")
    own = tag[len(prefix) :]
    function = _FUNCTION.match(own)
    metric = f"rewards/{function[1]}/mean" if function else _TAGS.get(own)
    return (run.rstrip("_-. "), prefix + metric) if metric else None
