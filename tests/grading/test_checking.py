"""An answer is judged by its data; a learner's mistake is a finding with its line."""

import math
import re
import signal
import threading
import time

import numpy as np
import pytest
import torch
from torch import tensor

from grpo_lab.course import answers, evaluate, registry, time_limit
from grpo_lab.course.compare import beside, differs, shown
from grpo_lab.course.exercises import Case, Exercise, Finding, Function, Values
from grpo_lab.course.judges import choice, prediction, text
from grpo_lab.errors import ConfigError, Unanswered


def exercise(check, kind="code"):
    return Exercise("double", "Double it", kind, 5, 1, 3, ("a", "b", "c"), check)


def doubled(seed):
    """Twice a vector that the seed draws."""
    x = torch.rand(3, generator=torch.Generator().manual_seed(seed))
    return [Case("three numbers", {"x": x}, 2 * x, "Every number twice.")]


FUNCTION = Function("double", doubled)
DOUBLE = exercise(FUNCTION)


@pytest.fixture
def write(tmp_path):
    """Writes an answer and returns its file."""

    def written(source):
        path = tmp_path / "double.py"
        path.write_text(source)
        return path

    return written


def test_a_right_answer_and_cases_that_follow_the_seed(write):
    path = write("def double(x): return x + x")
    first, second = (evaluate.check(DOUBLE, path, seed)[0] for seed in (0, 1))
    assert first.right and second.right and first.what == "three numbers"
    assert first.got == first.expected != second.got
    assert evaluate.all_right([first]) and not evaluate.all_right([])
    assert evaluate.check(DOUBLE, answers.load(path)) == [first]


@pytest.mark.parametrize(
    ("body", "got", "why"),
    [
        ("return x", "float32", "3 of 3 elements differ. Every number twice."),
        ("return (2 * x).double()", "float64", "The type is float64, not float32"),
        ("return (2 * x)[:2]", "float32", r"The shape is \(2,\), not \(3,\)[^E]*$"),
        ("return (2 * x).tolist()", r"\[", "This is a list; a tensor is wanted"),
        ("y = 2 * x", "None", "Nothing is returned[^E]*$"),
        ("return 1 / 0", r"ZeroDivisionError: division by zero \(line 2\)", "No comparable value[^E]*$"),
        ("raise SystemExit(0)", r"SystemExit: 0 \(line 2\)", "No comparable value"),
        ("return lambda: 3", "a value of type function", "No comparable value"),
        ("import json; return json.loads('{')", r"JSONDecodeError: .* \(line 2\)", "No comparable value"),
        ("raise ValueError('x' * 10_000)", r"^.{300,325} \.\.\. \(line 2\)$", "No comparable value"),
    ],
)
def test_a_wrong_answer_is_a_finding(write, body, got, why):
    (found,) = evaluate.check(DOUBLE, write(f"def double(x):\n    {body}\n"))
    assert not found.right and not evaluate.all_right([found])
    assert re.search(got, found.got) and re.search(why, found.why)


@pytest.mark.parametrize(
    ("source", "got"),
    [
        ("def double(x: return", r"^the cell raised SyntaxError: [^/]* \(line 1\)"),
        ("import torch\n\ntorch.nothing", r"^the cell raised AttributeError: [^/]*nothing.* \(line 3\)"),
        ("def treble(x): return x", "no function named double; defined are treble"),
        ("double = 3", "no function named double; defined are none"),
        ("def double(y): return y", r"double\(y\) cannot be called as double\(x\)"),
    ],
)
def test_what_does_not_run_is_a_finding_too(write, source, got):
    (found,) = evaluate.check(DOUBLE, write(source))
    assert not found.right and re.search(got, found.got)


@pytest.mark.parametrize(
    ("lab", "name", "source", "said"),
    [
        ("02_explosion", "bounded", "def k3(): return 1", "k3() cannot be called as k3(<Tensor>)"),
        (
            "04_guards",
            "guard",
            "class SkipJumps:\n    def __init__(self, factor): pass",
            "SkipJumps(factor) cannot be called as SkipJumps()",
        ),
    ],
)
def test_a_wrong_signature_is_said_once_with_the_call_of_the_probe(write, lab, name, source, said):
    (found,) = evaluate.check(registry.lab_page(lab).exercises[name], write(source))
    assert not found.right and found.got.startswith(said)


