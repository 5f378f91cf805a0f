"""The formats of a text: each has a reader, which recognises it by its content.

To add one, write a function that returns a `Table` of what it finds, or nothing, and add it to `READERS`.
"""

import html
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from grpo_lab.analysis.logs.console import read_console
from grpo_lab.analysis.logs.json_logs import read_json
from grpo_lab.analysis.logs.table import Table
from grpo_lab.analysis.logs.tables import read_csv, read_table
from grpo_lab.analysis.logs.text import Text, parsed
from grpo_lab.analysis.logs.verl import read_verl

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
