"""Two diagnosed runs side by side: what was set differently, where their curves part, and what became of each."""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np

from grpo_lab import messages
from grpo_lab.analysis.diagnosis.curves import finite, noise, start
from grpo_lab.analysis.diagnosis.findings import Findings
from grpo_lab.analysis.diagnosis.layout import columns
from grpo_lab.analysis.diagnosis.report import headline, suspected, tree
from grpo_lab.analysis.diagnosis.words import Words
from grpo_lab.events import encodable
from grpo_lab.metrics import OF_THE_MACHINE

NOT_COMPARED = {"learning_rate", *OF_THE_MACHINE}
PLACES = {"output_dir", "logging_dir", "run_name", "run.name", "trainer.experiment_name"}
"""Settings that name the run."""
FACTOR = 5
"""Times its noise by which a curve leaves the other one."""


@dataclass(frozen=True)
class Level:
    """One curve in three numbers: its beginning, the median of its second half, and its largest magnitude."""

    start: float
    late: float
    largest: float

    @staticmethod
    def of(values: np.ndarray) -> Level:
        """The numbers of a curve, of shape (steps,); a value that is not finite is the largest."""
        kept = finite(values)
        if not len(kept):
            return Level(math.nan, math.nan, math.nan)
        largest = kept[np.argmax(np.abs(kept))] if len(kept) == len(values) else values[~np.isfinite(values)][0]
        return Level(start(kept), float(np.median(kept[len(kept) // 2 :])), float(largest))


@dataclass(frozen=True)
class Comparison:
    """Two diagnosed runs."""

    first: Findings
    second: Findings
    names: tuple[str, str] = ("first", "second")

    @property
    def settings(self) -> dict[str, tuple[Any, Any]]:
        """The settings that both logs have and that differ."""
        one, two = self.first.log.settings, self.second.log.settings
        both = [name for name in one if name in two and name not in PLACES]
        return {name: (one[name], two[name]) for name in both if str(one[name]) != str(two[name])}

    @property
    def levels(self) -> dict[str, tuple[Level, Level]]:
        """Each metric that both logs have, in three numbers a run."""
        one, two = self.first.log.metrics, self.second.log.metrics
        both = [name for name in one if name in two and name not in NOT_COMPARED]
        return {name: (Level.of(one[name].to_numpy(float)), Level.of(two[name].to_numpy(float))) for name in both}

    @property
    def parting(self) -> tuple[int, str] | None:
        """The first step at which a metric of one run leaves that of the other for good, and the metric.

        A metric has left if, there and in the next two steps that both logs have, the two differ by more than five
        times the noise of the less noisy one, or one of them is not finite. None if no metric does.
        """
        found = [(step, name) for name in self.levels if (step := self._parts(name)) is not None]
        return min(found, default=None)

    def _parts(self, name: str) -> int | None:
        one, two = (each.log.metrics[name] for each in (self.first, self.second))
        steps = one.index.intersection(two.index)
        left, right = one.loc[steps].to_numpy(float), two.loc[steps].to_numpy(float)
        if len(steps) < 3:
            return None
        usual = min(noise(finite(left)), noise(finite(right)))
        with np.errstate(invalid="ignore"):
            apart = (np.isfinite(left) != np.isfinite(right)) | (np.abs(left - right) > FACTOR * usual)
        stay = apart[:-2] & apart[1:-1] & apart[2:]
        return int(steps[int(np.argmax(stay))]) if stay.any() else None

    def text(self) -> str:
        """The comparison in words, in the user's language."""
        word, lines = Words(messages.language()), []
        for name, each in zip(self.names, (self.first, self.second), strict=True):
            lines += [word("named", name=name, said=headline(each, word.language)), *suspected(each)]
        if self.settings:
            rows = [[name, str(one), str(two)] for name, (one, two) in self.settings.items()]
            lines += ["", word("settings_differ"), *columns([["", *self.names], *rows])]
        if self.levels:
            parts = [word(f"part_of_run.{name}") for name in ("start", "late", "largest")]
            head = ["", *(f"{of} {name}" for name in parts for of in ("A", "B"))]
            named = word("curves", first=self.names[0], second=self.names[1])
            pairs = {name: zip(astuple(one), astuple(two), strict=True) for name, (one, two) in self.levels.items()}
            rows = [[name, *(f"{number:.4g}" for pair in each for number in pair)] for name, each in pairs.items()]
            lines += ["", named, *columns([head, *rows])]
        step, metric = self.parting or (0, "")
        return "\n".join([*lines, "", word("part", step=step, metric=metric) if metric else word("never_part")])

    def tree(self) -> dict[str, Any]:
        """The comparison as plain values."""
        levels = {name: [vars(one), vars(two)] for name, (one, two) in self.levels.items()}
        parting = {"step": self.parting[0], "metric": self.parting[1]} if self.parting else None
        verdicts = [self.first.verdict, self.second.verdict]
        settings = {name: [str(value) for value in pair] for name, pair in self.settings.items()}
        about = {"names": self.names, "verdicts": verdicts, "settings": settings, "levels": levels, "parting": parting}
        return encodable({**about, "diagnoses": [tree(self.first), tree(self.second)]})