def test_a_signature_that_fits_in_another_way_is_fine(write):
    (found,) = evaluate.check(DOUBLE, write("def double(x, *more, **others): return 2 * x"))
    assert found.right


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("def double(x):\n    while True:\n        x = x + 0\n", "[23]"),
        ("import time\ndef double(x):\n    time.sleep(100)\n", "3"),
        ("x = 0\nwhile x < 1:\n    x = x - 1\ndef double(x): return 2 * x\n", "[23]"),
        (
            "def double(x):\n    while True:\n        try:\n            while True:\n                x = x + 0\n"
            "        except KeyboardInterrupt:\n            while True:\n                x = x + 0\n",
            "[78]",
        ),
    ],
)
def test_a_loop_without_end_is_stopped_and_said(write, monkeypatch, source, line):
    monkeypatch.setattr(evaluate, "SECONDS", 0.2)
    monkeypatch.setattr(time_limit, "AGAIN", 0.2)
    begun = time.monotonic()
    (found,) = evaluate.check(DOUBLE, write(source))
    assert time.monotonic() - begun < 20 and not found.right
    assert re.search(rf"stopped after 0\.2 s \(line {line}\)", found.got)


def test_a_process_in_the_background_has_the_time_limit_too(write, monkeypatch):
    """A shell lets it ignore SIGINT, and its children inherit that."""
    monkeypatch.setattr(evaluate, "SECONDS", 0.2)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        (found,) = evaluate.check(DOUBLE, write("import time\ndef double(x):\n    time.sleep(5)\n"))
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    assert "stopped after 0.2 s" in found.got


def test_an_interrupt_by_the_user_is_none_of_the_time_limit(write):
    with pytest.raises(KeyboardInterrupt):
        evaluate.check(DOUBLE, write("def double(x):\n    raise KeyboardInterrupt\n"))


def test_a_check_in_another_thread_has_no_time_limit(write, monkeypatch):
    monkeypatch.setattr(evaluate, "SECONDS", 0.01)
    answer = write("import time\ndef double(x):\n    time.sleep(0.1)\n    return 2 * x\n")
    found = []
    thread = threading.Thread(target=lambda: found.extend(evaluate.check(DOUBLE, answer)))
    thread.start()
    thread.join(20)
    assert found and found[0].right


def test_without_an_answer(write, tmp_path):
    with pytest.raises(Unanswered, match="line 2"):
        evaluate.check(DOUBLE, write("def double(x):\n    ...  # your answer\n"))
    with pytest.raises(Unanswered, match="%%exercise absent"):
        evaluate.check(DOUBLE, tmp_path / "absent.py")
    with pytest.raises(Unanswered, match=r"in place of `\.\.\.`"):
        evaluate.check(exercise(choice("a", {"b": ""})), write("answer = ..."))


def test_an_answer_cannot_change_the_inputs(write):
    x, module = tensor([1.0]), answers.load(write("def double(x): return x.mul_(2)"))
    assert [each.value for each in answers.calls(FUNCTION, module, [{"x": x}] * 2)] == [2.0, 2.0] and x == 1.0


def test_a_probe_judges_what_is_not_returned(write):
    def gradient(function, inputs):
        x = inputs["x"].requires_grad_()
        (found,) = torch.autograd.grad(function(x).sum(), x)
        return found

    def slope(seed):
        return [Case("the gradient", {"x": torch.ones(2)}, torch.full((2,), 2.0), "It is 2 everywhere.")]

    probed = exercise(Function("double", slope, gradient))
    assert evaluate.check(probed, write("def double(x): return 2 * x"))[0].right
    (found,) = evaluate.check(probed, write("def double(x): return 2 * x.detach()"))
    assert "RuntimeError" in found.got and "(line" not in found.got  # it is raised outside the answer


