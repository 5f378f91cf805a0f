"""Logs of training runs, from this project and other trainers, as one table of metrics, which `diagnosis` reads.

From a run folder only the metrics are read: no config, no verdict, no action of a guard or fault.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from grpo_lab.analysis.logs import formats, settings, tensorboard
from grpo_lab.analysis.logs.crash import last_exception
from grpo_lab.analysis.logs.rows import Log as Log
from grpo_lab.analysis.logs.rows import make, of_frame, without_blank_rows
from grpo_lab.errors import LogError
from grpo_lab.events import Event, Stepped

FORMATS = (
    "a run folder of grpo_lab, or its events.jsonl",
    "trainer_state.json of TRL or transformers, its log_history, or the lines that Trainer prints",
    "verl's console (step:1 - actor/grad_norm:0.3 - …) or its file logger",
    "JSON lines with a dictionary of metrics each",
    "TensorBoard event files or their folder",
    "CSV with a header",
)
TABLE = "a table"


def read(path: str | Path) -> Log:
    """The metrics in a log file or folder, whose format is recognised from its content; of several runs the last.

    Raises LogError for a path that does not exist, an empty file, an unknown format, or a log without a known metric.
    """
    return read_runs(path)[-1]


def read_runs(path: str | Path) -> list[Log]:
    """The runs in a log file or folder, in their order: several in a file to which more than one run was appended.

    Raises LogError as `read` does.
    """
    path = Path(path)
    try:
        logs = _read_folder(path) if path.is_dir() else _read_file(path)
    except OSError as error:
        raise LogError(f"{path} cannot be read: {error.strerror or error}; give a log file or its folder") from error
    if not any(len(log.steps) or log.crash for log in logs):
        raise LogError(
            f"{path} was read as {logs[0].format} and holds no metric known here, as reward, kl or grad_norm"
        )
    found = settings.beside(path)
    return [dataclasses.replace(log, settings={**found, **log.settings}) for log in logs]


def from_dicts(found: Iterable[Mapping[str, Any]]) -> Log:
    """The metrics in dictionaries, one a step, as `trainer.state.log_history` of TRL; of several runs the last.

    >>> from_dicts([{"step": 1, "kl": 0.1, "epoch": 0.1}, {"step": 2, "kl": 0.2}]).metrics["kl"].tolist()
    [0.1, 0.2]
    """
    return formats.from_dicts(found, TABLE)[-1]


def from_frame(frame: pd.DataFrame) -> Log:
    """The metrics in a pandas DataFrame, one row a step; the step is a column, the index, or the number of the row."""
    return make(without_blank_rows(of_frame(frame)), TABLE)


def from_events(events: Iterable[Event]) -> Log:
    """The metrics in the events of a run."""
    steps = [event for event in events if isinstance(event, Stepped)]
    found = ({"step": step.step, **step.metrics} for step in steps)
    log = formats.from_dicts(found, "a run of grpo_lab", source="grpo_lab")[-1]
    return dataclasses.replace(log, updates_a_row=max((step.updates for step in steps), default=1))


def _read_folder(folder: Path) -> list[Log]:
    """The runs in a folder. Raises LogError where there is none."""
    if (folder / "events.jsonl").exists():
        return _read_file(folder / "events.jsonl")
    states = [folder / "trainer_state.json", *folder.glob("*/trainer_state.json")]
    if found := [state for state in states if state.exists()]:
        return _read_file(max(found, key=lambda state: (state.parent == folder, state.stat().st_size)))
    if tensorboard.event_files(folder):
        return [tensorboard.read(folder)]
    raise LogError(
        f"{folder} holds no log: no events.jsonl, trainer_state.json or TensorBoard file; give the file itself"
    )


def _read_file(path: Path) -> list[Log]:
    """The runs in a file. Raises LogError for an empty file and an unknown format."""
    data = path.read_bytes()
    if not data.strip():
        raise LogError(f"{path} is empty; give the log of a run that made at least one step")
    if tensorboard.is_event_file(data):
        return [tensorboard.read(path)]
    text = data.decode("utf-8-sig", errors="replace").replace("\r\n", "\n")
    logs = formats.read_text(text, str(path))
    if not logs and (crash := last_exception(text)):
        return [Log({}, "a console without metrics", crash=crash)]
    if not logs:
        raise LogError(f"{path}: unknown format; looked for " + "; ".join(FORMATS))
    return logs
