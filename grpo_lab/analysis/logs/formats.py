"""The formats of a text: each has a reader, which recognises it by its content.

To add one, write a function that returns a `Table` of what it finds, or nothing, and add it to `READERS`.
Here are JSON and the console of verl: `step:12 - actor/grad_norm:0.3 - …` between other output, on one line or wrapped.
"""

import html
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from grpo_lab.analysis.logs.beside import flat, leaves
from grpo_lab.analysis.logs.console import read_console
from grpo_lab.analysis.logs.table import STEP_NAMES, Fact, Table, columns_of, fact, number_in
from grpo_lab.analysis.logs.tables import read_csv, read_table
from grpo_lab.analysis.logs.text import NUMBER, Text, by_rows, literal, parsed
from grpo_lab.errors import LogError

_RECORD = re.compile(r"\bstep:\d+(?: -(?:[ \t]|$)|[ \t]*$)", re.MULTILINE)
_LINE = re.compile(r"\bstep:\d+ - \S+:.*")
_PAIR = re.compile(rf"([\w/.@()-]+):(?:np\.\w+\()?({NUMBER})\)?(?= - |\s*$)", re.IGNORECASE)
_BEGUN = re.compile(rf"[\w/.@()-]+(:(np\.\w*\(?)?([-+.\de]*|{NUMBER}|[nai]+)\)?)?$", re.IGNORECASE)
_METRIC = re.compile(rf" - [\w.@()-]+/\S+:{NUMBER}")
"""No other output looks like this."""
_PREFIX = re.compile(r"^(?:\x1b?\[[\d;]*m)*(?:\(\w+ pid=\d+[^)]*\))?(?:\x1b?\[[\d;]*m)*\s*")
"""The prefix of ray before a line of a worker."""
_CONFIG = re.compile(r"\{'(?:actor_rollout_ref|algorithm|critic|data)': ")
_OVERRIDE = re.compile(r"(?<!\S)\+{0,2}((?:actor_rollout_ref|algorithm|critic|data|trainer)\.[\w.]+)=([^\s\\'\"]+)")
LONGEST = 2**18
"""Characters of a printed config."""
ROUNDED = " actor/lr:0.000 "
WIDTHS = range(70, 500)
"""Widths at which a terminal cuts a line in the middle of a word."""


def read_verl(text: Text) -> list[Table]:
    """The console of verl."""
    said = _unwrapped(text.said) if "step:" in text.said else ""
    lines = list(_LINE.finditer(said))
    rows = [dict(_PAIR.findall(line[0])) for line in lines]
    notes = []
    ends = len(rows) > 1 and said.endswith(lines[-1][0])
    if ends and len(rows[-1]) < len(rows[-2]) and [*rows[-1]] == [*rows[-2]][: len(rows[-1])]:
        rows.pop()
        notes.append(fact("cut"))
    columns = columns_of(rows)
    if ROUNDED in said and not columns["actor/lr"].any():  # older versions print three decimals
        del columns["actor/lr"]
        notes.append(fact("rate_rounded"))
    crashes = by_rows(said, [line.start() for line in lines])
    about = {"source": "verl", "crashes": crashes, "settings": printed_settings(said)}
    return [Table(columns, "verl_console", notes, **about)] if columns else []


def _unwrapped(text: str) -> str:
    """The text with each record on one line, however it was wrapped."""
    done, before = [], ""
    for line in text.split("\n"):
        record = _continued(done[-1].rstrip(), _PREFIX.sub("", line).strip(), len(before)) if before else ""
        if record:
            done[-1], before = record, line
        else:
            done.append(line)
            before = line if _RECORD.search(line) else ""
    return "\n".join(done)


def _continued(record: str, said: str, width: int) -> str:
    """A record with the next line of it, after one of a width; empty if that line says something else."""
    if not said or _RECORD.search(said):
        return ""
    last = record.rpartition(" - ")[2]
    if record.endswith(" -") or said.startswith("- "):
        joined, added = f"{record.removesuffix(' -')} - {said.removeprefix('- ')}", said.removeprefix("- ")
    elif "/" in said and _PAIR.fullmatch(said) and (_PAIR.fullmatch(last) or _RECORD.search(last)):
        joined, added = f"{record} - {said}", said
    elif width in WIDTHS or _METRIC.search(said):
        joined, added = record + said, last + said
    else:
        return ""
    *whole, begun = added.removesuffix(" -").split(" - ")
    return joined if all(map(_PAIR.fullmatch, whole)) and _BEGUN.match(begun) else ""