def test_inputs_in_and_data_out_without_the_check(write):
    """A sandbox needs no expected value."""
    cases = evaluate.asked(DOUBLE, 5)
    given = evaluate.run(DOUBLE, write("def double(x): return 2 * x"), [case.inputs for case in cases])
    forged = [answers.Given(tensor([1.0, 2.0, 3.0]))]
    assert [evaluate.judged(DOUBLE, each, cases, 5)[0].right for each in (given, forged)] == [True, False]


def test_hidden_cases_come_in_an_order_of_their_own():
    """An answer that counts its calls cannot predict the next case."""

    def numbered(seed):
        return [Case(str(number), {"x": number}, 2 * number, "") for number in range(8)]

    each = exercise(Function("double", numbered))
    orders = ["".join(case.what for case in evaluate.asked(each, seed)) for seed in range(4)]
    assert orders[0] == "01234567" and len({*orders}) == 4
    assert {"".join(sorted(order)) for order in orders} == {"01234567"}


def listed(values, seed):
    yield Finding(values["guards"] == ("warm_up",), "guards", str(values["guards"]), f"seed {seed}", "The reason.")


GUARDS = exercise(Values(("guards", "limit"), listed), "configuration")


def test_values_are_judged(write):
    (found,) = evaluate.check(GUARDS, write("guards = ('warm_up',)\nlimit = 3"), 7)
    assert found.right and (found.expected, found.why) == ("seed 7", "")
    (found,) = evaluate.check(GUARDS, write("guards = ()\nlimit = 3"), 7)
    assert not found.right and found.why == "The reason."


@pytest.mark.parametrize(
    ("source", "got"),
    [
        ("guards = ('warm_up',)", "nothing named limit"),
        ("guards = open\nlimit = 1", "a value of type builtin_function_or_method"),
        ("guards = [[[[[[[[1]]]]]]]]\nlimit = 1", "nested deeper than 6"),
        ("guards = [1] * 1001\nlimit = 1", "1,001 items; at most 1,000"),
        ("guards = 'x' * 20001\nlimit = 1", "a text of 20,001 characters"),
        ("guards = 1 << 1023\nlimit = 1", "more than 1,023 bits"),
        ("guards = {(1,): 1}\nlimit = 1", "a key of type tuple"),
        ("from torch import tensor\nguards, limit = 1, tensor([3.0])", "of shape (1,)"),
        ("from torch import zeros\nguards, limit = 1, {1: zeros(0)}", "of shape (0,)"),
    ],
)
def test_values_are_plain_data(write, source, got):
    (found,) = evaluate.check(GUARDS, write(source))
    assert not found.right and got in found.got


@pytest.mark.parametrize("limit", ["tensor(3.0)", "[tensor(3)]"])
def test_a_tensor_without_dimensions_is_a_number_to_a_judge(write, limit):
    def judge(values, seed):
        yield Finding(values["limit"] in (3, [3]), "limit", "", "", "")

    source = f"from torch import tensor\nlimit = {limit}"
    assert evaluate.check(exercise(Values(("limit",), judge)), write(source))[0].right is True


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (torch.zeros(1_000_001), "a tensor of 1,000,001 elements; at most 1,000,000"),
        (tensor([1.0]).to_sparse(), "a tensor of layout sparse_coo; give a dense one"),
        ([torch.eye(2).to_sparse()], "a tensor of layout sparse_coo; give a dense one"),
        (torch.zeros(1, device="meta"), "a tensor of device meta, which holds no numbers"),
        ("half \ud800 of it", "a text with half of a surrogate pair"),
        ({"\udfff": 1}, "a text with half of a surrogate pair"),
    ],
    ids=range(6),
)
def test_what_cannot_be_compared_says_so(value, why):
    with pytest.raises(answers.NotPlain, match=f"^{re.escape(why)}"):
        answers.plain(value)


def test_what_only_looks_equal_becomes_plain():
    """A subclass that equals everything becomes the number that it was made from."""

    class Same(float):
        def __eq__(self, other):
            return True

        __hash__ = float.__hash__

    same = answers.plain(Same(2))
    assert type(same) is type(answers.plain(np.float64(2))) is float and same != 3
    assert answers.plain(torch.nn.Parameter(tensor([1.0]))).requires_grad is False
    assert math.isfinite(float(answers.plain((1 << answers.MAX_BITS) - 1)))


