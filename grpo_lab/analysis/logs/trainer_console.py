"""The console of Hugging Face's Trainer and its relatives: {'loss': 0.1, 'grad_norm': 0.3, …} between other output."""

import bisect
import re
from collections.abc import Iterator, Mapping
from typing import Any

from grpo_lab.analysis.logs.table import STEP_NAMES, Table, bare, columns_of, fact
from grpo_lab.analysis.logs.text import NUMBER, Text
from grpo_lab.analysis.logs.tracebacks import by_rows
from grpo_lab.metrics import OTHER_NAMES

MEASURED = frozenset(
    name
    for metric in ("loss", "reward", "reward_std", "grad_norm", "kl", "entropy", "completions/mean_length")
    for name in (metric, *OTHER_NAMES.get(metric, ()))
)
"""Measures of a step, under all names; settings as learning_rate and beta are printed elsewhere too."""
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


def read_trainer(text: Text) -> list[Table]:
    """The output of a Trainer, whose lines have no step."""
    said = text.said
    found = list(_rows(said)) if "{'" in said else []
    if not found:
        return []
    notes, places = [], [place for place, _ in found]
    if "}" not in said[places[-1] :]:
        found.pop()
        notes.append(fact("cut"))
    if not any(name in STEP_NAMES for _, row in found for name in row):
        notes.append(fact("counted_by", steps=text.logging_steps) if text.logging_steps > 1 else fact("counted"))
    starts = [
        match.end() for match in _START.finditer(said) if not _RESUMED.search(said, match.end(), match.end() + NEAR)
    ]
    return [
        Table(
            columns_of(row for _, row in found),
            "trainer_console",
            notes,
            source="trl",
            crashes=by_rows(said, places[: len(found)]),
            starts=[bisect.bisect(places, at) for at in starts],
            count_by=text.logging_steps,
        )
    ]


def _rows(said: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Where each dictionary of metrics begins, and its numbers; those of an evaluation or of settings are left out."""
    for line in _LINE.finditer(said):
        row = dict(_PAIR.findall(line["row"].replace("\n", "")))
        if not MEASURED.isdisjoint(map(bare, row)):
            step = _GLOBAL_STEP.search(line["before"])
            yield line.start("row"), {"step": step[1], **row} if step else row
