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
from grpo_lab.errors import ConfigError, NotYet, Unanswered


def exercise(check, kind="code"):
    return Exercise("double", "Double it", kind, 5, 1, 3, ("a", "b", "c"), check)


def doubled(seed):
    """Twice a vector that the seed draws."""
    x = torch.rand(3, generator=torch.Generator().manual_seed(seed))
    return [Case("three numbers", {"x": x}, 2 * x, "Every number twice.")]


def gradient(function, inputs):
    x = inputs["x"].requires_grad_()
    (found,) = torch.autograd.grad(function(x).sum(), x)
    return found


DOUBLE = exercise(Function("double", doubled))


@pytest.fixture
def write(tmp_path):
    """Writes an answer and returns its file."""

    def written(source):
        path = tmp_path / "double.py"
        path.write_text(source)
        return path

    return written


@pytest.mark.parametrize("seed", [0, 1])
def test_a_right_answer(write, seed):
    (found,) = evaluate.check(DOUBLE, write("def double(x): return x + x"), seed)
    assert found.right
    assert found.what == "three numbers"
    assert found.got == found.expected
    assert evaluate.all_right([found])


def test_cases_follow_the_seed(write):
    path = write("def double(x): return x + x")
    assert evaluate.check(DOUBLE, path, 0)[0].got != evaluate.check(DOUBLE, path, 1)[0].got


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
        ("return torch.cat([x, x.view(1, 3)])", r"NameError: .* \(line 2\)", "No comparable value"),
    ],
)
def test_a_wrong_answer_is_a_finding(write, body, got, why):
    (found,) = evaluate.check(DOUBLE, write(f"def double(x):\n    {body}\n"))
    assert not found.right
    assert not evaluate.all_right([found])
    assert re.search(got, found.got)
    assert re.search(why, found.why)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def double(x: return", r"^the cell raised SyntaxError: [^/]* \(line 1\); correct the cell$"),
        (
            "import torch\n\ntorch.nothing",
            r"^the cell raised AttributeError: [^/]*nothing.* \(line 3\); correct the cell$",
        ),
        ("def treble(x): return x", "no function named double; defined are treble"),
        ("double = 3", "no function named double; defined are none"),
    ],
)
def test_what_does_not_run_is_a_finding_too(write, source, message):
    (found,) = evaluate.check(DOUBLE, write(source))
    assert not found.right
    assert re.search(message, found.got)


@pytest.mark.parametrize(
    ("lab", "name", "source", "said"),
    [
        (
            "00_start",
            "out_of_range",
            "def steps_out_of_range(values, limit): return []",
            "steps_out_of_range(values, limit) cannot be called as steps_out_of_range(norms, limit)",
        ),
        (
            "02_explosion",
            "bounded",
            "def k3(): return 1",
            "k3() cannot be called as k3(<Tensor>)",
        ),
        (
            "02_explosion",
            "gradient",
            "def gradient(ratio, a, epsilon=0.2): return 0.0",
            "gradient(ratio, a, epsilon) cannot be called as gradient(log_ratio, advantage)",
        ),
        (
            "04_guards",
            "guard",
            "class SkipJumps:\n    def __init__(self, factor): pass",
            "SkipJumps(factor) cannot be called as SkipJumps()",
        ),
    ],
)
def test_a_wrong_signature_is_said_once_with_the_right_one(write, lab, name, source, said):
    (found,) = evaluate.check(registry.exercise(lab, name), write(source))
    assert not found.right
    assert found.got.startswith(said) and found.got.endswith("keep the parameters that the cell came with")


def test_a_signature_that_fits_in_another_way_is_fine(write):
    source = "def steps_out_of_range(norms, limit, *more, **others): return 1 / 0"
    found = evaluate.check(registry.exercise("00_start", "out_of_range"), write(source))
    assert len(found) == 7 and all("ZeroDivisionError" in each.got for each in found)


def test_the_line_is_the_innermost_of_the_answer(write):
    source = "import json\ndef inner(x):\n    return json.loads('{')\ndef double(x):\n    return inner(x)\n"
    (found,) = evaluate.check(DOUBLE, write(source))
    assert found.got.endswith("(line 3)")


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
    assert time.monotonic() - begun < 20
    assert not found.right
    assert re.search(rf"stopped after 0\.2 s \(line {line}\): does a loop", found.got)


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


