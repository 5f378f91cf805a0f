"""A result in the format of Gradescope's results.json.

https://gradescope-autograders.readthedocs.io/en/latest/specs/. Every text has the format `text`, which Gradescope shows
as it is, so that nothing in an answer is rendered as HTML or Markdown.
"""

from collections.abc import Sequence
from typing import Any

from grpo_lab.course.exercises import Finding
from grpo_lab.grading.reports.plain import number, visible
from grpo_lab.grading.reports.words import ENGLISH, Words, words
from grpo_lab.grading.results import BY_HAND, Mark, Result


def document(result: Result, language: str = ENGLISH) -> dict[str, Any]:
    """The content of results.json: one test for each exercise, in the order of the lab.

    A text that waits for a person is a test without score and maximum, so that it costs no points. Set the assignment's
    autograder points to the sum of the others, and grade the text as a question of its own.
    """
    extra = {"lab": visible(result.lab), "attempt": result.attempt, "tier": result.tier}
    return {
        "score": round(result.score, 6),
        "execution_time": round(result.seconds, 3),
        "output": visible(_about(result, words(language))),
        **dict.fromkeys(("output_format", "test_output_format", "test_name_format"), "text"),
        "visibility": "visible",
        "stdout_visibility": "hidden",
        "extra_data": {**extra, "digest": visible(result.digest)},
        "tests": [
            _test(result.lab, str(place), mark, words(language)) for place, mark in enumerate(result.marks, start=1)
        ],
    }


def of_submission(results: Sequence[Result], language: str = ENGLISH) -> dict[str, Any]:
    """The content of results.json for one submission of several files: all tests in one list, and a line for each file.

    Raises ValueError for no result.
    """
    graded = [result for result in results if result.marks] or results[:1]
    if not graded:
        raise ValueError("no result")
    documents = [document(result, language) for result in graded]
    tests = [test for each in documents for test in each["tests"]]
    word = words(language)
    rest = [f"{result.file}: {word.shortened(word.said(result.problem))}" for result in results if result not in graded]
    return {
        **documents[0],
        "score": round(sum(each["score"] for each in documents), 6),
        "execution_time": round(sum(each["execution_time"] for each in documents), 3),
        "output": visible("\n".join([*(each["output"] for each in documents), *rest])),
        "tests": [{**test, "number": str(place)} for place, test in enumerate(tests, start=1)],
    }


def _about(result: Result, word: Words) -> str:
    earned = {"points": number(result.score), "most": number(result.out_of)}
    lines = [word("about", lab=result.lab or word("no_lab"), attempt=result.attempt, **earned)]
    if result.problem:
        lines.append(word.before("nothing_graded", word.shortened(word.said(result.problem))))
    lines += [word.before("warning", word.shortened(word.said(warning))) for warning in result.warnings]
    if result.by_hand:
        points = sum(mark.out_of for mark in result.by_hand)
        texts = word.count("text", len(result.by_hand))
        lines.append(word("marked_later", texts=texts, points=number(points)))
    return "\n".join([*lines, word.before("tier_number", word.said(result.trust), tier=result.tier)])


def _test(lab: str, place: str, mark: Mark, word: Words) -> dict[str, Any]:
    test = {
        "name": visible(word.shortened(word.title(lab, mark.exercise, mark.title))),
        "number": place,
        "output": visible("\n".join(_lines(mark, word))),
        **dict.fromkeys(("name_format", "output_format"), "text"),
        "tags": [mark.kind, mark.status],
        "visibility": "visible",
    }
    if mark.status != BY_HAND:
        test["score"], test["max_score"] = round(mark.points, 6), mark.out_of
        test["status"] = "passed" if mark.points >= mark.out_of else "failed"
    return test


def _lines(mark: Mark, word: Words) -> list[str]:
    waits = word("person_marks", most=number(mark.out_of))
    lines = [waits if mark.status == BY_HAND else word.status(mark.status)]
    for found in mark.findings:
        lines += _about_finding(word.finding(found), word)
    return [*lines, word.shortened(word.said(mark.note))] if mark.note else lines


def _about_finding(found: Finding, word: Words) -> list[str]:
    details = {} if found.right else {"got": found.got, "expected": found.expected, "why": found.why}
    head = word.before("right" if found.right else "wrong", word.shortened(found.what))
    return [
        head,
        *(f"    {word(name):9} {word.shortened(text)}" for name, text in details.items() if text or name != "why"),
    ]