def printed_settings(text: str) -> dict[str, Any]:
    """The settings in the config that verl prints at its start, and in the command of a shell that traces (set -x)."""
    given: dict[str, Any] = dict(_OVERRIDE.findall(text[:LONGEST]))
    start = _CONFIG.search(text)
    printed, depth = "", 0
    for line in text[start.start() :][:LONGEST].split("\n") if start else ():
        said = _PREFIX.sub("", line)
        printed += said + "\n"
        depth += said.count("{") - said.count("}")
        if depth <= 0:
            break
    return flat({**given, **flat(literal(printed) or {})})


_JSON = re.compile(r'\{\s*("|\}|$)|\[\s*(\{|\]|$)')
"""The beginning of an object, or of a list of objects; a console may begin with [2026-01-31 or [rank0]."""
_OF = re.compile(r"\d+/\d+$")
"""ms-swift writes the step and the number of steps as one text, "10/100"."""
KINDS = ("type", "split", "phase", "mode", "stage", "event", "kind")
"""What a row is of, as "eval"."""
COUNTED = (*STEP_NAMES, "epoch", "iter", "update", "rollout", "rollout_id")
"""Counters that stand beside the metrics."""
OF_STATE = ("logging_steps", "max_steps", "num_train_epochs", "train_batch_size")
"""Settings in trainer_state.json."""


def read_json(text: Text) -> list[Table]:
    """A JSON document of Trainer, or one document a line. Raises LogError for damaged JSON."""
    whole, known = literal(text.said) if text.first.startswith(("[{'", "{'")) else parsed(text.said), {}
    if whole is None and not _JSON.match(text.first):
        return []
    if isinstance(whole, dict) and isinstance(whole.get("log_history"), list):
        known = {name: whole[name] for name in OF_STATE if whole.get(name)}
        whole = [row for row in whole["log_history"] if isinstance(row, dict)]
    if isinstance(whole, list) and all(isinstance(row, dict) for row in whole):
        return [Table(columns_of(map(_metrics_of, whole)), "log_history", source="trl", settings=known)]
    if isinstance(whole, dict) and (rows := _rows_of(whole)):
        return [Table(columns_of(map(_metrics_of, rows)), "json")]
    if whole is None and parsed(text.first) is None:
        raise LogError(f"{text.name}: damaged JSON, it ends or breaks off in the middle; give the whole file")
    return [_of_lines(text)]


def _of_lines(text: Text) -> Table:
    """One document a line; of `events.jsonl` without those that a resume replaced, as `events.lineage` says."""
    trees: list[Any] = []
    for line in filter(str.strip, text.said.split("\n")):
        tree = parsed(line)
        if isinstance(tree, dict) and tree.get("event") == "Resumed" and isinstance(tree.get("kept"), int):
            del trees[tree["kept"] :]
        trees.append(tree)
    known = [tree for tree in trees if isinstance(tree, dict)]
    columns = columns_of(_metrics_of(tree) for tree in known if "event" not in tree or "metrics" in tree)
    notes = _notes_on([place for place, tree in enumerate(trees) if not isinstance(tree, dict)], len(trees), text.name)
    events = [tree for tree in known if "event" in tree and "metrics" in tree]
    if not events:
        return Table(columns, "json_lines", notes)
    updates = max(1, *(int(tree.get("updates", 1)) for tree in events))
    return Table(columns, "own_run", notes, source="grpo_lab", updates_a_row=updates)


def _notes_on(broken: list[int], count: int, name: str) -> Sequence[Fact]:
    """Notes on broken lines. Raises LogError if most lines are broken."""
    cut = bool(broken) and broken[-1] == count - 1
    inside = broken[: len(broken) - cut]
    if len(inside) > count / 2:
        raise LogError(
            f"{name}: {len(inside):,} of {count:,} lines are no JSON object, the first is line {inside[0] + 1}; "
            "give a file with one JSON object a line"
        )
    notes = [fact("cut")] if cut else []
    if inside:
        notes.append(fact("no_json", broken=f"{len(inside):,}", count=f"{count:,}", first=inside[0] + 1))
    return notes


