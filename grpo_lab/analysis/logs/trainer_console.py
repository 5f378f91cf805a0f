"""The console of Hugging Face's Trainer and its relatives: {'loss': 0.1, 'grad_norm': 0.3, …} between other output."""

import bisect
import re
from collections.abc import Iterator, Mapping
from typing import Any

from grpo_lab.analysis.logs.crash import by_rows
from grpo_lab.analysis.logs.names import MEASURED, STEP_NAMES, bare
from grpo_lab.analysis.logs.rows import Log
from grpo_lab.analysis.logs.runs import of_dicts
from grpo_lab.analysis.logs.uniform import NUMBER

_LINE = re.compile(r"^(?P<before>[^\n{]*)(?P<row>\{'\w[^'\n]*':\s(?:[^\n]*\}|[^{}]{,20000}\}|[^\n]*))", re.MULTILINE)
"""A dictionary on one line, one that a terminal wrapped, or one that is cut."""
_PAIR = re.compile(rf"'([^']+)':\s*'?({NUMBER})'?", re.IGNORECASE)
_GLOBAL_STEP = re.compile(r"Global step (\d+): $")
"""The words of OpenRLHF before its dictionary."""
_START = re.compile(r"\*{5} Running training \*{5}|==\(\(====\)\)==")
"""A line of transformers and one of Unsloth at the start of a training."""
_RESUMED = re.compile(r"Continuing training from (?:a )?checkpoint")
NEAR = 2000
"""Characters after a start in which transformers says that it goes on from a checkpoint."""


def read_trainer(text: str, logging_steps: int) -> list[Log]:
    """The runs in the output of a Trainer, whose lines have no step; none if no line holds a metric."""
    found = list(_rows(text)) if "{'" in text else []
    notes = []
    if found and "}" not in text[found[-1][0] :]:
        found.pop()
        notes.append("the last line is incomplete and was left out")
    if not any(name in STEP_NAMES for _, row in found for name in row):
        every = f"as one every {logging_steps} (logging_steps)" if logging_steps > 1 else "from 1"
        notes.append(f"the lines have no step; they were counted {every}")
    places = [place for place, _ in found]
    fresh = [
        start.end() for start in _START.finditer(text) if not _RESUMED.search(text, start.end(), start.end() + NEAR)
    ]
    starts = [bisect.bisect(places, at) for at in fresh]
    about = {"source": "trl", "crashes": by_rows(text, places), "starts": starts, "count_by": logging_steps}
    return of_dicts((row for _, row in found), "a Trainer's console", notes, **about) if found else []


def _rows(text: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Where each dictionary of metrics begins, and its numbers; those of an evaluation or of settings are left out."""
    for line in _LINE.finditer(text):
        row = dict(_PAIR.findall(line["row"].replace("\n", "")))
        if not MEASURED.isdisjoint(map(bare, row)):
            step = _GLOBAL_STEP.search(line["before"])
            yield line.start("row"), {"step": step[1], **row} if step else row
