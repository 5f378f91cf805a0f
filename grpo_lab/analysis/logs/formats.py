"""The formats of a text, each with a reader that recognises it by its content, and TensorBoard's event files.

To add one, write a function that returns a `Table` of what it finds, or nothing, and add it to `READERS`. Here are
JSON, CSV with one row a step, the export of a W&B panel, TensorBoard's own export of one curve a file, and tables in a
text, page or notebook. Event files need the package `tensorboard` (the extra of the same name), imported only here.
"""

import csv
import html
import itertools
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import pandas as pd

from grpo_lab.analysis.logs.beside import leaves
from grpo_lab.analysis.logs.console import read_console, record_forms
from grpo_lab.analysis.logs.table import (
    HELD_OUT,
    PREFIXES,
    STEP_NAMES,
    Columns,
    Fact,
    Table,
    choose,
    columns_of,
    counters,
    fact,
    indices,
    meaning,
    measured,
    number_in,
    unread,
    words_of,
)
from grpo_lab.analysis.logs.text import Text, last_exception, literal, parsed, patterns, tables
from grpo_lab.errors import LogError
from grpo_lab.metrics import METRICS, OTHER_NAMES

_PATTERNS = patterns("formats")
_FILES = tables("files")["json"]
COUNTED = (*STEP_NAMES, *_FILES["counters"])
"""Counters that stand beside the metrics."""


def read_json(text: Text) -> list[Table]:
    """A JSON document of Trainer, or one document a line. Raises LogError for damaged JSON."""
    whole = literal(text.said) if text.first.startswith(("[{'", "{'")) else parsed(text.said)
    if whole is None and not _PATTERNS["json"].match(text.first):
        return []
    if isinstance(whole, list) and whole and all(isinstance(each, int | float) for each in whole):
        name = PurePath(text.name).stem  # numbers without a name but that of the file, as rewards_beta0.1.json
        whole = {_PATTERNS["setting"].sub("", name): whole}
    if isinstance(whole, dict) and isinstance(history := whole.get("log_history"), list):
        known = {name: whole[name] for name in _FILES["settings"] if whole.get(name)}
        rows = [row for row in history if isinstance(row, dict)]
        return _of_rows(rows, Table({}, "log_history", source="trl", settings=known))
    if runs := _runs_of(whole):
        return _of_runs(runs, "json")
    if rows := _rows_of(whole):
        return _of_rows(rows, Table({}, "json"))
    if whole is None and (rest := _PATTERNS["history"].search(text.said)) and (rows := parsed(rest[1] + "]")):
        return _of_rows(rows, Table({}, "log_history", [fact("cut")], source="trl"))
    if whole is None and parsed(text.first) is None:
        raise LogError(f"{text.name}: damaged JSON, it ends or breaks off in the middle; give the whole file")
    return _of_lines(text)


def _of_lines(text: Text) -> list[Table]:
    """One document a line; of `events.jsonl` without those that a resume replaced, as `events.lineage` says."""
    trees: list[Any] = []
    for line in filter(str.strip, text.said.split("\n")):
        tree = parsed(line)
        if isinstance(tree, dict) and tree.get("event") in ("Resumed", "Forked") and isinstance(tree.get("kept"), int):
            del trees[tree["kept"] :]
        trees.append(tree)
    known = [tree for tree in trees if isinstance(tree, dict)]
    own = any(tree.get("event") in ("Started", "Stepped") for tree in known)
    notes = _notes_on([place for place, tree in enumerate(trees) if not isinstance(tree, dict)], len(trees), text.name)
    events = [tree for tree in known if own and "metrics" in tree]
    if not events:
        return _of_rows([] if own else known, Table({}, "json_lines", notes))
    updates = max(1, *(int(tree.get("updates", 1)) for tree in events))
    columns = columns_of(map(_metrics_of, events))
    return [Table(columns, "own_run", notes, source="grpo_lab", updates_a_row=updates)]


