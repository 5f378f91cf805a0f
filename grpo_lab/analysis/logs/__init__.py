"""Logs of training runs, from this project and other trainers, as one table of metrics, which `diagnosis` reads.

From a run folder only metrics and settings are read: no verdict, no guard or fault, and no action of one.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from grpo_lab.analysis.logs import beside, formats, table
from grpo_lab.analysis.logs.console import names_in, printed_settings
from grpo_lab.analysis.logs.table import Log as Log
from grpo_lab.analysis.logs.text import STDIN, Text, content, decoded, last_exception, patterns, tables
from grpo_lab.errors import LogError
from grpo_lab.events import Event, Stepped

PRINTED_BESIDE = ("trainer_state.json", "logging.jsonl")
"""Logs that end before a crash, which only the console beside them shows, and that a run may leave without a row."""


def read(path: str | Path, metrics: Mapping[str, str] | None = None) -> Log:
    """The metrics in a log file or folder, or in the standard input for "-"; of several runs the last.

    `metrics` gives the log's names of metrics that are not known by themselves, as {"reward": "foo"}.

    The format is recognised from the content, also packed by gzip. Raises LogError for a path that does not exist, an
    empty file, an unknown format, or a log with neither a known metric nor a traceback.
    """
    return read_runs(path, metrics)[-1]


def read_runs(path: str | Path, metrics: Mapping[str, str] | None = None) -> list[Log]:
    """The runs in a log file or folder, or in the standard input for "-", in their order.

    There are several in a file to which more than one run was appended, and in an export of several runs. Raises
    LogError as `read` does.
    """
    path = Path(path)
    try:
        return table.given(metrics or {}, lambda: _with_files_beside(_log_in(path) if path.is_dir() else path))
    except OSError as error:
        raise LogError(f"{path} cannot be read: {error.strerror or error}; give a log file or its folder") from error


def from_dicts(found: Iterable[Mapping[str, Any]], metrics: Mapping[str, str] | None = None) -> Log:
    """The metrics in dictionaries, one a step, as `trainer.state.log_history` of TRL; of several runs the last.

    `diagnose` takes such a list too. A value that is None, or no number, was not logged. Raises LogError for rows of
    another type.

    >>> from_dicts([{"step": 1, "kl": 0.1, "epoch": 0.1}, {"step": 2, "kl": 0.2}]).metrics["kl"].tolist()
    [0.1, 0.2]
    """
    rows = list(found)
    for row in rows:
        if not isinstance(row, Mapping):
            raise LogError(f"a row is a {type(row).__name__}; give dictionaries with names and values, one a step")
    return _of_columns(table.columns_of(rows), metrics)


def from_frame(frame: pd.DataFrame, metrics: Mapping[str, str] | None = None) -> Log:
    """The metrics in a pandas DataFrame, one row a step; the step is a column, the index, or the number of the row."""
    return _of_columns(table.columns_of_frame(frame), metrics)


def _of_columns(columns: table.Columns, metrics: Mapping[str, str] | None) -> Log:
    """The log in a table; of several runs the last, if their steps tell them apart."""
    one_run = not any(name in columns for name in table.STEP_NAMES)
    return table.given(metrics or {}, lambda: table.runs_in([table.Table(columns, "table", one_run=one_run)]))[-1]


def from_events(events: Iterable[Event]) -> Log:
    """The metrics in the events of a run."""
    steps = [event for event in events if isinstance(event, Stepped)]
    columns = table.columns_of({"step": step.step, **step.metrics} for step in steps)
    updates = max((step.updates for step in steps), default=1)
    return table.runs_in([table.Table(columns, "own_run", source="grpo_lab", updates_a_row=updates)])[-1]


def _log_in(folder: Path) -> Path:
    """The log in a folder; the folder itself if it holds TensorBoard files or CSV exports. Raises LogError for none."""
    if not os.access(folder, os.R_OK | os.X_OK):
        raise PermissionError(13, "Permission denied", str(folder))
    for name in ("events.jsonl", *PRINTED_BESIDE):
        if (folder / name).exists():
            return folder / name
    if states := [*folder.glob("*/trainer_state.json")]:
        runs = sorted({state.parent.name.partition("checkpoint-")[0] for state in states})
        if len(runs) > 1:
            named = ", ".join(runs[:4]) + " …" * (len(runs) > 4)
            raise LogError(f"{folder} holds {len(runs)} runs: {named}; give one of them")
        return max(states, key=lambda state: state.stat().st_size)
    exports = _csv_files(folder)
    if formats.event_files(folder) or len(exports) > 1:
        return folder
    printed = sorted(path for kind in ("*.jsonl", "*.log", "*.out") for path in folder.glob(kind))
    printed = [path for path in printed if not table.words_of(path.stem)[1]] or printed
    documents = [path for path in sorted(folder.glob("*.json")) if path.name not in ("args.json", "config.json")]
    printed = printed or sorted(folder.glob("*.ipynb")) or documents or sorted(folder.glob("*.md"))
    if len(exports or printed) == 1:
        return (exports or printed)[0]
    raise LogError(tables("files")["errors"]["no_log"].format(folder=folder, count=len(printed)))


def _csv_files(folder: Path) -> list[Path]:
    return sorted([*folder.glob("*.csv"), *folder.glob("*.csv.gz")])


def _with_files_beside(path: Path) -> list[Log]:
    """The runs in a log, with settings and crash from files beside it. Raises LogError for no known metric."""
    found, notes = beside.settings_beside(path) if str(path) != STDIN else ({}, [])
    if path.is_dir():
        logs = table.runs_in(formats.read_events(path) if formats.event_files(path) else _exports(path))
    else:
        every = found.get("logging_steps", 1)
        logs = _in_file(path, int(every) if isinstance(every, int | float) and every >= 1 else 1)
        if len(logs) == 1 and str(path) != STDIN:
            logs = [_with_held_out(logs[0], path)]
    if path.name in PRINTED_BESIDE:
        logs[-1] = replace(logs[-1], crash=logs[-1].crash or beside.crash_beside(path))
    elif not any(len(log.steps) or log.crash for log in logs):
        raise LogError(_no_metric(path, logs[0].unread, logs[0].format_in_words()))
    filtered, runs = found.get("logging_nan_inf_filter", True) is not False, []
    for log in logs:
        told, hidden = (*log.notes, *notes), log.hides_nan and filtered
        runs.append(replace(log, settings={**found, **log.settings}, notes=told, hides_nan=hidden))
    return runs


def _with_held_out(log: Log, path: Path) -> Log:
    """A log with the held-out reward in the one file of evaluations beside it, as eval.jsonl, if the log has its steps.

    A file that cannot be read is noted.
    """
    files = [each for each in path.parent.glob(f"*{path.suffix}") if each.is_file() and table.words_of(each.stem)[1]]
    of_rows = log.format in ("csv", "json_lines") and len(log.steps) and table.HELD_OUT not in log.metrics
    if not of_rows or len(files) != 1 or files[0] == path:
        return log
    try:
        tables = formats.read_text(Text(decoded(content(files[0]), str(files[0])), str(files[0])))
    except (LogError, OSError) as error:
        return replace(log, notes=(*log.notes, table.fact("bad_evaluations", file=files[0].name, why=str(error))))
    for each in tables:
        plain = {name for name in each.metrics if table.words_of(name)[1] or name in table.counters(each.metrics)}
        columns = {name if name in plain else f"eval/{name}": column for name, column in each.metrics.items()}
        curve = table.log_of(replace(each, metrics=columns)).metrics.get(table.HELD_OUT)
        if curve is not None and len(curve) > 1 and curve.index.to_series().between(0, log.steps[-1]).all():
            found = table.fact("held_out_beside", file=files[0].name)
            return replace(log, metrics={**log.metrics, table.HELD_OUT: curve}, notes=(*log.notes, found))
    return log


def _exports(folder: Path) -> list[table.Table]:
    """The runs in CSV exports of W&B or TensorBoard, which hold one curve each. Raises LogError for none."""
    texts = [Text(decoded(content(path), str(path)), str(path)) for path in _csv_files(folder)]
    single = [text for text in texts if text.first.lower().split(",") == formats.OF_TENSORBOARD]
    known = [text for text in texts if text not in single or formats.named_in(Path(text.name).name)]
    if found := formats.together([each for text in known for each in formats.read_csv(text)]):
        return found
    raise LogError(f"{folder}: its CSV files hold no metric known here, as train_kl.csv of TensorBoard or a W&B panel")


def _in_file(path: Path, logging_steps: int) -> list[Log]:
    """The runs in a file. Raises LogError for an empty file and an unknown format."""
    data = content(path)
    if not data.strip():
        raise LogError(f"{path} is empty; give the log of a run that made at least one step")
    if b"brain.Event:" in data[:64]:  # the first record names the version of the format
        if str(path) == STDIN or path.suffix == ".gz":
            raise LogError(f"{path} holds TensorBoard's events, which are read from an unpacked file; unpack it first")
        return table.runs_in(formats.read_events(path))
    text = Text(decoded(data, str(path)), str(path), logging_steps)
    if found := formats.read_text(text):
        return table.runs_in(found)
    alone = patterns("text")["alone"].findall(text.said)
    if crash := last_exception(text.said) or "".join(alone[:1]):
        settings = printed_settings(text.said)
        source = "verl" if any(name.startswith("actor_rollout_ref") for name in settings) else ""
        return [Log({}, "no_metrics", crash=crash, settings=settings, source=source)]
    if names := names_in(text.said):
        raise LogError(_no_metric(path, names))
    raise LogError(f"{path}: unknown format; looked for " + "; ".join(tables("files")["formats"]))


def _no_metric(path: Path, names: Sequence[str], format: str = "a table or console") -> str:
    likely = min(names, key=lambda name: not table.NEAR["reward"].fullmatch(table.words_of(name)[0]), default="")
    offered = f"; its columns are {', '.join(names[:20])}: --metric reward={likely} reads that" if names else ""
    return f"{path} was read as {format} and holds no metric known here, as reward, kl or grad_norm{offered}"
