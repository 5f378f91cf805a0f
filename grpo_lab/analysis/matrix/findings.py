"""What the cells say together: which guard stops which failure, what each costs, and which do nothing."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from grpo_lab.analysis.matrix.cells import HEALTHY, NONE, STABLE, without
from grpo_lab.analysis.matrix.results import Fate, Measurement
from grpo_lab.training.guards import GUARDS

THROUGH = (Fate.STOPPED, Fate.REFUSED)
"""Fates of a run in which the failure did no harm."""
MARGIN = 0.05
"""Held-out reward that a column may gain less than another before it counts as lost: two standard errors of the
difference between two means over 3 seeds of 250 problems."""


def mean_gain(results: Iterable[Measurement]) -> float:
    """Mean held-out reward gained by the runs that went through; NaN where none did."""
    gains = [result.gained for result in results if not math.isnan(result.gained)]
    return statistics.fmean(gains) if gains else math.nan


class Findings:
    """Results by scenario and column, and the questions they answer.

    A run that went well tells something about its guards only if the unguarded run of the same seed failed.
    """

    def __init__(self, results: Sequence[Measurement]) -> None:
        self._cells: dict[tuple[str, str], list[Measurement]] = defaultdict(list)
        for result in results:
            self._cells[result.scenario, result.column].append(result)
        self.results = list(results)
        found = dict.fromkeys(result.scenario for result in results)
        self.scenarios = [name for name in found if name != HEALTHY]
        self.has_healthy = HEALTHY in found
        self.columns = list(dict.fromkeys(result.column for result in results))
        self.seeds = len({result.seed for result in results})

    def cells(self, scenario: str, column: str) -> list[Measurement]:
        """The runs of a scenario under a column, a seed each."""
        return self._cells[scenario, column]

    def telling(self, scenario: str, column: str) -> list[Measurement]:
        """Those that failed, and those that went well where the unguarded run failed."""
        failing = {result.seed for result in self.cells(scenario, NONE) if result.fate != Fate.STOPPED}
        cells = self.cells(scenario, column)
        return [result for result in cells if result.fate != Fate.STOPPED or result.seed in failing]

    def fates(self, scenario: str, column: str) -> Counter[str]:
        """How often each fate was met, among the runs that tell."""
        return Counter(result.fate for result in self.telling(scenario, column))

    def share(self, scenario: str, column: str) -> float:
        """Share of the runs that tell in which the failure was stopped; NaN where none tells."""
        fates = self.fates(scenario, column)
        return fates[Fate.STOPPED] / fates.total() if fates else math.nan

    @property
    def guards(self) -> list[str]:
        """The columns that hold one guard alone."""
        return [name for name in self.columns if name in GUARDS]

    def stoppers(self, scenario: str) -> list[str]:
        """Guards each of which alone stops it in every run that tells."""
        return [guard for guard in self.guards if self.share(scenario, guard) == 1]

    def partial(self, scenario: str) -> list[str]:
        """Guards that alone stop it on some of the seeds only, or keep it out of every update that counts."""
        found = []
        for guard in self.guards:
            fates = self.fates(scenario, guard)
            kept_out = fates[Fate.STOPPED] + fates[Fate.REFUSED]
            if kept_out and self.share(scenario, guard) < 1:
                stopped = f"stops {fates[Fate.STOPPED]}" if fates[Fate.STOPPED] else ""
                refuses = f"refuses {fates[Fate.REFUSED]}" if fates[Fate.REFUSED] else ""
                found.append(f"{guard} ({', '.join(filter(None, (stopped, refuses)))} of {fates.total()})")
        return found

    def idle(self) -> list[str]:
        """Guards that alone neither stop nor keep out anything on any seed."""
        return [
            guard
            for guard in self.guards
            if not any(self.fates(s, guard)[fate] for s in self.scenarios for fate in THROUGH)
        ]

    def needed_for(self, guard: str) -> list[str]:
        """Scenarios that `stable` stops or survives on more seeds with the guard than without it."""
        found = []
        for scenario in self.scenarios:
            full, less = self.telling(scenario, STABLE), self.telling(scenario, without(guard))
            lost = [
                f"{what} {_count(full, test)} to {_count(less, test)} of {len(full)}"
                for what, test in (("survives", _survived), ("stopped", _stopped))
                if less and _count(less, test) < _count(full, test)
            ]
            if lost:
                found.append(f"{scenario} ({', '.join(lost)})")
        return found

    def left_out(self) -> list[str]:
        """The guards of `stable` that have a column without them."""
        return [column.removeprefix(without("")) for column in self.columns if column.startswith(without(""))]

    def cost(self, column: str) -> float:
        """Median over seeds of the seconds a step of the healthy run, divided by those without any guard."""
        plain = {result.seed: result.seconds for result in self.cells(HEALTHY, NONE)}
        ratios = [r.seconds / plain[r.seed] for r in self.cells(HEALTHY, column) if r.seed in plain]
        return statistics.median(ratios) if ratios else math.nan

    def alarms(self, column: str) -> int:
        """Steps of the healthy run that were refused, over all seeds."""
        return sum(result.refused for result in self.cells(HEALTHY, column))

    def word(self, scenario: str, column: str) -> str:
        """What became of a scenario under a column, in a few words.

        `stopped 2, crashed 1` where the seeds differ.
        """
        fates = self.fates(scenario, column)
        if not self.cells(scenario, column):
            return "-"
        if not fates:
            return "did not fail here"
        if len(fates) == 1:
            return next(iter(fates))
        return ", ".join(f"{fate} {count}" for fate, count in fates.most_common())


def _survived(result: Measurement) -> bool:
    return result.survived


def _stopped(result: Measurement) -> bool:
    return result.fate == Fate.STOPPED


def _count(results: Iterable[Measurement], test) -> int:
    return sum(map(test, results))


def disturbed(results: Iterable[Measurement]) -> list[Measurement]:
    """Cells that did not end by themselves, or measured nothing, sorted by their status."""
    return sorted((r for r in results if r.status not in ("done", "stopped", "crashed")), key=lambda r: r.status)
