"""Judges an answer: a learner's feedback and a grade come from the same findings.

`check` runs the answer here. A grader that runs it elsewhere asks `asked` for the inputs, has `answers` run on them
there, and hands what comes back, plain data, to `judged`.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from grpo_lab.course import answers
from grpo_lab.course.answers import Answer, Given, NotPlain
from grpo_lab.course.compare import differs, shown
from grpo_lab.course.exercises import Case, Exercise, Finding, Function, Values
from grpo_lab.course.relations import applied
from grpo_lab.errors import GrpoLabError, NotYet


def check(exercise: Exercise, answer: Answer, seed: int = 0) -> list[Finding]:
    """What is right and wrong about an answer, given as its file, as a module, or as what it defines by name.

    Seed 0 asks what learners see. A mistake in the answer is a finding. Raises Unanswered where there is no answer.
    """
    cases = asked(exercise, seed)
    try:
        given = run(exercise, answer, [case.inputs for case in cases])
    except NotYet as error:
        text = " ".join(str(error).split("\n"))
        return [Finding(False, "the cell as a whole", text, "code that runs", "Nothing else was looked at so far.")]
    return judged(exercise, given, cases, seed)


def asked(exercise: Exercise, seed: int, transformed: bool = False) -> Sequence[Case]:
    """The cases of a function's check; none where values are judged.

    Seed 0 gives them in the order that learners read them in, any other seed in an order of its own. `transformed`
    sends each through one or more of the exercise's relations: rows permuted, padding added, another scale.
    """
    if not isinstance(exercise.check, Function):
        return ()
    cases, draw = list(exercise.check.cases(seed)), random.Random(seed)
    if seed:
        draw.shuffle(cases)
    return [applied(exercise.check.relations, case, draw) for case in cases] if transformed else cases


def run(exercise: Exercise, answer: Answer, inputs: Sequence[Mapping[str, Any]]) -> list[Given] | dict[str, Given]:
    """What the answer gives: for each of the inputs, or by name. Needs nothing that tells what is right.

    Raises Unanswered where there is no answer, and NotYet for one that does not run or lacks the function.
    """
    module = answers.load(answer)
    if isinstance(exercise.check, Function):
        return answers.calls(exercise.check, module, inputs)
    return answers.values(exercise.check, module)


def judged(
    exercise: Exercise, given: list[Given] | dict[str, Given], cases: Sequence[Case], seed: int
) -> list[Finding]:
    """The findings about what an answer gave."""
    if isinstance(given, list):
        return [_about_case(case, each) for case, each in zip(cases, given, strict=True)]
    assert isinstance(exercise.check, Values)
    given = {name: _without_tensors(each) for name, each in given.items()}
    failed = [_failed(name, each.error) for name, each in given.items() if each.error]
    return failed or _about_values(exercise.check, {name: each.value for name, each in given.items()}, seed)


def all_right(findings: Sequence[Finding]) -> bool:
    """Whether an answer is right: something was looked at, and nothing is wrong."""
    return bool(findings) and all(finding.right for finding in findings)


def _about_case(case: Case, given: Given) -> Finding:
    expected = shown(case.expected)
    if given.error:
        return Finding(False, case.what, given.error, expected, f"It did not get as far as a value. {case.why}")
    difference = differs(given.value, case.expected)
    why = f"{difference[0].upper()}{difference[1:]}. {case.why}" if difference else ""
    return Finding(not difference, case.what, shown(given.value), expected, why)


def _without_tensors(given: Given) -> Given:
    """What judges of values are made for: of a tensor, `==` gives no bool."""
    try:
        return Given(_numbers(given.value), given.error)
    except NotPlain as error:
        return Given(error=str(error))


def _numbers(value: Any) -> Any:
    if isinstance(value, Tensor):
        if value.shape:
            raise NotPlain(f"a tensor of shape {tuple(value.shape)}; give numbers, or a list of them")
        return value.item()
    if isinstance(value, dict):
        return {key: _numbers(item) for key, item in value.items()}
    return type(value)(map(_numbers, value)) if isinstance(value, tuple | list) else value


def _failed(name: str, error: str) -> Finding:
    return Finding(False, name, error, "plain values", "Give names and numbers themselves, not what computes them.")


def _about_values(check: Values, values: Mapping[str, Any], seed: int) -> list[Finding]:
    try:
        return list(check.judge(values, seed))
    except GrpoLabError as error:  # a guard, setting or file that the answer names and that does not exist
        return [Finding(False, ", ".join(values), shown(tuple(values.values())), "something that runs", str(error))]