def test_a_mistake_that_judging_finds_is_a_finding(write):
    def judge(values, seed):
        raise ConfigError("unknown guard 'warm_upp'; did you mean 'warm_up'?")

    (found,) = evaluate.check(exercise(Values(("guards",), judge)), write("guards = 'warm_upp'"))
    assert not found.right and "did you mean 'warm_up'" in found.why


@pytest.mark.parametrize(
    ("got", "expected", "difference"),
    [
        (1.00005, 1, ""),
        (1.0002, 1, "the number differs"),
        (math.nan, math.nan, ""),
        (math.inf, math.inf, ""),
        (-math.inf, math.inf, "the number differs"),
        (math.nan, 1.0, "the number differs"),
        (True, 1.0, "this is True or False; a number is wanted"),
        (1, True, "this is a number; True or False is wanted"),
        (tensor(True), True, ""),
        (tensor(1.0), 1.0, ""),
        (tensor([1.0]), 1.0, "this is a tensor; a number is wanted"),
        (1.0, tensor(1.0), "this is a number; a tensor is wanted"),
        ("b", "b", ""),
        ("a", "b", "the value differs"),
        ([1, 2.0], (1, 2), ""),
        ((1,), (1, 2), "the number of items is 1, not 2"),
        ((1, 3), (1, 2), "item 1, counted from 0: the number differs"),
        ({"a": 1}, {"a": 1}, ""),
        ({"b": 1}, {"a": 1}, "the items are ['b'], not ['a']"),
        (tensor([1.0, math.nan, math.inf]), tensor([1.0, math.nan, math.inf]), ""),
        (tensor([1, 2]), tensor([1, 3]), "1 of 2 elements differ"),
        (tensor([True]), tensor([1]), "the type is bool, not int64"),
        (tensor([1.0]).half(), tensor([1.001]).half(), ""),
    ],
)
def test_differences(got, expected, difference):
    assert differs(got, expected) == difference


def test_a_check_that_expects_no_data_is_a_mistake_of_ours():
    with pytest.raises(TypeError, match="which is not plain data"):
        differs(1, print)


@pytest.mark.parametrize(
    ("value", "limit", "text"),
    [(0.035, 0.04, "0.035"), (0.03999, 0.04, "0.03999"), (0.04, 0.04, "0.04"), (0.0400001, 0.04, "0.0400001")],
)
def test_a_number_stays_on_its_side_of_a_limit(value, limit, text):
    assert beside(value, limit) == text


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (torch.zeros(100), "a tensor of shape (100,), beginning [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], float32"),
        (list(range(20)), "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, and 8 more]"),
        ({"a": (1.5,)}, "{'a': (1.5,)}"),
        (tensor([[1, 2], [3, 4]]), "[[1, 2], [3, 4]] int64"),
        ("x" * 1000, f"'{'x' * 195} ..."),
    ],
)
def test_what_is_shown(value, said):
    assert shown(value) == said


LETTER = choice("b", {"a": "Look again.", "c": "No."})


@pytest.mark.parametrize(
    ("check", "answer", "right", "why"),
    [
        (LETTER, "b", True, ""),
        (LETTER, "a", False, "Look again."),
        (LETTER, "e", False, "This is none of them."),
        (prediction("abc", "a"), "c", True, ""),
        (prediction("abc", "a"), "ab", False, "A prediction"),
        (prediction("abc", "a"), "", False, "A prediction"),
        (prediction("abc", "a"), 1, False, "This is a number"),
        (text(3), "one two three", True, ""),
        (text(3), "one two", False, "Write it in your own words"),
    ],
)
def test_shared_judges(check, answer, right, why):
    (found,) = evaluate.check(exercise(check), {"answer": answer})
    assert found.right is right and found.why.startswith(why)
    assert why != "Look again." or "b" not in found.expected.split()
