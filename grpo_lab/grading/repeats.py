"""Whose notebook is whose where two students have one name, and which of a student's notebooks for a lab counts."""

import dataclasses
import os
from collections import defaultdict
from collections.abc import Sequence

from grpo_lab.errors import Sentence, listed
from grpo_lab.grading.reports.words import number
from grpo_lab.grading.results import Result
from grpo_lab.grading.submissions import Found

LATEST, BEST = "latest", "best"
"""Rules: the notebook that was changed last, or the one with the highest score."""
LATE = "handed in late, by the name of its file"
NAMESAKE = "another student has this name, by the numbers in the names of files; rename the folders to tell them apart"


def told_apart(every: Sequence[Found], results: Sequence[Result]) -> list[Result]:
    """The results with the facts in their files' names, and warnings of lateness and of namesakes.

    Two students with the same name and different numbers get their numbers as part of their names. A number that is of
    one assignment says nothing across labs, nor about files of no lab.
    """

    def alike(found: Found, result: Result) -> tuple[str, str]:
        return found.student, (result.lab or found.identity) if found.per_assignment else ""

    numbers: dict[tuple[str, str], set[str]] = defaultdict(set)
    for found, result in zip(every, results, strict=True):
        if found.identity:
            numbers[alike(found, result)].add(found.identity)
    told = []
    for found, result in zip(every, results, strict=True):
        result = dataclasses.replace(result, identity=found.identity, late=found.late)
        if found.late:
            result = result.warned(LATE)
        if found.identity and len(numbers[alike(found, result)]) > 1:
            result = dataclasses.replace(result, student=f"{result.student} ({found.identity})").warned(NAMESAKE)
        told.append(result)
    return told


def one_each(
    every: Sequence[Found], results: Sequence[Result], rule: str = LATEST, alone: bool = False
) -> list[Result]:
    """The results with one for each student and lab, in the order given; its warnings name the others.

    With `alone`, all files are one student's, whatever their names. A notebook that could be graded goes before one
    that could not. Among equals, the one changed last counts, then the last path. Files of no lab are all kept, and so
    are other files than notebooks: one of them stands for the lab where there is no notebook, and the rest are of no
    lab.
    """
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for place, result in enumerate(results):
        if result.lab:
            groups["" if alone else result.student, result.lab].append(place)

    def worth(place: int) -> tuple[bool, float, float, str]:
        result = results[place]
        score = result.score if rule == BEST else 0.0
        return not result.problem, score, _changed(every[place]), result.file

    kept: dict[int, Result] = {place: result for place, result in enumerate(results) if not result.lab}
    for places in groups.values():
        notebooks = [place for place in places if results[place].notebook]
        best, *others = sorted(notebooks or places, key=worth, reverse=True)
        for place in places:
            result = results[place]
            if place not in notebooks:
                kept[place] = result if result.left_out else dataclasses.replace(result, lab="")
        kept[best] = results[best]
        if notebooks and others:
            counts, rest = results[best], [results[other] for other in others]
            alike = counts.file in {each.file for each in rest}  # in two folders of submissions
            name = f"{counts.file}, SHA-256 {counts.digest[:8]}," if alike else counts.file
            said = "{} notebooks of this lab: {} counts (rule: {}), not {}"
            told = Sentence(said, len(rest) + 1, name, rule, listed("{}, {}", list(map(_outcome, rest))))
            kept[best] = counts.warned(told)
    return [kept[place] for place in sorted(kept)]


def _changed(found: Found) -> float:
    """The time of the last change of the file on disk, in seconds; 0 where it is gone."""
    try:
        return os.lstat(found.file).st_mtime
    except FileNotFoundError:
        return 0.0


def _outcome(result: Result) -> str:
    if result.problem:
        return Sentence("{} (could not be graded: {})", result.file, Sentence(result.problem))
    return Sentence("{} (with a score of {})", result.file, number(result.score))
