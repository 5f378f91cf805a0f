"""Text formats: recognised by their content, and read."""

import dataclasses
import functools
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from grpo_lab.analysis.logs.crash import exceptions
from grpo_lab.analysis.logs.names import STEP_NAMES, choose
from grpo_lab.analysis.logs.rows import Log, Rows, of_frame
from grpo_lab.analysis.logs.runs import logs_of
from grpo_lab.errors import LogError

NUMBER = r"[-+]?(?:\d[\d.]*(?:[eE][-+]?\d+)?|nan|inf(?:inity)?)"
_JSON = re.compile(r'\{\s*("|\}|$)|\[\s*(\{|\]|$)')
"""The beginning of an object, or of a list of objects; a console may begin with [2026-01-31 or [rank0]."""
_VERL_LINE = re.compile(r"\bstep:\d+ - \S+:.*")
_VERL_PAIR = re.compile(rf"([\w/.@()-]+):(?:np\.\w+\()?({NUMBER})\)?(?= - |\s*$)", re.IGNORECASE)
_TRAINER_LINE = re.compile(r"^[^\S\n]*\{'\w[^']*': .*", re.MULTILINE)
_TRAINER_PAIR = re.compile(rf"'([^']+)': '?({NUMBER})'?", re.IGNORECASE)
PIECE = 2**22


def read_text(text: str, name: str) -> list[Log]:
    """The runs in a text, in order; none if no format fits. Raises LogError for damaged JSON."""
    first = next((line.strip() for line in text.split("\n", 50) if line.strip()), "")
    if _JSON.match(first):
        return _read_json(text, first, name)
    if "step:" in text and _VERL_LINE.search(text):
        return _read_verl(text)
    if "{'" in text and _TRAINER_LINE.search(text):
        return _read_trainer_lines(text)
    return _read_csv(text, first)


def from_dicts(found: Iterable[Mapping[str, Any]], format: str, notes: Sequence[str] = (), **about: Any) -> list[Log]:
    """The runs in dictionaries of metrics, one a step; see `rows.make`."""
    rows = Rows()
    for row in found:
        rows.add(row)
    return logs_of(rows.columns(), format, notes, **about)


def _read_json(text: str, first: str, name: str) -> list[Log]:
    """A JSON document of Trainer, or one document a line. Raises LogError for damaged JSON."""
    if _parsed(first) is None or text.strip() == first:
        whole = _parsed(text)
        if isinstance(whole, dict) and isinstance(whole.get("log_history"), list):
            whole = whole["log_history"]
        if isinstance(whole, list) and all(isinstance(row, dict) for row in whole):
            return from_dicts(whole, "a Trainer's log_history", source="trl")
        if whole is None and _parsed(first) is None:
            raise LogError(f"{name}: damaged JSON, it ends or breaks off in the middle; give the whole file")
    return _read_json_lines(text, name)


def _read_json_lines(text: str, name: str) -> list[Log]:
    rows, broken, own, count, updates = Rows(), [], False, 0, 1
    for piece in _pieces(text):
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
                updates = max(updates, tree["updates"]) if "event" in tree else updates
        count += len(lines)
    format, source = ("a run of grpo_lab", "grpo_lab") if own else ("JSON lines", "")
    logs = logs_of(rows.columns(), format, _notes_on(broken, count, name), source=source)
    return [dataclasses.replace(log, updates_a_row=updates) for log in logs]


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
    return tree


def _pieces(text: str) -> Iterator[str]:
    """Whole lines of a text, some megabytes at a time: a piece that fits the processor's cache is read much faster."""
    start = 0
    while start < len(text):
        end = text.find("\n", start + PIECE) + 1 or len(text)
        yield text[start:end]
        start = end


def _uniform_json(piece: str) -> pd.DataFrame | None:
    """A table of flat JSON lines that have the same names in the same order, and numbers only; or None."""
    first = piece.partition("\n")[0]
    tree = _parsed(first)
    if not isinstance(tree, dict) or not tree or "null" in piece:
        return None
    comma, colon = (", ", ": ") if '": ' in first else (",", ":")
    words = [comma + json.dumps(name) + colon for name in tree]
    words[0] = "{" + words[0].removeprefix(comma)
    return _uniform(piece, [*words, "}"], list(tree))


def _uniform(piece: str, words: list[str], names: list[str]) -> pd.DataFrame | None:
    """A table of lines that all have their numbers between the same words, or None.

    pandas reads words and numbers as cells and skips the words. This is many times as fast as parsing line by line.
    """
    layout = r"[^,:{}\s]*".join(map(re.escape, words)) + "\n"
    lines = piece.removesuffix("\n") + "\n"
    whole = re.compile(f"(?:{layout})*").match(lines)
    if not whole or whole.end() != len(lines) or any(set(name) & set(',:"') for name in names):
        return None
    cells = lines.translate(str.maketrans({":": ",", "{": None, "}": None}))
    places = range(1, 2 * len(names), 2)
    table = pd.read_csv(io.StringIO(cells), header=None, usecols=list(places), skipinitialspace=True)
    table.columns = pd.Index(names)
    return table if all(dtype.kind in "fi" for dtype in table.dtypes) else None


def _read_verl(text: str) -> list[Log]:
    """verl's console: `step:12 - actor/grad_norm:0.3 - …` between other output."""
    rows = Rows()
    for piece in _pieces(text):
        if not (lines := _VERL_LINE.findall(piece)):
            continue
        names = [part.rpartition(":")[0] for part in lines[0].split(" - ")]
        words = ["step:", *(f",{name}:" for name in names[1:]), ""]
        if (table := _uniform("\n".join(lines).replace(" - ", ","), words, names)) is not None:
            rows.add_table(table)
        else:
            for line in lines:
                rows.add(dict(_VERL_PAIR.findall(line)))
    crashes = {len(_VERL_LINE.findall(text[:at])): said for at, said in exceptions(text)}
    return logs_of(rows.columns(), "verl's console", source="verl", crashes=crashes)


def _read_trainer_lines(text: str) -> list[Log]:
    """The output of Hugging Face's Trainer: {'loss': 0.1, 'grad_norm': 0.3, …}, without the step."""
    lines = [(line.start(), dict(_TRAINER_PAIR.findall(line[0]))) for line in _TRAINER_LINE.finditer(text)]
    notes = ["the lines have no step; they were counted"]
    crashes = {sum(place < at for place, _ in lines): said for at, said in exceptions(text)}
    return from_dicts((row for _, row in lines), "a Trainer's console", notes, source="trl", crashes=crashes)


def _read_csv(text: str, first: str) -> list[Log]:
    for separator in (",", "\t", ";"):
        names = [name.strip().strip('"') for name in first.split(separator)]
        if len(names) > 1 and choose(names):
            break
    else:
        return []
    read = functools.partial(pd.read_csv, sep=separator, skipinitialspace=True)
    text = text.lstrip("\n")
    frame = read(io.StringIO(text), low_memory=False)
    if frame.isna().to_numpy().any():  # an empty cell was not logged; the text nan was logged as NaN
        cells = read(io.StringIO(text), dtype=str, keep_default_na=False)
        frame = cells.astype(object).where(cells != "", None)
    return logs_of(of_frame(frame), "CSV")


def _parsed(text: str) -> Any:
    """The value of a JSON text, or None if it is no JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return None
