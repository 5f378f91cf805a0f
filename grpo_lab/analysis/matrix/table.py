"""The finished cells as a table: what was stopped under which column, and how often."""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence

from grpo_lab.analysis.matrix.cells import HEALTHY, NONE, REPORTED, STABLE
from grpo_lab.analysis.matrix.results import Fate, Measurement
from grpo_lab.config.algorithms import algorithm_names
from grpo_lab.training.guards import GUARDS


class Findings:
    """Results by scenario and column.

    A run that went well counts for its guards only if the unguarded run of the same seed failed.
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
        self.guards = [name for name in self.columns if name in GUARDS]
        """The columns that hold one guard alone."""
        known = algorithm_names()
        self.algorithms = [name for name in self.columns if name in known or name.endswith(".toml")]
        """The columns that hold an algorithm."""
        self.of_guards = bool(self.guards or STABLE in self.columns or not self.algorithms)
        """Whether guards were measured, and not algorithms alone."""

    def cells(self, scenario: str, column: str) -> list[Measurement]:
        """The runs of a scenario under a column, one a seed."""
        return self._cells[scenario, column]

    def telling(self, scenario: str, column: str) -> list[Measurement]:
        """The runs that count: those that failed, and those that went well although the unguarded run failed."""
        failing = {result.seed for result in self.cells(scenario, NONE) if not result.stopped}
        return [result for result in self.cells(scenario, column) if not result.stopped or result.seed in failing]

    def fates(self, scenario: str, column: str) -> Counter[str]:
        """The number of runs with each fate, among those that count."""
        return Counter(result.fate for result in self.telling(scenario, column))

    def share(self, scenario: str, column: str) -> float:
        """The share of runs that stopped the failure, among those that count; NaN if none counts."""
        fates = self.fates(scenario, column)
        return fates[Fate.STOPPED] / fates.total() if fates else math.nan

    def stoppers(self, scenario: str, columns: Sequence[str]) -> list[str]:
        """Those of the columns that stop the failure in every run that counts."""
        return [name for name in columns if self.share(scenario, name) == 1]

    def alarms(self, column: str) -> int:
        """Steps of the healthy run that were refused, over all seeds."""
        return sum(result.refused for result in self.cells(HEALTHY, column))

    def word(self, scenario: str, column: str) -> str:
        """The fate of a scenario under a column, or `stopped 2, crashed 1` if the seeds differ."""
        cells = self.cells(scenario, column)
        fates = self.fates(scenario, column) if self.cells(scenario, NONE) else Counter(each.fate for each in cells)
        if not fates:
            return "did not fail here" if cells else "-"
        return ", ".join(f"{fate} {count}" if len(fates) > 1 else fate for fate, count in fates.most_common())


def summary(found: Findings) -> list[list[str]]:
    """A table for the terminal, its header first: the guards, or the algorithms, that stop each failure."""
    alone, more = (found.guards, [REPORTED, STABLE]) if found.of_guards else (found.algorithms, [])
    rows = [["scenario", "no guard", "stopped by one guard" if found.of_guards else "stopped by an algorithm", *more]]
    for name in found.scenarios:
        stoppers = ", ".join(found.stoppers(name, alone)) or "none"
        rows.append([name, found.word(name, NONE), stoppers, *(found.word(name, column) for column in more)])
    return rows
