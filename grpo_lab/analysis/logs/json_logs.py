"""JSON: Trainer's log_history, events.jsonl of this project, verl's file logger, and any other dictionaries a line."""

import dataclasses
import json
from typing import Any

import pandas as pd

from grpo_lab.analysis.logs.names import OF_MAX_STEPS, STEP_NAMES
from grpo_lab.analysis.logs.rows import Log, Rows
from grpo_lab.analysis.logs.runs import logs_of, of_dicts
from grpo_lab.analysis.logs.uniform import pieces, table_of
from grpo_lab.errors import LogError

OF_STATE = ("logging_steps", "max_steps", "num_train_epochs", "train_batch_size")
"""Settings in trainer_state.json."""
RESUMED = '{"event": "Resumed"'
"""How a line of `events.jsonl` begins that says which events before it hold."""


def read_json(text: str, first: str, name: str) -> list[Log]:
    """A JSON document of Trainer, or one document a line. Raises LogError for damaged JSON."""
    if _parsed(first) is None or text.strip() == first:
        whole = _parsed(text)
        known: dict[str, Any] = {}
        if isinstance(whole, dict) and isinstance(whole.get("log_history"), list):
            known = {name: whole[name] for name in OF_STATE if whole.get(name)}
            whole = whole["log_history"]
        if isinstance(whole, list) and all(isinstance(row, dict) for row in whole):
            return of_dicts(whole, "a Trainer's log_history", source="trl", settings=known)
        if whole is None and _parsed(first) is None:
            raise LogError(f"{name}: damaged JSON, it ends or breaks off in the middle; give the whole file")
    return _read_json_lines(text, name)


def _read_json_lines(text: str, name: str) -> list[Log]:
    rows, broken, own, count, updates = Rows(), [], False, 0, 1
    for piece in pieces(_without_lost_events(text)):
        if (table := _uniform_json(piece)) is not None:
            rows.add_table(table)
            count += len(table)
            continue
        lines = [line for line in piece.split("\n") if line.strip()]
        for place, tree in enumerate(_parsed("[" + ",".join(lines) + "]") or map(_parsed, lines), start=count):
            if not isinstance(tree, dict):
                broken.append(place)
            elif (row := _metrics_of(tree)) is not None:
                rows.add(row)
                own = own or "event" in tree
                updates = max(updates, int(tree.get("updates", 1))) if "event" in tree else updates
        count += len(lines)
    format, source = ("a run of grpo_lab", "grpo_lab") if own else ("JSON lines", "")
    logs = logs_of(rows.columns(), format, _notes_on(broken, count, name), source=source)
    return [dataclasses.replace(log, updates_a_row=updates) for log in logs]


def _without_lost_events(text: str) -> str:
    """The lines of `events.jsonl` without those that a resume replaced, as `events.lineage` leaves them out."""
    if RESUMED not in text:
        return text
    found: list[str] = []
    for line in text.splitlines():
        tree = _parsed(line) if line.startswith(RESUMED) else None
        if tree and isinstance(tree.get("kept"), int):
            del found[tree["kept"] :]
        found.append(line)
    return "\n".join(found) + "\n"


def _notes_on(broken: list[int], count: int, name: str) -> list[str]:
    """Notes on broken lines. Raises LogError if most lines are broken."""
    cut = bool(broken) and broken[-1] == count - 1
    notes = ["the last line is incomplete and was left out"] if cut else []
    inside = broken[: len(broken) - cut]
    said = f"{len(inside):,} of {count:,} lines are no JSON object"
    if len(inside) > count / 2:
        raise LogError(f"{name}: {said}, the first is line {inside[0] + 1}; give a file with one JSON object a line")
    if inside:
        notes.append(f"{said} and were left out, the first is line {inside[0] + 1}")
    return notes


def _metrics_of(tree: dict[str, Any]) -> dict[str, Any] | None:
    """Only the metrics of a JSON line: of `events.jsonl`, of verl's file logger, or of a flat one."""
    if "event" in tree and "metrics" not in tree:
        return None
    for key in ("metrics", "data"):
        if isinstance(tree.get(key), dict):
            return {**{name: tree[name] for name in STEP_NAMES if name in tree}, **tree[key]}
    if isinstance(step := tree.get(OF_MAX_STEPS), str):
        return {**tree, OF_MAX_STEPS: step.partition("/")[0]}
    return tree


def _uniform_json(piece: str) -> pd.DataFrame | None:
    """A table of flat JSON lines that have the same names in the same order, and numbers only; or None."""
    first = piece.partition("\n")[0]
    tree = _parsed(first)
    if not isinstance(tree, dict) or not tree or "null" in piece:
        return None
    comma, colon = (", ", ": ") if '": ' in first else (",", ":")
    words = [comma + json.dumps(name) + colon for name in tree]
    words[0] = "{" + words[0].removeprefix(comma)
    return table_of(piece, [*words, "}"], list(tree))


def _parsed(text: str) -> Any:
    """The value of a JSON text, or None if it is no JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
