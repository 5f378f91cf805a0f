"""The formats of a text: each has a reader, which recognises it by its content.

To add one, write a function that returns a `Table` of what it finds, or nothing, and add it to `READERS`.
"""

from collections.abc import Callable
from dataclasses import replace

from grpo_lab.analysis.logs.console import read_console
from grpo_lab.analysis.logs.json_logs import read_json
from grpo_lab.analysis.logs.notebook import outputs_of, tables_in_html
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
