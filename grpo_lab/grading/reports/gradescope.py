"""A result in the shape of Gradescope's results.json.

https://gradescope-autograders.readthedocs.io/en/latest/specs/. Every text is marked as `text`, which Gradescope shows
as it is: nothing of a learner's is ever taken for HTML or Markdown.
"""

from __future__ import annotations

from typing import Any

from grpo_lab.course.exercises import Finding
from grpo_lab.grading.reports.plain import number, shortened, visible
from grpo_lab.grading.results import BY_HAND, Mark, Result


def document(result: Result) -> dict[str, Any]:
    """The content of results.json: one test an exercise, in the order of the lab.

    A text that waits for a person is a test without score and without a maximum, so no points are lost by it; set the
    assignment's autograder points to what the rest is worth, and grade the text as a question of its own.
    """
    return {
        "score": round(result.score, 6),
        "execution_time": round(result.seconds, 3),
        "output": visible(_about(result)),
        "output_format": "text",
        "test_output_format": "text",
        "test_name_format": "text",
        "visibility": "visible",
        "stdout_visibility": "hidden",
        "extra_data": {
            "lab": visible(result.lab),
            "attempt": result.attempt,
            "tier": result.tier,
            "digest": visible(result.digest),
        },
        "tests": [_test(str(place), mark) for place, mark in enumerate(result.marks, start=1)],
    }


def _about(result: Result) -> str:
    lines = [f"{result.lab or 'No lab'}, attempt {result.attempt}: {number(result.score)} of {number(result.out_of)}"]
    if result.problem:
        lines.append(f"Nothing was graded: {shortened(result.problem)}")
    if result.by_hand:
        points = sum(mark.out_of for mark in result.by_hand)
        lines.append(f"{len(result.by_hand)} to be marked by a person, for up to {number(points)} points more")
    return "\n".join([*lines, f"Tier {result.tier}: {result.trust}"])


def _test(place: str, mark: Mark) -> dict[str, Any]:
    test = {
        "name": visible(shortened(mark.title)),
        "name_format": "text",
        "number": place,
        "output": visible("\n".join(_lines(mark))),
        "output_format": "text",
        "tags": [mark.kind, mark.status],
        "visibility": "visible",
    }
    if mark.status != BY_HAND:
        test["score"], test["max_score"] = round(mark.points, 6), mark.out_of
        test["status"] = "passed" if mark.points >= mark.out_of else "failed"
    return test


def _lines(mark: Mark) -> list[str]:
    lines = [mark.status]
    if mark.status == BY_HAND:
        lines = [f"A person marks this, for up to {number(mark.out_of)} points, which are not part of the score yet."]
    for found in mark.findings:
        lines += _about_finding(found)
    return [*lines, *([shortened(mark.note)] if mark.note else [])]


def _about_finding(found: Finding) -> list[str]:
    what, got, expected, why = (shortened(text) for text in found[1:])
    if found.right:
        return [f"right: {what}"]
    return [
        f"wrong: {what}",
        f"    got       {got}",
        f"    expected  {expected}",
        *([f"    why       {why}"] if why else []),
    ]
