"""Probes run beside an answer: they are found by name, import no expected values, and return data for any answer."""

import inspect
import itertools
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from grpo_lab.course import answers, evaluate, probes
from grpo_lab.course.answers import Given
from grpo_lab.course.compare import Span, differs
from grpo_lab.course.exercises import Function
from grpo_lab.course.registry import lab_page
from tests.grading.mutants import FUNCTIONS

every_function = pytest.mark.parametrize("asked_for", FUNCTIONS.values(), ids=FUNCTIONS)
FRESH = 12345


def test_every_probe_is_found_by_its_name_and_used():
    used = {each.check.probe for each in FUNCTIONS.values() if isinstance(each.check, Function)}
    assert all(getattr(probes, probe.__name__) is probe for probe in used)
    own = [each for each in vars(probes).values() if getattr(each, "__module__", "") == probes.__name__]
    names = {each.__name__ for each in own if inspect.isfunction(each) and each not in used}
    assert {name for name in names if not name.startswith("_")} == {"one_group"}


def kinds(value):
    """The types of the data, which `plain` must keep."""
    if isinstance(value, Tensor):
        return type(value), value.dtype, value.shape, value.requires_grad
    if isinstance(value, dict):
        return {key: kinds(item) for key, item in value.items()}
    return (type(value), [kinds(item) for item in value]) if isinstance(value, tuple | list) else type(value)


@every_function
def test_cases_are_plain_data(asked_for):
    for seed, transformed in itertools.product((0, FRESH), (False, True)):
        for case in evaluate.asked(asked_for, seed, transformed):
            expected = case.expected
            ends = (expected.low, expected.high) if isinstance(expected, Span) else (expected,)
            for data in (case.inputs, *ends):
                same = answers.plain(data)
                assert kinds(same) == kinds(data) and not differs(same, data), case.what


HIDDEN = """
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name == "grpo_lab.course.pages":
            raise ImportError(f"{name} is hidden")
sys.meta_path.insert(0, Hidden())
"""
NOT_NEEDED = {"transformers", "pandas", "grpo_lab.training.trainer", "grpo_lab.algorithm.losses"}


def test_probes_need_nothing_that_knows_what_is_right():
    code = f"{HIDDEN}from grpo_lab.course import answers, probes\nprint({NOT_NEEDED!r} & {{*sys.modules}})"
    root = Path(__file__).parents[2]
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root, check=True)
    assert ended.stdout.strip() == "set()"


def everywhere(junk):
    """An answer that returns one value, as a function, as a class of guards and as their return value."""

    class Junk:
        def __init__(self, *_, **__):
            pass

        def __call__(self, *_, **__):
            return junk

    return (lambda *_, **__: junk), Junk


JUNK = [None, 3.0, True, "text", (), {}, object(), print, torch.zeros(()), torch.zeros(0)]
JUNK += [torch.ones(7, dtype=torch.long)]
TECHNICAL = re.compile(
    r"object has no attribute|unsupported operand|not iterable|not callable"
    r"|does not require grad|unused in the graph|scalar outputs"
)
"""What Python and torch say of it, which tells a learner nothing."""


@every_function
def test_junk_is_wrong_and_said_to_be_in_words(asked_for):
    for junk in JUNK:
        for answer in everywhere(junk):
            found = evaluate.check(asked_for, {asked_for.check.name: answer})
            assert not evaluate.all_right(found), junk
            assert not any(TECHNICAL.search(finding.got) for finding in found), junk


def test_what_nothing_leads_back_to_has_a_gradient_of_0():
    x = torch.tensor([1.0, 2.0])

    def gradient_of(function):
        return probes.by_delta(function, {"delta": x, "look": "gradient"}).tolist()

    assert gradient_of(torch.exp) == pytest.approx(x.exp().tolist())
    assert gradient_of(lambda delta: delta.detach()) == [0, 0]
    assert gradient_of(lambda delta: torch.ones(2, requires_grad=True).exp()) == [0, 0]
    assert not x.requires_grad


@pytest.mark.parametrize(
    ("lab", "name", "answer"),
    [
        ("05_kl", "k3", lambda delta: (torch.expm1(delta) - delta).detach()),
        ("05_kl", "k3", lambda delta: torch.expm1(delta.detach()) - delta),
        ("02_explosion", "log_ratio", lambda logprobs, batch: (logprobs - batch.old_logprobs).detach()),
    ],
)
def test_a_right_value_with_a_wrong_gradient_fails_by_its_gradient_alone(lab, name, answer):
    wrong = [each for each in evaluate.check(lab_page(lab).exercises[name], {name: answer}, FRESH) if not each.right]
    assert wrong and all("gradient" in finding.what for finding in wrong)


@pytest.mark.parametrize(
    ("reason", "number"),
    [
        ("grad norm 812.4 > 10", [812.4]),
        ("10 < 8.124e+02", [812.4]),
        ("limit 10, norm 812.40, step 3", [812.4]),
        ("above 10", [10.0]),
        ("too large", []),
        (None, []),
    ],
)
def test_the_number_in_a_reason(reason, number):
    def guard():
        return lambda value, step: probes.Outcome(value, probes.Verdict.SKIP_STEP, reason)

    assert probes.one_norm(guard, {"grad_norm": 812.4, "look": "reason"}) == number


@every_function
def test_the_answers_that_learners_see_do_not_fit_other_seeds(asked_for):
    """Neither in turn for any inputs, nor any single one of them."""
    seen = [Given(case.expected) for case in asked_for.check.cases(0)]
    cases = evaluate.asked(asked_for, FRESH)
    for first in range(len(seen)):
        in_turn = [seen[(first + place) % len(seen)] for place in range(len(cases))]
        for recited in (in_turn, [seen[first]] * len(cases)):
            assert not evaluate.all_right(evaluate.judged(asked_for, recited, cases, FRESH))