def test_a_long_message_is_cut(write):
    (found,) = evaluate.check(DOUBLE, write("def double(x):\n    raise ValueError('x' * 10_000)"))
    assert found.got.endswith("x ... (line 2)")
    assert len(found.got) < 330


def test_without_an_answer(write, tmp_path):
    with pytest.raises(Unanswered, match="waits for your answer in line 2"):
        evaluate.check(DOUBLE, write("def double(x):\n    ...  # your answer\n"))
    with pytest.raises(Unanswered, match="%%exercise absent"):
        evaluate.check(DOUBLE, tmp_path / "absent.py")
    with pytest.raises(Unanswered, match=r"in place of `\.\.\.`"):
        evaluate.check(exercise(choice("a", {"b": ""})), write("answer = ..."))


def test_an_answer_cannot_change_the_inputs(write):
    (found,) = evaluate.check(DOUBLE, write("def double(x): return x.mul_(2)"))
    assert found.right
    x = tensor([1.0])
    answers.calls(Function("double", doubled), module(write, "def double(x): return x.mul_(2)"), [{"x": x}] * 2)
    assert x == 1.0


def module(write, source):
    return answers.load(write(source))


def test_a_module_in_place_of_a_file(write):
    assert evaluate.check(DOUBLE, module(write, "def double(x): return 2 * x"))[0].right


def test_a_probe_judges_what_is_not_returned(write):
    def slope(seed):
        return [Case("the gradient", {"x": torch.ones(2)}, torch.full((2,), 2.0), "It is 2 everywhere.")]

    probed = exercise(Function("double", slope, gradient))
    assert evaluate.check(probed, write("def double(x): return 2 * x"))[0].right
    (found,) = evaluate.check(probed, write("def double(x): return 2 * x.detach()"))
    assert "RuntimeError" in found.got
    assert "(line" not in found.got  # it is raised outside the answer


def test_inputs_in_and_data_out_without_the_check(write):
    """A sandbox needs no expected value."""
    cases = evaluate.asked(DOUBLE, 5)
    given = evaluate.run(DOUBLE, write("def double(x): return 2 * x"), [case.inputs for case in cases])
    assert [finding.right for finding in evaluate.judged(DOUBLE, given, cases, 5)] == [True]
    forged = [answers.Given(tensor([1.0, 2.0, 3.0]))]
    assert [finding.right for finding in evaluate.judged(DOUBLE, forged, cases, 5)] == [False]


def test_hidden_cases_come_in_an_order_of_their_own():
    """An answer that counts its calls cannot predict the next case."""

    def numbered(seed):
        return [Case(str(number), {"x": number}, 2 * number, "") for number in range(8)]

    orders = [
        "".join(case.what for case in evaluate.asked(exercise(Function("double", numbered)), s)) for s in range(4)
    ]
    assert orders[0] == "01234567"
    assert len({*orders}) == 4
    assert {"".join(sorted(order)) for order in orders} == {"01234567"}


def listed(values, seed):
    yield Finding(values["guards"] == ("warm_up",), "guards", str(values["guards"]), f"seed {seed}", "The reason.")


GUARDS = exercise(Values(("guards", "limit"), listed), "configuration")


def test_values_are_judged(write):
    (found,) = evaluate.check(GUARDS, write("guards = ('warm_up',)\nlimit = 3"), 7)
    assert found.right
    assert (found.expected, found.why) == ("seed 7", "")
    (found,) = evaluate.check(GUARDS, write("guards = ()\nlimit = 3"), 7)
    assert not found.right
    assert found.why == "The reason."


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
    ],
)
def test_values_are_plain_data(write, source, got):
    (found,) = evaluate.check(GUARDS, write(source))
    assert not found.right
    assert got in found.got


@pytest.mark.parametrize(
    ("limit", "got"),
    [("tensor(3.0)", ""), ("[tensor(3)]", ""), ("tensor([3.0])", "of shape (1,)"), ("{1: zeros(0)}", "of shape (0,)")],
)
def test_values_that_judges_compare_hold_no_tensors(write, limit, got):
    def judge(values, seed):
        yield Finding(values["limit"] in (3, [3]), "limit", "", "", "")

    source = f"from torch import tensor, zeros\nlimit = {limit}"
    (found,) = evaluate.check(exercise(Values(("limit",), judge)), write(source))
    assert (found.right is True) == (not got) and got in found.got


