"""A result in the format of Gradescope's results.json.

https://gradescope-autograders.readthedocs.io/en/latest/specs/. Every text has the format `text`, which Gradescope shows
as it is, so that nothing in an answer is rendered as HTML or Markdown.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from grpo_lab.grading.reports.words import ENGLISH, Words, number, visible
from grpo_lab.grading.results import BY_HAND, Mark, Result


def document(result: Result, language: str = ENGLISH) -> dict[str, Any]:
    """The content of results.json: one test for each exercise, in the order of the lab.

    A text that waits for a person is a test without score and maximum, so that it costs no points. Set the assignment's
    autograder points to the sum of the others, and grade the text as a question of its own.
    """
    word = Words(language)
    extra = {"lab": visible(result.lab), "attempt": result.attempt, "tier": result.tier}
    return {
        "score": round(result.score, 6),
        "execution_time": round(result.seconds, 3),
        "output": visible("\n".join(_about(result, word))),
        **dict.fromkeys(("output_format", "test_output_format", "test_name_format"), "text"),
        "visibility": "visible",
        "stdout_visibility": "hidden",
        "extra_data": {**extra, "digest": visible(result.digest)},
        "tests": [_test(result.lab, place, mark, word) for place, mark in enumerate(result.marks, start=1)],
    }


def of_submission(results: Sequence[Result], language: str = ENGLISH) -> dict[str, Any]:
    """The content of results.json for one submission of several files: all tests in one list, and a line for each file.

    There must be a result.
    """
    graded = [result for result in results if result.marks] or results[:1]
    documents = [document(result, language) for result in graded]
    tests = [test for each in documents for test in each["tests"]]
    word = Words(language)
    rest = [f"{result.file}: {word.shortened(word.said(result.problem))}" for result in results if result not in graded]
    return {
        **documents[0],
        "score": round(sum(each["score"] for each in documents), 6),
        "execution_time": round(sum(each["execution_time"] for each in documents), 3),
        "output": visible("\n".join([*(each["output"] for each in documents), *rest])),
        "tests": [{**test, "number": str(place)} for place, test in enumerate(tests, start=1)],
    }


def _about(result: Result, word: Words) -> Iterator[str]:
    earned = {"points": number(result.score), "most": number(result.out_of)}
    yield word("about", lab=result.lab or word("no_lab"), attempt=result.attempt, **earned)
    if result.problem:
        yield word.before("nothing_graded", word.shortened(word.said(result.problem)))
    for warning in result.warnings:
        yield word.before("warning", word.shortened(word.said(warning)))
    if result.by_hand:
        points = sum(mark.out_of for mark in result.by_hand)
        yield word("marked_later", texts=word.count("text", len(result.by_hand)), points=number(points))
    yield word.before("tier_number", word.said(result.trust), tier=result.tier)


def _test(lab: str, place: int, mark: Mark, word: Words) -> dict[str, Any]:
    test = {
        "name": visible(word.shortened(word.title(lab, mark.exercise, mark.title))),
        "number": str(place),
        "output": visible("\n".join(_lines(mark, word))),
        **dict.fromkeys(("name_format", "output_format"), "text"),
        "tags": [mark.kind, mark.status],
        "visibility": "visible",
    }
    if mark.status != BY_HAND:
        test["score"], test["max_score"] = round(mark.points, 6), mark.out_of
        test["status"] = "passed" if mark.points >= mark.out_of else "failed"
    return test


def _lines(mark: Mark, word: Words) -> Iterator[str]:
    by_hand = mark.status == BY_HAND
    yield word("person_marks", most=number(mark.out_of)) if by_hand else word(f"status.{mark.status}")
    for found in map(word.finding, mark.findings):
        yield word.before("right" if found.right else "wrong", word.shortened(found.what))
        if not found.right:
            yield f"    {word('got'):9} {word.shortened(found.got)}"
            yield f"    {word('expected'):9} {word.shortened(found.expected)}"
            if found.why:
                yield f"    {word('why'):9} {word.shortened(found.why)}"
    if mark.note:
        yield word.shortened(word.said(mark.note))