def _notes_on(broken: list[int], count: int, name: str) -> Sequence[Fact]:
    """Notes on broken lines. Raises LogError if most lines are broken."""
    cut = bool(broken) and broken[-1] == count - 1
    inside = broken[: len(broken) - cut]
    if len(inside) > count / 2:
        told = {"name": name, "broken": len(inside), "count": count, "first": inside[0] + 1}
        raise LogError(tables("files")["errors"]["no_json"].format(**told))
    notes = [fact("cut")] if cut else []
    if inside:
        notes.append(fact("no_json", broken=f"{len(inside):,}", count=f"{count:,}", first=inside[0] + 1))
    return notes


def _of_rows(rows: Sequence[dict[str, Any]], about: Table) -> list[Table]:
    """A table of rows; one for each run where columns as `seed` tell apart the rows of a step, or names do."""
    rows = _wide(rows)
    if runs := _runs_in_columns(rows):
        return _of_runs(runs, about.format, about.notes)
    named = [*map(_label, rows)]
    step = next((name for row in rows for name in counters(row)), "")
    steps = [str(row.get(step)) for row in rows]
    alone, together, most = len({*zip(named, steps, strict=True)}), len({*steps}), len(rows)
    if not step or 10 * (alone - together) < most or 10 * alone < 9 * most or 5 * len({*named}) > most:
        return [replace(about, metrics=columns_of(map(_metrics_of, rows)))]
    runs = {run: [row for row, name in zip(rows, named, strict=True) if name == run] for run in dict.fromkeys(named)}
    tables = _of_runs({run: columns_of(map(_metrics_of, own)) for run, own in runs.items()}, about.format, about.notes)
    return [replace(table, source=about.source, settings=about.settings) for table in tables]