def _rows_of(tree: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows in one JSON object: a list of them, one list a metric, or one object a step; none in another."""
    lists = {name: value for name, value in leaves(tree, "/") if isinstance(value, list) and value}
    rows = [value for value in lists.values() if all(isinstance(each, dict) for each in value)]
    if rows:
        return max(rows, key=len)
    numbers = {name: value for name, value in lists.items() if any(number_in(each) is not None for each in value)}
    if numbers:
        size = max(map(len, numbers.values()))
        found: list[dict[str, Any]] = [{} for _ in range(size)]
        for name, values in numbers.items():  # a list of evaluations is shorter: at equal distances
            for place, value in enumerate(values, start=1):
                found[round(place * size / len(values)) - 1][name] = value
        return found
    if len(tree) > 1 and all(name.isdigit() and isinstance(value, dict) for name, value in tree.items()):
        return [{"step": name, **value} for name, value in tree.items()]
    return []


def _metrics_of(tree: dict[str, Any]) -> dict[str, Any]:
    """Only the metrics of a JSON object: of `events.jsonl`, of verl's file logger, or of a flat or nested one."""
    inner = next((tree[key] for key in ("metrics", "data") if isinstance(tree.get(key), dict)), None)
    if inner is not None:
        tree = {**{name: value for name, value in tree.items() if name in COUNTED}, **inner}
    texts = {name: value for name, value in tree.items() if isinstance(value, str)}
    counted = {name: value.partition("/")[0] for name, value in texts.items() if _OF.match(value)}
    found = dict(leaves(tree | counted, "/"))
    held_out = any(str(tree.get(key)).lower().startswith(("eval", "val", "test")) for key in KINDS)
    return {name if name in COUNTED else f"eval/{name}": value for name, value in found.items()} if held_out else found


READERS: tuple[Callable[[Text], list[Table]], ...] = (read_json, read_verl, read_csv, read_table, read_console)
"""In the order in which they are asked; the first that finds a metric is right."""
FORMATS = (
    "a run folder of grpo_lab, or its events.jsonl",
    "trainer_state.json of TRL or transformers, its log_history, or the lines that a trainer or your own loop prints",
    "verl's console (step:1 - actor/grad_norm:0.3 - …) or its file logger",
    "JSON lines with a dictionary of metrics each, as ms-swift's logging.jsonl, or JSON with a list for each metric",
    "TensorBoard event files or their folder",
    "CSV with a header, W&B's export of a panel, TensorBoard's CSV, a table in HTML, Markdown, text or a notebook",
)

_TABLE = re.compile(r"<table\b.*?</table>", re.DOTALL | re.IGNORECASE)
_ROW = re.compile(r"<tr\b.*?</tr>", re.DOTALL | re.IGNORECASE)
_CELL = re.compile(r"<t[hd]\b[^>]*>(.*?)</t[hd]>", re.DOTALL | re.IGNORECASE)
_TAG = re.compile(r"<[^>]*>")


def read_text(text: Text) -> list[Table]:
    """What the first reader finds that knows a metric, or else the first that knows the format; none if none does.

    Raises LogError for a damaged file.
    """
    pages = []
    if text.first.startswith("{") and '"cells"' in text.said and isinstance(tree := parsed(text.said), dict):
        pages, said = outputs_of(tree)
        text = replace(text, said=said)
    elif "<table" in text.said:
        pages = tables_in_html(text.said)
    found = [table for page in pages for table in read_csv(replace(text, said=page)) if table.chosen]
    if found:
        return [max(found, key=lambda table: table.size)]
    without: list[Table] = []
    for reader in READERS:
        tables = reader(text)
        if any(table.chosen for table in tables):
            return tables
        without = without or tables
    return without


def tables_in_html(text: str) -> list[str]:
    """Each table of a page, with tabs between its cells."""
    found = []
    for table in _TABLE.findall(text):
        rows = [_CELL.findall(row) for row in _ROW.findall(table)]
        cells = [[" ".join(html.unescape(_TAG.sub("", cell)).split()) for cell in row] for row in rows if row]
        if len(cells) > 1 and len(cells[0]) > 1:
            found.append("\n".join("\t".join(row[: len(cells[0])]) for row in cells) + "\n")
    return found


def outputs_of(notebook: dict[str, Any]) -> tuple[list[str], str]:
    """The tables in a notebook's outputs, and their text."""
    tables, said = [], []
    for cell in notebook.get("cells") or [each for sheet in notebook.get("worksheets", ()) for each in sheet["cells"]]:
        for output in cell.get("outputs", ()) if isinstance(cell, dict) else ():
            data = output.get("data", {})
            tables += tables_in_html(_joined(data.get("text/html", "")))
            said.append(_joined(output.get("text", data.get("text/plain", ""))))
            said.append("\n".join(output.get("traceback", ())))
    return tables, "\n".join(filter(None, said)) + "\n"


def _joined(text: str | list[str]) -> str:
    return text if isinstance(text, str) else "".join(text)
