"""The evaluation of all cells: the failures that each guard stops, its costs, and the idle guards."""

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from operator import attrgetter

from grpo_lab.analysis.matrix.cells import HEALED, HEALTHY, NONE, STABLE, UNHEALED, without
from grpo_lab.analysis.matrix.results import Fate, Measurement
from grpo_lab.config.algorithms import algorithm_names
from grpo_lab.training.guards import GUARDS

THROUGH = (Fate.STOPPED, Fate.REFUSED)
"""Fates of a run that the failure did not harm."""
MARGIN = 0.05
"""The difference in held-out reward from which on a column counts as worse than another: two standard errors of the
difference between two means over 3 seeds of 250 problems."""


def mean_gain(results: Iterable[Measurement]) -> float:
    """Mean held-out reward gained by the runs that went through; NaN if none did."""
    gains = [result.gained for result in results if not math.isnan(result.gained)]
    return statistics.fmean(gains) if gains else math.nan


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

    def cells(self, scenario: str, column: str) -> list[Measurement]:
        """The runs of a scenario under a column, one a seed."""
        return self._cells[scenario, column]

    def telling(self, scenario: str, column: str) -> list[Measurement]:
        """The runs that count: those that failed, and those that went well although the unguarded run failed."""
        failing = {result.seed for result in self.cells(scenario, NONE) if not result.stopped}
        cells = self.cells(scenario, column)
        return [result for result in cells if not result.stopped or result.seed in failing]

    def fates(self, scenario: str, column: str) -> Counter[str]:
        """The number of runs with each fate, among those that count."""
        return Counter(result.fate for result in self.telling(scenario, column))

    def share(self, scenario: str, column: str) -> float:
        """The share of runs that stopped the failure, among those that count; NaN if none counts."""
        fates = self.fates(scenario, column)
        return fates[Fate.STOPPED] / fates.total() if fates else math.nan

    def heals(self, scenario: str) -> tuple[int, int]:
        """Seeds on which the healed run learns and ends above the unhealed run, and seeds on which it was tried.

        An unhealed run that crashed counts as one that ends lower.
        """
        unhealed = {result.seed: result.after for result in self.cells(scenario, UNHEALED)}
        healed = self.cells(scenario, HEALED)
        better = [result for result in healed if not result.after <= unhealed.get(result.seed, -math.inf)]
        return sum(result.learned for result in better), len(healed)

    @property
    def guards(self) -> list[str]:
        """The columns that hold one guard alone."""
        return [name for name in self.columns if name in GUARDS]

    @property
    def algorithms(self) -> list[str]:
        """The columns that hold an algorithm."""
        known = algorithm_names()
        return [name for name in self.columns if name in known or name.endswith(".toml")]

    def stoppers(self, scenario: str, columns: Sequence[str] | None = None) -> list[str]:
        """Guards, or other `columns`, that alone stop the failure in every run that counts."""
        return [name for name in (self.guards if columns is None else columns) if self.share(scenario, name) == 1]

    def outcome(self, scenario: str, column: str) -> str:
        """The fates of all runs under a column, and how many of them learned: `crashed`, `shown, 2 of 3 learn`."""
        cells = self.cells(scenario, column)
        fates = Counter(result.fate for result in cells)
        words = [f"{fate} {count}" if len(fates) > 1 else fate for fate, count in fates.most_common()]
        learned = f"{sum(result.learned for result in cells)} of {len(cells)} learn"
        return ", ".join([*words, *([learned] if any(result.survived for result in cells) else [])]) or "-"

    def partial(self, scenario: str) -> list[str]:
        """Guards that alone stop the failure on some seeds only, or refuse every step that shows it."""
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
        """Guards that alone neither stop nor refuse any failure on any seed."""
        return [
            guard
            for guard in self.guards
            if not any(self.fates(s, guard)[fate] for s in self.scenarios for fate in THROUGH)
        ]

    def needed_for(self, guard: str) -> list[str]:
        """Scenarios that `stable` stops or survives on more seeds with the guard than without it, with the numbers."""
        found = []
        for scenario in self.scenarios:
            full, less = self.telling(scenario, STABLE), self.telling(scenario, without(guard))
            lost = [
                f"{what} {sum(map(test, full))} to {sum(map(test, less))} of {len(full)}"
                for what, test in (("survives", attrgetter("survived")), ("stopped", attrgetter("stopped")))
                if less and sum(map(test, less)) < sum(map(test, full))
            ]
            if lost:
                found.append(f"{scenario} ({', '.join(lost)})")
        return found

    def left_out(self) -> list[str]:
        """The guards of `stable` with a column that leaves them out."""
        return [column.removeprefix(without("")) for column in self.columns if column.startswith(without(""))]

    def cost(self, column: str) -> float:
        """Seconds a step of the healthy run, divided by those without guards: the median over seeds."""
        plain = {result.seed: result.seconds for result in self.cells(HEALTHY, NONE)}
        ratios = [r.seconds / plain[r.seed] for r in self.cells(HEALTHY, column) if r.seed in plain]
        return statistics.median(ratios) if ratios else math.nan

    def alarms(self, column: str) -> int:
        """Steps of the healthy run that were refused, over all seeds."""
        return sum(result.refused for result in self.cells(HEALTHY, column))

    def word(self, scenario: str, column: str) -> str:
        """The fate of a scenario under a column, or `stopped 2, crashed 1` if the seeds differ."""
        fates = self.fates(scenario, column)
        if not self.cells(scenario, column):
            return "-"
        if not fates:
            return "did not fail here"
        if len(fates) == 1:
            return next(iter(fates))
        return ", ".join(f"{fate} {count}" for fate, count in fates.most_common())


def disturbed(results: Iterable[Measurement]) -> list[Measurement]:
    """Cells that did not end by themselves, or measured nothing, sorted by their status."""
    return sorted((r for r in results if r.status not in ("done", "stopped", "crashed")), key=lambda r: r.status)
