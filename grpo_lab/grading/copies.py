"""Answers that several students share: flagged for a person, because the same answer is no proof of copying."""

import dataclasses
import hashlib
import io
import tokenize
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache

from grpo_lab.course.exercises import Exercise, Function
from grpo_lab.grading.results import WRONG, Mark, Result
from grpo_lab.grading.students import groups_in
from grpo_lab.paths import data_tables

_LAYOUT = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING)
_SHOWN = 16
"""Hexadecimal digits of a fingerprint."""
_NAMED = 5
"""Students that a flag names."""


def fingerprint(exercise: Exercise, source: str) -> str:
    """A short hash of an answer without its comments and layout; empty for an answer that many write alike.

    Only functions and texts are compared: a letter, a number or a list of guards is soon the same.
    """
    if not (isinstance(exercise.check, Function) or exercise.kind == "text") or not source.strip():
        return ""
    return hash_of(source)


def hash_of(source: str) -> str:
    """The hash of a source's tokens; of its words, where it is no Python.

    Tokens are joined without a mark between them: Python 3.12 cuts an f-string into several.

    >>> hash_of("def f(x):  # mine\\n    return x") == hash_of("def f( x ):\\n\\n  return x\\n")
    True
    """
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
        words = [token.string for token in tokens if token.type not in _LAYOUT]
    except (SyntaxError, tokenize.TokenError):
        words = source.split()
    return hashlib.sha256("".join(words).encode()).hexdigest()[:_SHOWN]


def flagged(results: Sequence[Result]) -> list[Result]:
    """The results with a flag for each set of answers that other students have too.

    An answer that equals the reference is not counted, nor are those of students with a group in common.
    """
    shared: dict[tuple[str, str, str], list[tuple[int, Mark]]] = defaultdict(list)
    for place, result in enumerate(results):
        for mark in result.marks:
            if mark.answer and mark.answer != _references().get(f"{result.lab}-{mark.exercise}"):
                shared[result.lab, mark.exercise, mark.answer].append((place, mark))
    alike: dict[int, dict[int, list[Mark]]] = defaultdict(lambda: defaultdict(list))
    for marks in shared.values():
        for place, mark in marks:
            for other, _ in marks:
                if _apart(results[place], results[other]):
                    alike[place][other].append(mark)
    return [
        dataclasses.replace(result, flags=[*result.flags, *_told(result, results, alike[place])])
        for place, result in enumerate(results)
    ]


def _apart(one: Result, other: Result) -> bool:
    """Whether two results are of students who had to answer on their own."""
    return one.student != other.student and not groups_in(one.group) & groups_in(other.group)


def _told(result: Result, results: Sequence[Result], alike: Mapping[int, Sequence[Mark]]) -> Iterator[str]:
    """One line for each set of exercises, with the students who have the same answers; the largest set first."""
    compared = sum(bool(mark.answer) for mark in result.marks)
    others: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for other, marks in alike.items():
        others[tuple(mark.exercise for mark in marks)].append(results[other].student)
    wrong = {mark.exercise for mark in result.marks if mark.status == WRONG}
    for names, students in sorted(others.items(), key=lambda each: -len(each[0])):
        rest = f" and {len(students) - _NAMED} more" if len(students) > _NAMED else ""
        named = f"{', '.join(students[:_NAMED])}{rest}"
        yield (
            f"same as {named}: {len(names)} of {compared} compared answers, "
            f"{len(wrong.intersection(names))} of them wrong ({', '.join(names)}); not a proof of copying"
        )


@cache
def _references() -> dict[str, str]:
    """The hashes of the reference solutions by cell id, which a test keeps up to date."""
    return data_tables("reference_answers")["hashes"]
