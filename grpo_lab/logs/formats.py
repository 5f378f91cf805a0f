"""Text formats: how each is recognised by what is in it, and read."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from grpo_lab.errors import LogError
from grpo_lab.logs.names import STEP_NAMES, choose
from grpo_lab.logs.rows import Columns, Log, Rows, make, of_frame

NUMBER = r"[-+]?(?:\d[\d.]*(?:[eE][-+]?\d+)?|nan|inf(?:inity)?)"
_VERL_STEP = re.compile(r"\bstep:\d+ - \S+:")
_VERL_PAIR = re.compile(rf"([\w/.@()-]+):(?:np\.\w+\()?({NUMBER})\)?(?= - |\s*$)", re.IGNORECASE)
_TRAINER_LINE = re.compile(r"^\s*\{'\w[^']*': ", re.MULTILINE)
_TRAINER_PAIR = re.compile(rf"'([^']+)': '?({NUMBER})'?", re.IGNORECASE)
_AT_ONCE = 5000


def read_text(text: str, name: str) -> Log | None:
    """The log that a text holds, or None where no format fits."""
    first = next((line.strip() for line in text.split("\n", 50) if line.strip()), "")
    if first.startswith(("{", "[")) and not first.startswith("{'"):
        return _read_json(text, first, name)
    if "step:" in text and _VERL_STEP.search(text):
        return _read_verl(text)
    if "{'" in text and _TRAINER_LINE.search(text):
        return _read_trainer_lines(text)
    return _read_csv(text, first)


def from_dicts(found: Iterable[dict[str, Any]], format: str, notes: Sequence[str] = (), hides_nan: bool = False) -> Log:
    """A log from dictionaries of metrics, a step each."""
    rows = Rows()
    for row in found:
        rows.add(row)
    return make(rows.columns(), format, notes, hides_nan)


def _read_json(text: str, first: str, name: str) -> Log:
    """A JSON document of Trainer's, or a document a line."""
    if _parsed(first) is None or text.strip() == first:
        whole = _parsed(text)
        if isinstance(whole, dict) and isinstance(whole.get("log_history"), list):
            whole = whole["log_history"]
        if isinstance(whole, list) and all(isinstance(row, dict) for row in whole):
            return from_dicts(whole, "a Trainer's log_history", hides_nan=True)
        if whole is None and _parsed(first) is None:
            raise LogError(f"{name}: damaged JSON, it ends or breaks off in the middle; give the whole file")
    return _read_json_lines(text, name)


def _read_json_lines(text: str, name: str) -> Log:
    if (columns := _uniform_json(text)) is not None:
        return make(columns, "JSON lines")
    lines = [line for line in text.split("\n") if line.strip()]
    rows, broken, own = Rows(), [], False
    for start in range(0, len(lines), _AT_ONCE):
        part = lines[start : start + _AT_ONCE]
        for place, tree in enumerate(_parsed("[" + ",".join(part) + "]") or map(_parsed, part), start=start):
            if not isinstance(tree, dict):
                broken.append(place)
            elif (row := _metrics_of(tree)) is not None:
                rows.add(row)
                own = own or "event" in tree
    notes = []
    if broken and broken[-1] == len(lines) - 1:
        notes.append("the last line is incomplete and was left out")
        broken.pop()
    if len(broken) > len(lines) / 2:
        raise LogError(
            f"{name}: {len(broken):,} of {len(lines):,} lines are no JSON object, the first is line "
            f"{broken[0] + 1}; give a file with one JSON object a line"
        )
    if broken:
        notes.append(
            f"{len(broken):,} of {len(lines):,} lines are no JSON object and were left out, "
            f"the first is line {broken[0] + 1}"
        )
    return make(rows.columns(), "a run of grpo_lab" if own else "JSON lines", notes)


