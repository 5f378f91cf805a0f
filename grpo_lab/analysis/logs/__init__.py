"""Logs of training runs, from this project and other trainers, as one table of metrics, which `diagnosis` reads.

From a run folder only metrics and settings are read: no verdict, no guard or fault, and no action of one.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from grpo_lab.analysis.logs import files, formats, settings, tables, tensorboard
from grpo_lab.analysis.logs.crash import crash_beside, last_exception
from grpo_lab.analysis.logs.names import STEP_NAMES
from grpo_lab.analysis.logs.rows import Columns, Rows, make, of_frame, without_blank_rows
from grpo_lab.analysis.logs.rows import Log as Log
from grpo_lab.analysis.logs.runs import logs_of, of_dicts
from grpo_lab.errors import LogError
from grpo_lab.events import Event, Stepped

FORMATS = (
    "a run folder of grpo_lab, or its events.jsonl",
    "trainer_state.json of TRL or transformers, its log_history, or the lines that Trainer prints",
    "verl's console (step:1 - actor/grad_norm:0.3 - …) or its file logger",
    "JSON lines with a dictionary of metrics each, as ms-swift's logging.jsonl",
    "TensorBoard event files or their folder",
    "CSV with a header, W&B's export of a panel, TensorBoard's CSV",
)
TABLE = "a table"
PRINTED_BESIDE = ("trainer_state.json", "logging.jsonl")
"""Logs that end before a crash, which only the console beside them shows, and that a run may leave without a row."""


def read(path: str | Path) -> Log:
    """The metrics in a log file or folder, or in the standard input for "-"; of several runs the last.

    The format is recognised from the content, also packed by gzip. Raises LogError for a path that does not exist, an
    empty file, an unknown format, or a log with neither a known metric nor a traceback.
    """
    return read_runs(path)[-1]


def read_runs(path: str | Path) -> list[Log]:
    """The runs in a log file or folder, or in the standard input for "-", in their order.

    There are several in a file to which more than one run was appended, and in an export of several runs. Raises
    LogError as `read` does.
    """
    path = Path(path)
    try:
        return _read_beside(_log_in(path) if path.is_dir() else path)
    except OSError as error:
        raise LogError(f"{path} cannot be read: {error.strerror or error}; give a log file or its folder") from error


def read_together(paths: Sequence[str | Path]) -> list[Log]:
    """The runs in several CSV exports of W&B or TensorBoard, which hold one curve each. Raises LogError as `read`."""
    try:
        return _exports([Path(path) for path in paths])
    except OSError as error:
        raise LogError(f"{error.filename} cannot be read: {error.strerror}; give CSV exports") from error


def from_dicts(found: Iterable[Mapping[str, Any]]) -> Log:
    """The metrics in dictionaries, one a step, as `trainer.state.log_history` of TRL; of several runs the last.

    `diagnose` takes such a list too. A value that is None, or no number, was not logged. Raises LogError for rows of
    another type.

    >>> from_dicts([{"step": 1, "kl": 0.1, "epoch": 0.1}, {"step": 2, "kl": 0.2}]).metrics["kl"].tolist()
    [0.1, 0.2]
    """
    rows = Rows()
    for row in found:
        if not isinstance(row, Mapping):
            raise LogError(f"a row is a {type(row).__name__}; give dictionaries with names and values, one a step")
        rows.add(row)
    return _of_table(rows.columns())


def from_frame(frame: pd.DataFrame) -> Log:
    """The metrics in a pandas DataFrame, one row a step; the step is a column, the index, or the number of the row."""
    return _of_table(without_blank_rows(of_frame(frame)))


def _of_table(columns: Columns) -> Log:
    """The log in a table; of several runs the last, if their steps tell them apart."""
    return logs_of(columns, TABLE)[-1] if any(name in columns for name in STEP_NAMES) else make(columns, TABLE)


def from_events(events: Iterable[Event]) -> Log:
    """The metrics in the events of a run."""
    steps = [event for event in events if isinstance(event, Stepped)]
    found = ({"step": step.step, **step.metrics} for step in steps)
    log = of_dicts(found, "a run of grpo_lab", source="grpo_lab")[-1]
    return dataclasses.replace(log, updates_a_row=max((step.updates for step in steps), default=1))


def _log_in(folder: Path) -> Path:
    """The log in a folder; the folder itself if it holds TensorBoard files or CSV exports. Raises LogError for none."""
    files.check_readable(folder)
    for name in ("events.jsonl", "trainer_state.json", "logging.jsonl"):
        if (folder / name).exists():
            return folder / name
    if states := [*folder.glob("*/trainer_state.json")]:
        runs = sorted({state.parent.name.partition("checkpoint-")[0] for state in states})
        if len(runs) > 1:
            raise LogError(
                f"{folder} holds {len(runs)} runs: {', '.join(runs[:4])}{' …' * (len(runs) > 4)}; give one of them"
            )
        return max(states, key=lambda state: state.stat().st_size)
    exports = _csv_files(folder)
    if tensorboard.event_files(folder) or len(exports) > 1:
        return folder
    printed = sorted(path for kind in ("*.jsonl", "*.log", "*.out") for path in folder.glob(kind))
    if len(exports or printed) == 1:
        return (exports or printed)[0]
    raise LogError(
        f"{folder} holds no log: no events.jsonl, trainer_state.json, logging.jsonl, TensorBoard file or CSV, and "
        f"{len(printed)} files *.jsonl, *.log or *.out; give the file itself"
    )


def _csv_files(folder: Path) -> list[Path]:
    return sorted([*folder.glob("*.csv"), *folder.glob("*.csv.gz")])


def _read_beside(path: Path) -> list[Log]:
    """The runs in a log, with settings and crash from files beside it. Raises LogError for no known metric."""
    found, notes = settings.beside(path) if str(path) != files.STDIN else ({}, [])
    if path.is_dir():
        logs = tensorboard.read(path) if tensorboard.event_files(path) else _exports(_csv_files(path))
    else:
        every = found.get("logging_steps", 1)
        logs = _read_file(path, int(every) if isinstance(every, int | float) and every >= 1 else 1)
    if not logs[-1].crash and path.name in PRINTED_BESIDE:
        logs[-1] = dataclasses.replace(logs[-1], crash=crash_beside(path))
    if path.name not in PRINTED_BESIDE and not any(len(log.steps) or log.crash for log in logs):
        raise LogError(
            f"{path} was read as {logs[0].format} and holds no metric known here, as reward, kl or grad_norm"
        )
    return [
        dataclasses.replace(
            log,
            settings={**found, **log.settings},
            notes=(*log.notes, *notes),
            hides_nan=log.hides_nan and found.get("logging_nan_inf_filter", True) is not False,
        )
        for log in logs
    ]


def _exports(paths: list[Path]) -> list[Log]:
    """The runs in CSV exports of W&B or TensorBoard, which hold one curve each. Raises LogError for none."""
    found = []
    for path in paths:
        text = files.text_of(files.content(path), str(path))
        first = text.lstrip("\n").partition("\n")[0]
        if not tables.of_tensorboard(first) or tables.named_in(path.name):
            found.append(tables.parts_of(text, first, str(path)))
    parts = tables.together(parts for _, parts, _ in found)
    logs = tables.logs_of_parts(parts, found[0][0] if found else "CSV", [note for *_, notes in found for note in notes])
    if not logs:
        names = ", ".join(path.name for path in paths)
        raise LogError(f"{names}: no metric known here, as train_kl.csv of TensorBoard or a W&B panel with train/kl")
    return logs


def _read_file(path: Path, logging_steps: int) -> list[Log]:
    """The runs in a file. Raises LogError for an empty file and an unknown format."""
    data = files.content(path)
    if not data.strip():
        raise LogError(f"{path} is empty; give the log of a run that made at least one step")
    if tensorboard.is_event_file(data):
        if str(path) == files.STDIN or path.suffix == ".gz":
            raise LogError(f"{path} holds TensorBoard's events, which are read from an unpacked file; unpack it first")
        return tensorboard.read(path)
    text = files.text_of(data, str(path))
    logs = formats.read_text(text, str(path), logging_steps)
    if not logs and (crash := last_exception(text)):
        return [Log({}, "a console without metrics", crash=crash)]
    if not logs:
        raise LogError(f"{path}: unknown format; looked for " + "; ".join(FORMATS))
    return logs