def _wide(rows: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    """The rows with a column for each metric, where a log has one of them a row, as MLflow's export."""
    key = next((name for name in _FILES["of_metric"] if rows and {name, "value"} <= rows[0].keys()), "")
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows if key and counters(rows[0]) else ():
        about = {name: each for name, each in row.items() if name not in (key, "value", "timestamp")}
        found.setdefault(tuple(about.values()), about)[row[key]] = row["value"]
    return [*found.values()] or rows


def _runs_in_columns(rows: Sequence[dict[str, Any]]) -> dict[str, Columns]:
    """The columns of each run in a table of several, as "A reward", "A kl", "B reward", "B kl"; none in another."""
    names = [*dict.fromkeys(name for row in rows for name in row)]
    step = next(iter(counters(names)), "")
    for split in (str.partition, str.rpartition):
        parts = {name: split(name.replace("*", "").strip(), " ") for name in names if name != step}
        runs: dict[str, dict[str, str]] = {run: {step: step} for run, _, _ in parts.values()}
        for name, (run, _, metric) in parts.items():
            runs[run][metric] = name
        kinds = {frozenset(own) for own in runs.values()}
        alike = len(runs) > 1 and len(kinds) == 1 and len(measured(*kinds)) > 1
        if alike and not any(words_of(run)[1] or _PATTERNS["no_run"].fullmatch(run) for run in runs):
            each = {
                run: [{new: row.get(name) for new, name in own.items()} for row in rows] for run, own in runs.items()
            }
            return {run: columns_of(own) for run, own in each.items()}
    return {}


def _runs_of(tree: Any) -> dict[str, Columns]:
    """The columns of each run in a JSON document of several runs that log the same; none in another."""
    names = [*map(_label, tree)] if isinstance(tree, list) else []
    names = names if len({*names}) == len(names) else [*map(str, range(len(names)))]
    parts = tree if isinstance(tree, dict) else dict(zip(names, tree if names else (), strict=True))
    rows = {name: _rows_of(part) for name, part in parts.items() if not words_of(name)[1]}
    runs = {name: columns_of(map(_metrics_of, own)) for name, own in rows.items() if len(own) > 5}
    kinds = {frozenset(measured(columns)) for columns in runs.values()}
    of_steps = any(map(str.isdigit, runs)) and not all(map(counters, runs.values()))  # the samples of a step
    if len(runs) > 1 and len(kinds) == 1 and all(kinds) and not of_steps:
        return runs
    return next(filter(None, map(_runs_of, tree.values())), {}) if isinstance(tree, dict) else {}


def _label(row: Any) -> str:
    """What tells the run of a row or a part of a JSON document, as "seed 3"; empty if nothing does."""
    known = {str(name).lower(): value for name, value in row.items()} if isinstance(row, dict) else {}
    found = [(name, known[name]) for name in _FILES["labels"] if name in known]
    return " ".join(str(value) if number_in(value) is None else f"{name} {value}" for name, value in found)


def _rows_of(tree: Any) -> list[dict[str, Any]]:
    """The rows in a JSON document: a list of them, one list a metric, or one object a step; none in another."""
    if not isinstance(tree, dict):
        return tree if isinstance(tree, list) and all(isinstance(row, dict) for row in tree) else []
    lists = {name: value for name, value in leaves(tree, "/") if isinstance(value, list) and value}
    if rows := {name: value for name, value in lists.items() if all(isinstance(each, dict) for each in value)}:
        longest = max(rows.values(), key=len)
        evaluated = [row for name, value in rows.items() if words_of(name)[1] and value is not longest for row in value]
        return _with_evaluations(longest, evaluated)
    by_step: dict[float, dict[str, Any]] = {}
    for name, points in lists.items():  # a step and a value, perhaps behind a time
        steps = [each[-2] for each in points if isinstance(each, list) and len(each) in (2, 3)]
        grow = all(isinstance(each, int) for each in steps) and all(map(operator.lt, steps, steps[1:]))
        for point in points if grow and len(steps) == len(points) > 1 else ():
            by_step.setdefault(point[-2], {"step": point[-2]})[name] = point[-1]
    if by_step:
        return [by_step[step] for step in sorted(by_step)]
    numbers = {name: value for name, value in lists.items() if any(number_in(each) is not None for each in value)}
    if numbers:
        size = max(map(len, numbers.values()))
        found: list[dict[str, Any]] = [{} for _ in range(size)]
        for name, values in numbers.items():  # a list of evaluations is shorter: at equal distances
            for place, value in enumerate(values, start=1):
                found[round(place * size / len(values)) - 1][name] = value
        return found
    steps = [_PATTERNS["keyed"].fullmatch(name) for name in tree]
    if len(tree) > 1 and all(steps) and all(isinstance(value, dict) for value in tree.values()):
        found = [{**value, "step": float(key[1] or 0)} for key, value in zip(steps, tree.values(), strict=True) if key]
        return sorted(found, key=operator.itemgetter("step"))
    return []


def _with_evaluations(rows: list[dict[str, Any]], evaluated: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of a training with those of another list at the same steps, its names behind "eval/"."""
    step = next(iter(counters(rows[0])), "")
    steps = [row.get(step) for row in rows]
    if not step or not all(isinstance(each, int | float) for each in steps) or len({*steps}) < len(rows):
        return rows
    found = {row[step]: row for row in rows}
    for row in evaluated:
        if isinstance(at := row.get(step), int | float):
            found[at] = {step: at, **found.get(at, {}), **{f"eval/{name}": row[name] for name in row if name != step}}
    return [found[at] for at in sorted(found)]


def _metrics_of(tree: dict[str, Any]) -> dict[str, Any]:
    """Only the metrics of a JSON object: of `events.jsonl`, of verl's file logger, or of a flat or nested one."""
    inner = next((tree[key] for key in ("metrics", "data") if isinstance(tree.get(key), dict)), None)
    if inner is not None:
        tree = {**{name: value for name, value in tree.items() if name in COUNTED}, **inner}
    texts = {name: value for name, value in tree.items() if name in COUNTED and isinstance(value, str)}
    counted = {name: value.partition("/")[0] for name, value in texts.items() if _PATTERNS["of"].match(value)}
    found = dict(leaves(tree | counted, "/"))
    for name in [name for name, each in found.items() if isinstance(each, list) and "reward" in choose([name])]:
        group = [number for each in found[name] if (number := number_in(each)) is not None]
        if len(group) > 1:
            found |= {name: np.mean(group), "reward_std": np.std(group)}
    held_out = any(str(tree.get(key)).lower().startswith(("eval", "val", "test")) for key in _FILES["kinds"])
    counts = {name for name in found if name in COUNTED or counters([name])}
    return {name if name in counts else f"eval/{name}": value for name, value in found.items()} if held_out else found


OF_TENSORBOARD = ["wall time", "step", "value"]
_BOUNDS = ("__MIN", "__MAX")
_NAMES = {*METRICS, *itertools.chain(*OTHER_NAMES.values())} - {"num_tokens", *OTHER_NAMES["ratio/mean"]}
_TAGS = {(before + name).replace("/", "_"): before + name for before in ("", *PREFIXES) for name in sorted(_NAMES)}
"""Names as TensorBoard writes them in a file's name; its num_tokens may be a step's or those since the start, and
any file may end with "ratio"."""


def read_table(text: Text) -> list[Table]:
    """The tables with rewards in a text, or else the longest, as Markdown, pandas and rich print them.

    Those with the same names are one. One with the same steps and other names, or of evaluations, is of the same run.
    """
    if max(record_forms(text.said)) > 1:  # a trainer printed samples in tables between its records
        return []
    parts: dict[tuple[str, ...], list[pd.DataFrame]] = {}
    for table in itertools.chain(*itertools.starmap(_tables_of, _blocks(text.said))):
        parts.setdefault(tuple(table.columns), []).append(table)
    found = [pd.concat(each, ignore_index=True) for each in parts.values()]
    if not any(choose(table.columns).keys() & {"reward", HELD_OUT} for table in found):
        found = [_with_results(table) for table in found]
    found = [table for table in found if measured(table.columns)]
    said = [table for table in found if len(table) >= min(3, max(map(len, found)))]
    kept = [table for table in said if "reward" in choose(table.columns) and len(table) > 5]
    of_rewards = [table for table in said if choose(table.columns).keys() & {"reward", HELD_OUT}]
    fits = [table for table in of_rewards if 2 * len(table) >= max(map(len, said))] or said
    kept = kept or sorted(fits, key=lambda table: (len(table), "reward" in choose(table.columns)))[-1:]
    main = max(kept, key=lambda table: (bool(_steps(table)), len(choose(table.columns))), default=pd.DataFrame())
    of_runs = [bool(_steps(table)) is bool(_steps(main)) and not _of_one_run(main, table) for table in kept]
    kept = [table for table, of_run in zip(kept, of_runs, strict=True) if of_run]
    beside = [other for other in said if _of_one_run(main, other)] if len(kept) == 1 else []
    left = [fact("other_tables", count=others)] if (others := len(found) - len(kept) - len(beside)) else []
    if beside:
        by_step = [table.set_axis(_steps(table)).iloc[:, 1:] for table in (*kept, *beside)]
        kept = [pd.concat(by_step, axis=1).sort_index().fillna("").rename_axis(kept[0].columns[0]).reset_index()]
    rows = [[dict(zip(table.columns, row, strict=True)) for row in table.to_numpy()] for table in kept]
    return [table for each in rows for table in _of_rows(each, Table({}, "table", left))]


def _blocks(said: str) -> list[tuple[list[list[str]], bool]]:
    """The tables in a text as rows of cells, and whether a heading says that they are of evaluations.

    The first row has the names, or the steps of a table that is turned.
    """
    headings: dict[int, str] = {}
    blocks: list[tuple[list[list[str]], bool]] = []
    block: list[list[str]] = []
    for line in (_PATTERNS["tail"].sub("", line) for line in said.split("\n")):
        if _PATTERNS["dashes"].match(line):
            continue
        if heading := _PATTERNS["heading"].match(line):
            level = heading.end()
            headings = {place: above for place, above in headings.items() if place < level} | {level: line}
        row = _cells(line.replace("`", ""))
        if "|" not in line and block and len(row) != len(block[0]) == len(line.split()):  # a cell fills its column
            row = line.split()
        row = [_PATTERNS["first_of"].sub("", cell) for cell in row]
        steps = [_PATTERNS["range"].sub("", cell) for cell in row]
        count_at = next((at for at, name in enumerate(block[0]) if counters([name])), 0) if block else 0
        if not _of_steps(steps):  # elsewhere, a span is no value
            known = [number_in(cell) is not None for cell in row]
            steps = [step if at == count_at or known[at] or step == row[at] else "" for at, step in enumerate(steps)]
        row = steps
        row = ["" if _PATTERNS["empty"].fullmatch(cell) else cell for cell in row]
        if block and row[0].isdigit() and len(row) == len(block[0]) + 1:
            row = row[:-1] if number_in(row[-1]) is None else row[1:]  # a remark is behind, or pandas numbers it
        numbers = sum(number_in(cell) is not None for cell in row)
        of_names = len(row) > 1 and not numbers and bool(choose(row) or ("|" in line and counters(row[:1])))
        inside = bool(block) and len(row) == len(block[0])
        unlike = not counters(row[:1]) and _PATTERNS["no_name"].search(line)
        if (of_names and not unlike) or (numbers > 2 and not inside and _of_steps(row)):
            block = [row]
            about = next(filter(_PATTERNS["about"].search, reversed(headings.values())), "")
            blocks.append((block, _PATTERNS["of_evaluations"].match(about) is not None))
        elif inside and 2 * (numbers + row.count("")) > len(row) and any(row):
            block.append(row)
        elif not (inside and (numbers or "" in row)):  # a row of remarks ends no table
            block = []
    return blocks


def _tables_of(block: list[list[str]], held_out: bool) -> Iterator[pd.DataFrame]:
    """The tables in a block: of problems that are trained, and of evaluations, with "eval/" before their names.

    A word in the cell of a step tells that a row is of an evaluation, too.
    """
    names, *rows = block
    if _of_steps(names):
        (first, *names), *rows = map(list, zip(names, *rows, strict=True))
        names = [first if counters([first]) else "step", *names]
    half = -(-len(names) // 2)
    # A long table in two halves beside each other, perhaps with an empty column between them.
    if len(names) > 1 and names[half:] == names[: len(names) - half]:
        names, rows = names[:half], [row[:half] for row in rows] + [[*row[half:], ""][:half] for row in rows]
    counted = counters(names[:1])
    if any(name.lower() in _FILES["labels"] for name in names):
        for before, row in itertools.pairwise(rows):  # the step of the row above
            row[0] = row[0] or before[0]
    steps = [number_in(row[0]) for row in rows]
    if counted and len(rows) > 1 and steps[0] is None and (steps[1] or 0) > 0:
        rows[0][0] = "0"  # as "base", before the first step
    if counted and len(rows) > 2 and _PATTERNS["summary"].match(rows[-1][0]):
        del rows[-1], steps[-1]
    if counted and len(rows) > 2 and steps[-1] is None and (steps[-2] or 0) > (steps[-3] or 0):
        rows[-1][0] = f"{2 * (steps[-2] or 0) - (steps[-3] or 0):g}"  # as "end", after the last step
    trained = any(map(_PATTERNS["trained"].search, names))
    held_out = held_out and not trained and measured(names) <= {"reward", HELD_OUT, "completions/mean_length"}
    evaluated = [row for row in rows if held_out or (counted and _PATTERNS["evaluated"].search(row[0]))]
    of_evaluations = [*names[:1], *(f"eval/{name}" for name in names[1:])] if counted else names
    tables = (names, [row for row in rows if row not in evaluated]), (of_evaluations, evaluated)
    yield from (pd.DataFrame(own, columns=[*each]) for each, own in tables if own)


def _with_results(table: pd.DataFrame) -> pd.DataFrame:
    """The table with "eval/" before unknown names of shares by step, as those of right answers in a set of problems."""
    shares = [name for name in unread(table.columns, ()) if all(map(_PATTERNS["share"].fullmatch, table[name]))]
    return table.rename(columns={name: f"eval/{name}" for name in shares if counters(table.columns[:1])})


def _of_steps(row: Sequence[str]) -> bool:
    """Whether a row has a name and then four whole numbers or more that grow; the first may be a word for step 0."""
    numbers = [*map(number_in, row)]
    steps = [number for number in numbers[2:] if number is not None and number % 1 == 0]
    named = numbers[0] is None and not choose(row[:1])
    return named and len(steps) == len(row) - 2 > 2 and all(map(operator.lt, [numbers[1] or 0, *steps], steps))


def _steps(table: pd.DataFrame) -> list[float]:
    """The numbers in the first column, if it counts and they grow; else none."""
    steps = [number for cell in table.iloc[:, 0] if (number := number_in(cell)) is not None]
    grow = len(steps) == len(table) and all(map(operator.lt, steps, steps[1:]))
    return steps if grow and counters(table.columns[:1]) else []


def _of_one_run(table: pd.DataFrame, other: pd.DataFrame) -> bool:
    """Whether another table has the steps of this one, or is of evaluations, and other columns beside the steps."""
    fits = _steps(table) == _steps(other) or choose(other.columns).keys() == {HELD_OUT}
    return bool(_steps(table) and _steps(other)) and fits and {*table.columns[1:]}.isdisjoint(other.columns)


def _cells(line: str) -> list[str]:
    """The cells of a line of a table: between bars, tabs, or blanks, of which two or more count if there are such."""
    line = line.strip()
    for separator in (r"\s*[|│┃║]\s*", r"\t", r"\s{2,}", r"\s*,\s*", r"\s+"):
        if re.search(separator, line):
            return re.split(separator, re.sub(r"^[|│┃║]\s*|\s*[|│┃║]$", "", line))
    return [line]


def read_csv(text: Text) -> list[Table]:
    """A table for each run of a CSV; none if its first line names no metric. Raises LogError for a damaged file."""
    if " | " in text.first or text.first.startswith("#"):
        return []
    separator = max(",\t;", key=text.first.count)
    try:
        names = [name.strip() for name in next(csv.reader([text.first], delimiter=separator), [])]
    except csv.Error:  # a field is longer than csv reads, so this is no header
        return []
    if {"Name", "State"} <= set(names):
        raise LogError(f"{text.name} is W&B's table of runs, with one row a run; export the panels of a run as CSV")
    if [name.lower() for name in names] == OF_TENSORBOARD:
        return _of_curve(*_read(text, separator), text.name)
    if choose(
        match["name"] for each in names if (match := _PATTERNS["of_a_run"].match(each)) and not each.endswith(_BOUNDS)
    ):
        return _of_panel(*_read(text, separator), names[0])
    of_one_a_row = "value" in names and not {*names}.isdisjoint(_FILES["of_metric"])
    if not (choose(names) or of_one_a_row) or any(map(_PATTERNS["no_name"].search, names)):
        return []
    rows, notes = _read(text, separator)
    return _of_rows(rows, Table({}, "csv", notes))


def together(tables: Sequence[Table]) -> list[Table]:
    """The runs of several exports, each with the columns that any of them has."""
    runs: dict[str, Columns] = {}
    named = {table.name for table in tables if table.name}
    for table in tables:
        run = table.name or (min(named) if len(named) == 1 else "")  # the name of one curve alone may tell no run
        known = runs.setdefault(run, {})
        after = Table(known).size
        for name, column in table.metrics.items():
            moved = column.set_axis(column.index + after)
            known[name] = pd.concat([known[name], moved]) if name in known else moved
    notes = [note for table in tables for note in table.notes]
    return _of_runs(runs, tables[0].format, notes) if tables else []


def _of_runs(runs: dict[str, Columns], format: str, notes: Sequence[Fact] = (), in_folder: bool = False) -> list[Table]:
    """A table for each run that has a metric, with its name, and a note on all of them if there are several."""
    if len(runs) > 1:
        told = {"count": len(runs), "names": ", ".join(runs)}
        notes = [*notes, fact("runs_in_folder", **told) if in_folder else fact("runs_in_export", **told)]
    return [Table(columns, format, notes, one_run=True, name=name) for name, columns in runs.items() if choose(columns)]


def _read(text: Text, separator: str) -> tuple[list[dict[str, Any]], list[Fact]]:
    """The rows of a CSV, and a note if its last row is cut. An empty cell was not logged; the text nan is NaN."""
    lines, rows = text.said.lstrip("\n").split("\n"), list[dict[str, Any]]()
    reader = csv.DictReader(lines, delimiter=separator, skipinitialspace=True)
    try:
        reader.fieldnames = [name.strip() for name in reader.fieldnames or ()]
        for number, row in enumerate(reader, start=2):
            beyond = row.pop(None, ())  # the line may end in a separator
            if any(map(str.strip, beyond)):
                raise csv.Error(f"row {number} has {len(row) + len(beyond)} cells of {len(row)}")
            rows.append(row)
    except csv.Error as error:
        raise LogError(f"{text.name}: damaged CSV, {error}; give the file as it was exported") from error
    cut = bool(lines[-1] and rows and None in rows[-1].values())
    return rows[: len(rows) - cut], [fact("cut")] if cut else []


def _of_panel(rows: list[dict[str, Any]], notes: list[Fact], axis: str) -> list[Table]:
    """The runs in a W&B panel, whose names are "run - metric", without the bounds."""
    columns = columns_of(rows)
    if axis not in STEP_NAMES:
        notes = [*notes, fact("no_axis", axis=repr(axis))]
    runs: dict[str, Columns] = {}
    for name, column in columns.items():
        if (match := _PATTERNS["of_a_run"].match(name)) and not name.endswith(_BOUNDS):
            shared = {axis: columns[axis]} if axis in STEP_NAMES and axis in columns else {}
            runs.setdefault(match["run"], shared)[match["name"]] = column
    return _of_runs(runs, "wandb_panel", notes)


def _of_curve(rows: list[dict[str, Any]], notes: list[Fact], name: str) -> list[Table]:
    """The one curve of TensorBoard's export, whose metric stands in the file's name. Raises LogError if it does not."""
    if not (found := named_in(PurePath(name).name)):
        raise LogError(tables("files")["errors"]["no_curve"].format(name=name))
    run, metric = found
    new = {"step": "step", "value": metric}
    own = {new[key.lower()]: column for key, column in columns_of(rows).items() if key.lower() in new}
    return _of_runs({run: own}, "tensorboard_csv", notes)


def named_in(file: str) -> tuple[str, str] | None:
    """The run and the metric in the name of a TensorBoard export, or None if it tells no metric.

    >>> named_in("run_a_train_kl.csv"), named_in("run-a-tag-train_rewards_short_mean.csv"), named_in("eval_kl.csv")
    (('run_a', 'train/kl'), ('run-a', 'train/rewards/short/mean'), None)
    """
    stem = _PATTERNS["again"].sub("", file.removesuffix(".gz").removesuffix(".csv"))
    run, tagged, tag = stem.partition("-tag-")
    if tagged and tag not in _TAGS and meaning(tag):
        return run, tag
    for at in (0, *(separator.end() for separator in re.finditer(r"[_\-. ]", stem))):
        of_function = _PATTERNS["of_function"].fullmatch(stem, at)
        metric = of_function.expand(r"\1/rewards/\2/mean").lstrip("/") if of_function else _TAGS.get(stem[at:])
        if metric:
            run = stem[:at].rstrip("_-. ").removesuffix("-tag").rstrip("_-. ")
            of_another = not metric.startswith(PREFIXES) and ("train_" in run or _PATTERNS["other"].match(run))
            return None if "-tag-" in run or of_another else (run, metric)
    return None


READERS: tuple[Callable[[Text], list[Table]], ...] = (read_json, read_csv, read_table, read_console)
"""In the order in which they are asked; the first that finds a metric is right."""


def read_text(text: Text) -> list[Table]:
    """What the first reader finds that knows a metric, or else the first that knows the format; none if none does.

    Raises LogError for a damaged file.
    """
    pages, text = [], replace(text, said=_PATTERNS["commented"].sub("", text.said, 1))
    if text.first.startswith("{") and '"cells"' in text.said and isinstance(tree := parsed(text.said), dict):
        pages, said = outputs_of(tree)
        text = replace(text, said=said)
    elif "<table" in text.said:
        pages = tables_in_html(text.said)
    found = [table for page in pages for table in read_csv(replace(text, said=page)) if table.chosen]
    if found:
        most = max(found, key=lambda table: table.size)
        runs = [table for table in found if table.metrics.keys() == most.metrics.keys()]
        if len(runs) > 1:
            each = [fact("runs", count=len(runs), number=place) for place in range(1, len(runs) + 1)]
            runs = [replace(run, notes=[*run.notes, note]) for run, note in zip(runs, each, strict=True)]
        runs[-1] = replace(runs[-1], crashes={runs[-1].size: last_exception(text.said)})
        found = [replace(run, format="table") for run in runs]
    if any("reward" in table.chosen for table in found):
        return found
    without = list[Table]()
    for reader in READERS:
        tables = reader(text)
        known = [table for table in tables if "reward" in table.chosen or (table.chosen and not found)]
        if known and 10 * max(table.size for table in known) >= max((table.size for table in found), default=0):
            return tables
        without = without or tables
    return found or without


def tables_in_html(text: str) -> list[str]:
    """Each table of a page, with tabs between its cells."""
    found = []
    for table in _PATTERNS["table"].findall(text):
        rows = [_PATTERNS["cell"].findall(row) for row in _PATTERNS["row"].findall(table)]
        words = [[html.unescape(_PATTERNS["tag"].sub("", cell)).split() for cell in row] for row in rows if row]
        words = [row for row in words if len(row) == len(words[-1])]  # not a line of names over several columns
        if len(words) > 1 and len(words[0]) > 1:
            found.append("\n".join("\t".join(map(" ".join, row)) for row in words) + "\n")
    return found


def outputs_of(notebook: dict[str, Any]) -> tuple[list[str], str]:
    """The tables in a notebook's outputs, and their text."""
    tables, said = [], []
    for cell in notebook.get("cells") or [each for sheet in notebook.get("worksheets", ()) for each in sheet["cells"]]:
        for output in cell.get("outputs", ()) if isinstance(cell, dict) else ():
            data = output.get("data", {})
            tables += tables_in_html("".join(data.get("text/html", "")))  # a text, or its lines
            said.append("".join(output.get("text", data.get("text/plain", ""))))
            said.append("\n".join(output.get("traceback", ())))
    return tables, "\n".join(filter(None, said)) + "\n"


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
        steps = indices([*scalars.values()])
        scalars["step"] = pd.Series(steps, steps, dtype=np.float64)
    return _of_runs(known, "tensorboard", in_folder=True)


def _scalars(place: Path) -> Columns:
    """The curve of each tag in an event file or a folder of them; the index is the step."""
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        from tensorboard.util.tensor_util import make_ndarray
    except ImportError as error:
        raise LogError(tables("files")["errors"]["no_tensorboard"].format(place=place)) from error
    events = EventAccumulator(str(place), size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    found = {tag: [(each.step, each.value) for each in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    for tag in events.Tags()["tensors"]:  # as TensorFlow 2 writes scalars
        values = [(each.step, make_ndarray(each.tensor_proto)) for each in events.Tensors(tag)]
        found[tag] = [(step, float(value)) for step, value in values if value.shape == () and value.dtype.kind in "fiu"]
    points = {tag: np.array(curve, dtype=np.float64).reshape(-1, 2) for tag, curve in found.items()}
    return {tag: pd.Series(each[:, 1], each[:, 0].astype(np.int64)) for tag, each in points.items()}