def _metrics_of(tree: dict[str, Any]) -> dict[str, Any] | None:
    """The metrics of a JSON line, and nothing else it holds: `events.jsonl`, verl's file logger, or flat."""
    if "event" in tree and "metrics" not in tree:
        return None
    for key in ("metrics", "data"):
        if isinstance(tree.get(key), dict):
            return {**{name: tree[name] for name in STEP_NAMES if name in tree}, **tree[key]}
    return tree


def _uniform_json(text: str) -> Columns | None:
    """Flat JSON lines of numbers with the same names in the same order."""
    tree = _parsed(text.partition("\n")[0])
    if not isinstance(tree, dict) or not tree or "null" in text:
        return None
    comma, colon = (", ", ": ") if '": ' in text[:200] else (",", ":")
    words = [comma + json.dumps(name) + colon for name in tree]
    words[0] = "{" + words[0].removeprefix(comma)
    return _uniform(text.removesuffix("\n"), [*words, "}"], list(tree))


def _uniform(text: str, words: list[str], names: list[str]) -> Columns | None:
    """Columns of a text whose every line has its numbers between the same words, or None.

    Once that is certain, the words are cells of a table like the numbers, and pandas skips every other one: many times
    as fast as parsing line by line.
    """
    layout = r"[^,:{}\s]*".join(map(re.escape, words)) + "\n"
    text += "\n"
    whole = re.compile(f"(?:{layout})*").match(text)
    if not whole or whole.end() != len(text) or any(set(name) & set(',:"') for name in names):
        return None
    table = text.translate(str.maketrans({":": ",", "{": None, "}": None}))
    places = range(1, 2 * len(names), 2)
    frame = pd.read_csv(io.StringIO(table), header=None, usecols=list(places), skipinitialspace=True)
    if not all(dtype.kind in "fi" for dtype in frame.dtypes):
        return None
    return {name: (frame.index.to_numpy(), frame[n].to_numpy(float)) for name, n in zip(names, places, strict=True)}


def _read_verl(text: str) -> Log:
    """verl's console: `step:12 - actor/grad_norm:0.3 - …` between whatever else was printed."""
    lines = [
        line[match.start() :] for line in text.split("\n") if "step:" in line and (match := _VERL_STEP.search(line))
    ]
    names = [part.rpartition(":")[0] for part in lines[0].split(" - ")]
    words = ["step:", *(f",{name}:" for name in names[1:]), ""]
    if (columns := _uniform("\n".join(lines).replace(" - ", ","), words, names)) is not None:
        return make(columns, "verl's console")
    return from_dicts((dict(_VERL_PAIR.findall(line)) for line in lines), "verl's console")


def _read_trainer_lines(text: str) -> Log:
    """What Hugging Face's Trainer prints: {'loss': 0.1, 'grad_norm': 0.3, …}, without the step."""
    lines = [line for line in text.split("\n") if _TRAINER_LINE.match(line)]
    notes = ["the lines do not say their step; they were counted"]
    return from_dicts((dict(_TRAINER_PAIR.findall(line)) for line in lines), "a Trainer's console", notes, True)


def _read_csv(text: str, first: str) -> Log | None:
    for separator in (",", "\t", ";"):
        names = [name.strip().strip('"') for name in first.split(separator)]
        if len(names) > 1 and choose(names):
            break
    else:
        return None
    frame = pd.read_csv(io.StringIO(text.lstrip("\n")), sep=separator, skipinitialspace=True, low_memory=False)
    if frame.isna().to_numpy().any():  # an empty cell was not logged, the text nan was
        text_frame = pd.read_csv(
            io.StringIO(text.lstrip("\n")), sep=separator, skipinitialspace=True, dtype=str, keep_default_na=False
        )
        frame = text_frame.astype(object).where(text_frame != "", None)
    return make(of_frame(frame), "CSV")


def _parsed(text: str) -> Any:
    """What a JSON text holds, or None."""
    try:
        return json.loads(text)
    except ValueError:
        return None
