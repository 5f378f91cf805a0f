"""Right answers in other words and near misses, by exercise and name: the table of fair scores.

An answer is the text of a whole cell, or changes of the reference solution, as in `tests.grading.mutants`.
"""

from collections.abc import Mapping

from tests.grading import mutants
from tests.grading.fairness.near import NEAR as _NEAR
from tests.grading.fairness.right import RIGHT as _RIGHT
from tests.grading.mutants import Mutant

Table = Mapping[str, Mapping[str, str | Mapping[str, str]]]


def _answers(table: Table) -> list[Mutant]:
    return [
        Mutant(lab, exercise, name, answer if isinstance(answer, str) else _changed(lab, exercise, answer))
        for (lab, exercise), by_name in ((place.split("/"), by_name) for place, by_name in table.items())
        for name, answer in by_name.items()
    ]


def _changed(lab: str, exercise: str, changes: Mapping[str, str]) -> str:
    return mutants.changed(mutants.solution(lab, exercise), changes)


RIGHT = _answers(_RIGHT)
"""Beside the references and the mutants' ANOTHER_WAY."""
NEAR = _answers(_NEAR)
"""Nearly right, and wrong with every seed."""
