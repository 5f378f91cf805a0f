"""The sets of guards that a learner tried: what each stopped and what it cost, fewest guards first."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from grpo_lab.course.exercises import Finding
from grpo_lab.events import Evaluated, Event, Started, Stepped
from grpo_lab.messages import text
from grpo_lab.ui import html


class Runs:
    """A view of the runs of a check, which counts the steps of each and keeps its held-out rewards."""

    def __init__(self) -> None:
        self.name = ""
        self.steps, self.refused = Counter[str](), Counter[str]()
        self.rewards: dict[str, list[float]] = {}

    def show(self, event: Event) -> None:
        """Count this event."""
        if isinstance(event, Started):
            self.name = event.config["run"]["name"]
        elif isinstance(event, Stepped):
            self.steps[self.name] += 1
            self.refused[self.name] += event.refused
        elif isinstance(event, Evaluated):
            self.rewards.setdefault(self.name, []).append(event.reward)


class Scoreboard:
    """The tried sets in a file: a table in a notebook, lines elsewhere. The last try of a set counts."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def add(self, guards: Sequence[str] | Mapping[str, Any], findings: Sequence[Finding], runs: Runs) -> None:
        """Keep a set, the findings about it, and its runs: those of failures, and all others, which are healthy."""
        settings = guards if isinstance(guards, Mapping) else dict.fromkeys(guards)
        failures = {run: found.right for found in findings for run in runs.steps if found.what.startswith(f"{run}: ")}
        rewards = [reward for run, each in runs.rewards.items() if run not in failures for reward in each]
        tried = {
            "guards": sorted(_words(name, each or {}) for name, each in settings.items()),
            "failures": failures,
            "steps": [runs.refused.total(), runs.steps.total()],
            "rewards": [fmean(each) for each in (rewards[0::2], rewards[1::2]) if each],
            "criteria": [sum(found.right for found in findings), len(findings)],
        }
        kept = [each for each in self._tried() if each["guards"] != tried["guards"]]
        self._file.write_text(json.dumps([*kept, tried], indent=1) + "\n", encoding="utf-8")

    def rows(self) -> list[list[str]]:
        """A header, and a row a set: fewest guards first, and among these the sets that meet most criteria."""
        columns = ("guards", "stopped", "refused", "held_out", "criteria")
        rows = [[text(f"scoreboard.{column}") for column in columns]]
        for each in sorted(self._tried(), key=lambda each: (len(each["guards"]), -each["criteria"][0])):
            stopped, (right, criteria) = [name for name, done in each["failures"].items() if done], each["criteria"]
            row = [
                f"{len(each['guards'])}: {', '.join(each['guards']) or '–'}",
                f"{len(stopped)}/{len(each['failures'])}: {', '.join(stopped) or '–'}",
                "{}/{}".format(*each["steps"]),
                " → ".join(f"{reward:.2f}" for reward in each["rewards"]) or "–",
                f"{'✓' if right == criteria else '✗'} {right}/{criteria}",
            ]
            rows.append(row)
        return rows

    def _tried(self) -> list[dict[str, Any]]:
        return json.loads(self._file.read_text(encoding="utf-8")) if self._file.exists() else []

    def __repr__(self) -> str:
        """The rows as lines; each column is as wide as its longest text."""
        widths = [max(map(len, column)) for column in zip(*self.rows(), strict=True)]
        return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in self.rows())

    def _repr_html_(self) -> str:
        return html.fill("scoreboard", self.rows())


def _words(name: str, settings: Mapping[str, Any]) -> str:
    return name + f"({', '.join(f'{key}={value}' for key, value in settings.items())})" * bool(settings)
