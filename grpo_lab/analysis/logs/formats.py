"""Text formats: recognised by their content, and read."""

import re

from grpo_lab.analysis.logs.json_logs import read_json
from grpo_lab.analysis.logs.rows import Log
from grpo_lab.analysis.logs.tables import read_csv
from grpo_lab.analysis.logs.trainer_console import read_trainer
from grpo_lab.analysis.logs.verl import read_verl

_JSON = re.compile(r'\{\s*("|\}|$)|\[\s*(\{|\]|$)')
"""The beginning of an object, or of a list of objects; a console may begin with [2026-01-31 or [rank0]."""


def read_text(text: str, name: str, logging_steps: int = 1) -> list[Log]:
    """The runs in a text, in order; none if no format fits. Raises LogError for a damaged file."""
    first = next((line.strip() for line in text.split("\n", 50) if line.strip()), "")
    if _JSON.match(first):
        return read_json(text, first, name)
    of_verl = read_verl(text) if "step:" in text else []
    if any(log.metrics for log in of_verl):  # a completion that a Trainer printed may look like verl's line
        return of_verl
    return read_trainer(text, logging_steps) or of_verl or read_csv(text, first, name)