def test_a_whole_number_fits_a_float():
    assert math.isfinite(float(answers.plain((1 << answers.MAX_BITS) - 1)))


def test_tensors_have_a_size_they_may_have():
    with pytest.raises(answers.NotPlain, match="a tensor of 1,000,001 elements; at most 1,000,000"):
        answers.plain(torch.zeros(1_000_001))


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (tensor([1.0]).to_sparse(), "a tensor of layout sparse_coo; give a dense one"),
        ([torch.eye(2).to_sparse()], "a tensor of layout sparse_coo; give a dense one"),
        (torch.zeros(1, device="meta"), "a tensor of device meta, which holds no numbers"),
        ("half \ud800 of it", "a text with half of a surrogate pair, which is no character"),
        ({"\udfff": 1}, "a text with half of a surrogate pair"),
    ],
    ids=str,
)
def test_what_cannot_be_compared_says_so(value, why):
    with pytest.raises(answers.NotPlain, match=f"^{re.escape(why)}"):
        answers.plain(value)


def test_what_only_looks_equal_becomes_plain(write):
    """A subclass that equals everything becomes the number that it was made from."""
    source = "class Same(float):\n    def __eq__(self, other): return True\n    __hash__ = None\n"
    same = answers.plain(module(write, f"{source}x = Same(2)").x)
    assert type(same) is float
    assert same != 3
    assert type(answers.plain(np.float64(2))) is float
    assert answers.plain(torch.nn.Parameter(tensor([1.0]))).requires_grad is False


def test_a_mistake_that_judging_finds_is_a_finding(write):
    def judge(values, seed):
        raise ConfigError("unknown guard 'warm_upp'; did you mean 'warm_up'?")

    (found,) = evaluate.check(exercise(Values(("guards",), judge)), write("guards = 'warm_upp'"))
    assert not found.right
    assert "did you mean 'warm_up'" in found.why


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
        ((1, 3), (1, 2), "item 1: the number differs"),
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


def test_a_number_that_differs_is_shown_to_differ(write):
    def third(seed):
        return [Case("a third", {"x": 1.0}, 1.0, "A third.")]

    (found,) = evaluate.check(exercise(Function("third", third)), write("def third(x): return 1.0002"))
    assert not found.right and (found.got, found.expected) == ("1.0002", "1")


@pytest.mark.parametrize(
    ("value", "limit", "text"),
    [(0.035, 0.04, "0.035"), (0.03999, 0.04, "0.03999"), (0.04, 0.04, "0.04"), (0.0400001, 0.04, "0.0400001")],
)
def test_a_number_stays_on_its_side_of_a_limit(value, limit, text):
    assert beside(value, limit) == text


def test_what_is_shown():
    assert shown(torch.zeros(100)).startswith("a tensor of shape (100,), beginning [0, 0,")
    assert shown(list(range(20))).endswith("10, 11, and 8 more]")
    assert shown({"a": (1.5,)}) == "{'a': (1.5,)}"
    assert shown(tensor([[1, 2], [3, 4]])) == "[[1, 2], [3, 4]] int64"
    assert len(shown("x" * 1000)) < 250


def rights(check, source, write):
    return [finding.right for finding in evaluate.check(exercise(check), write(source))]


def test_shared_judges(write):
    letter = choice("b", {"a": "Look again.", "c": "No."})
    assert rights(letter, "answer = 'b'", write) == [True]
    assert evaluate.check(exercise(letter), write("answer = 'a'"))[0].why == "Look again."
    assert evaluate.check(exercise(letter), write("answer = 'e'"))[0].why == "This is none of them."
    assert "b" not in evaluate.check(exercise(letter), write("answer = 'a'"))[0].expected.split()
    for source, right in (("'c'", True), ("'ab'", False), ("''", False), ("1", False)):
        assert rights(prediction("abc", "a"), f"answer = {source}", write) == [right], source
    assert rights(text(3), "answer = 'one two three'", write) == [True]
    assert rights(text(3), "answer = 'one two'", write) == [False]


def test_nothing_looked_at_is_not_right():
    assert not evaluate.all_right([])


@pytest.mark.parametrize("error", [Unanswered("waits"), NotYet("not yet"), ConfigError("no")])
def test_a_notebook_shows_one_line(error):
    assert error._render_traceback_() == [f"{type(error).__name__}: {error}"]
