"""The tables and the text in the outputs of a Jupyter notebook, and the tables of an HTML page."""

import html
import re
from typing import Any

_TABLE = re.compile(r"<table\b.*?</table>", re.DOTALL | re.IGNORECASE)
_ROW = re.compile(r"<tr\b.*?</tr>", re.DOTALL | re.IGNORECASE)
_CELL = re.compile(r"<t[hd]\b[^>]*>(.*?)</t[hd]>", re.DOTALL | re.IGNORECASE)
_TAG = re.compile(r"<[^>]*>")


def tables_in_html(text: str) -> list[str]:
    """Each table of a page, with tabs between its cells."""
    found = []
    for table in _TABLE.findall(text):
        rows = [_CELL.findall(row) for row in _ROW.findall(table)]
        cells = [[" ".join(html.unescape(_TAG.sub("", cell)).split()) for cell in row] for row in rows if row]
        if len(cells) > 1 and len(cells[0]) > 1:
            width = len(cells[0])
            found.append("\n".join("\t".join(row[:width]) for row in cells) + "\n")
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
