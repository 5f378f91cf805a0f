"""docs/README.md: what there is to read."""

from __future__ import annotations

from grpo_lab.config.catalog import scenario_names
from grpo_lab.metrics import LINKS, METRICS
from grpo_lab.training.guards import GUARDS


def page() -> str:
    """The page."""
    return f"""# Documentation

- [Claims and measurements](claims.md): what the reports say, what was measured here, and with which command.
- [Scenarios](scenarios.md): {len(scenario_names())} causes of failure, each with its symptom, its cures and its decoys.
- [Guards](guards.md): {len(GUARDS)} guards, what each stops, costs and hides, and the presets made of them.
- [Matrix](matrix/findings.md): which guard stops which failure, measured; as a [table](matrix/cells.csv) too.
- [Diagnosis](../benchmarks/results/diagnosis.md): how often a log is diagnosed blind to its cause, and where not.
- [Labs](labs.md): for learners, for instructors, how answers are judged, and how to write one.
- [Grading](grading.md): a class, headless: sandbox, trust, reports. [nbgrader](nbgrader.md): with it, or beside it.
- [Metrics](metrics.md): {len(METRICS)} numbers of a step, and the {len(LINKS)} links of the chain.

Scenarios, guards and metrics are made from code and data: `grpo-lab docs` writes them again, and
`grpo-lab docs --check` says which are out of date. Matrix and diagnosis are results, with the command that made them.
"""
