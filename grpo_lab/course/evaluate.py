"""Judges an answer. A learner's feedback and a grade come from the same findings.

`check` runs the answer in this process. A grader that runs it in another one calls the three steps separately: `asked`
gives the cases, `run` calls the answer there, and `judged` compares the plain data that comes back.
"""

import copy
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from grpo_lab.course import answers
from grpo_lab.course.answers import Answer, Given, NotPlain
from grpo_lab.course.compare import ELEMENTS, OfForm, differs, shown, shown_apart
from grpo_lab.course.exercises import Case, Exercise, Finding, Function, Mistake, Values
from grpo_lab.course.relations import applied, mapped
from grpo_lab.course.time_limit import time_limit
from grpo_lab.errors import GrpoLabError, NotYet, Sentence

SECONDS = 10.0
"""The time that an answer's own code may take for all test inputs, as in a grader's sandbox by default."""


def check(exercise: Exercise, answer: Answer, seed: int = 0) -> list[Finding]:
    """The findings about an answer, given as its file, as a module, or as a mapping of its names.

    Seed 0 gives the cases that learners see. A mistake is a finding. Raises Unanswered for a stub or a missing file.
    """
    cases = asked(exercise, seed)
    file = str(Path(answer).resolve()) if isinstance(answer, str | Path) else ""
    try:
        with time_limit(SECONDS, file):
            given = run(exercise, answer, [case.inputs for case in cases])
    except NotYet as error:
        why = "Nothing else was looked at so far."
        return [Finding(False, "the cell as a whole", str(error), "code that runs", why)]
    return judged(exercise, given, cases, seed)


def asked(exercise: Exercise, seed: int, transformed: bool = False) -> Sequence[Case]:
    """The cases of a function's check; none for a check of values.

    Seed 0 gives them in the order that learners see, any other seed shuffles them. `transformed` applies one or more of
    the exercise's relations to each: rows permuted, padding added, another scale.
    """
    if not isinstance(exercise.check, Function):
        return ()
    cases, draw = list(exercise.check.cases(seed)), random.Random(seed)
    if seed:
        draw.shuffle(cases)
    return [applied(exercise.check.relations, case, draw) for case in cases] if transformed else cases


def run(exercise: Exercise, answer: Answer, inputs: Sequence[Mapping[str, Any]]) -> list[Given] | dict[str, Given]:
    """The answer's results: one for each test input, or values by name. Needs no expected value.

    Raises Unanswered for a stub or a missing file, and NotYet for an answer that does not run or lacks the function.
    """
    module = answers.load(answer)
    if isinstance(exercise.check, Function):
        return answers.calls(exercise.check, module, inputs)
    return answers.values(exercise.check, module)


def judged(
    exercise: Exercise, given: list[Given] | dict[str, Given], cases: Sequence[Case], seed: int
) -> list[Finding]:
    """The findings about an answer's results; a right one needs no reason and has none."""
    if isinstance(given, list):
        may_be_none = any(case.expected is None for case in cases)
        assert isinstance(exercise.check, Function)
        pairs = list(zip(cases, given, strict=True))
        known = _known(exercise.check, pairs)
        found = [_about_case(case, each, may_be_none, known) for case, each in pairs]
    else:
        assert isinstance(exercise.check, Values)
        found = _about_values(exercise.check, {name: _without_tensors(each) for name, each in given.items()}, seed)
    return [finding._replace(why="") if finding.right else finding for finding in found]


def all_right(findings: Sequence[Finding]) -> bool:
    """Whether there are findings and all of them are right."""
    return bool(findings) and all(finding.right for finding in findings)


def folded(findings: Sequence[Finding]) -> list[Finding]:
    """The findings, with one in place of all wrong ones that have the same reason; it counts the others.

    >>> twice = [Finding(False, "one", "1", "2", "Twice."), Finding(False, "two", "2", "4", "Twice.")]
    >>> [finding.what for finding in folded(twice)]
    ['one, and 1 more like it']
    """
    same: dict[object, list[Finding]] = {}
    for place, finding in enumerate(findings):
        why = finding.why
        if isinstance(why, Sentence) and why.template == _COUNTED:
            why = why.values[-1]  # one mistake may spoil another number of elements
        reason = (why, finding.got if finding.why == NO_VALUE else "")
        same.setdefault(place if finding.right else reason, []).append(finding)
    return [
        first._replace(what=Sentence("{}, and {} more like it", Sentence(first.what), len(others))) if others else first
        for first, *others in same.values()
    ]


_COUNTED = f"{ELEMENTS}. {{}}"
NO_VALUE = "No comparable value came back; mend that first."


def _about_case(case: Case, given: Given, may_be_none: bool, known: str) -> Finding:
    if given.error:
        return Finding(False, case.what, given.error, shown(case.expected), NO_VALUE)
    difference = differs(given.value, case.expected)
    # The case's own text explains a wrong value, and would explain another mistake where the form is wrong.
    wrong_form = isinstance(difference, OfForm) and not (given.value is None and may_be_none)
    why = "" if wrong_form else known
    if isinstance(difference, Sentence) and not why:
        rest = "Mend that first." if wrong_form else case.why
        template = f"{difference.template[:1].upper()}{difference.template[1:]}. {{}}"
        why = Sentence(template, *difference.values, Sentence(rest))
    got, expected = shown(given.value), shown(case.expected)
    if difference:
        got, expected = shown_apart(given.value, case.expected)
    return Finding(not difference, case.what, got, expected, why)


def _known(check: Function, pairs: Sequence[tuple[Case, Given]]) -> str:
    """The reason of the first known mistake that gives all of the answer's values, or an empty text.

    The right values count too: a mistake that would have spoilt one of them was not made.
    """

    def made(mistake: Mistake) -> bool:
        function = getattr(mistake.module, check.name, None)  # without it, `labs answers` tells its author
        results = (
            (given.value, answers.called(check, function, mistake.module, copy.deepcopy(dict(inputs))))
            for inputs, given in answered
        )
        return callable(function) and all(not (one.error or differs(value, one.value)) for value, one in results)

    answered = [(case.inputs, given) for case, given in pairs if not given.error]
    wrong = any(not given.error and differs(given.value, case.expected) for case, given in pairs)
    return next((mistake.why for mistake in (check.mistakes() if wrong else ()) if made(mistake)), "")


def _without_tensors(given: Given) -> Given:
    """The result with each one-element tensor as a number: `==` with a tensor gives no bool, and judges use `==`."""

    def number(value: Any) -> Any:
        if isinstance(value, Tensor) and value.shape:
            raise NotPlain("a tensor of shape {}; give numbers, or a list of them", tuple(value.shape))
        return value.item() if isinstance(value, Tensor) else value

    try:
        return Given(mapped(given.value, number), given.error)
    except NotPlain as error:
        return Given(error=str(error))


def _about_values(check: Values, given: Mapping[str, Given], seed: int) -> list[Finding]:
    why = "Define {} with plain values: numbers, texts, True or False, or tuples, lists and dictionaries of them."
    if failed := [(name, one.error) for name, one in given.items() if one.error]:
        return [Finding(False, name, error, "plain values", Sentence(why, f"`{name}`")) for name, error in failed]
    values = {name: one.value for name, one in given.items()}
    try:
        return list(check.judge(values, seed))
    except GrpoLabError as error:  # a guard, setting or file that the answer names and that does not exist
        return [Finding(False, ", ".join(values), shown(tuple(values.values())), "something that runs", str(error))]
