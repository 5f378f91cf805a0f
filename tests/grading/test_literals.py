"""Literals need no sandbox, and no other source is taken for one."""

import ast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from grpo_lab.course import answers
from grpo_lab.grading.literals import literal

plain_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text("ab", max_size=2) | st.integers(), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(plain_values)
@example({1: "healthy", 2: ("a", -1.5e-3, None, [True])})
def test_plain_data_is_read_as_running_it_would_give_it(value):
    source = f"# %%exercise x\nanswer = {value!r}\n"
    read = literal(source, ["answer"])
    try:
        expected = {"answer": answers.plain(value)}
    except answers.NotPlain:
        expected = None
    assert read == expected and repr(read) == repr(expected)


@pytest.mark.parametrize(
    "value",
    ["'one ' 'two'", '("one "\n  "two")', '"""one\ntwo"""', r"r'\d'", "'é \\N{BULLET} \\x41'", "-1", "+1_000"],
)
def test_texts_and_numbers_in_all_their_spellings(value):
    assert literal(f"\nanswer = {value}  # so\n", ["answer"]) == {"answer": ast.literal_eval(value)}


def test_an_escape_that_python_warns_of_is_no_warning_here():
    assert literal(r"answer = '\d'", ["answer"]) == {"answer": r"\d"}


def test_exactly_the_names_that_are_asked():
    source = "guards = ('warm_up',)\nrate = 1e-4\n"
    assert literal(source, ["rate", "guards"]) == {"guards": ("warm_up",), "rate": 1e-4}
    assert literal(source, ["rate"]) is None and literal(source, ["rate", "guards", "more"]) is None


@pytest.mark.parametrize(
    "source",
    [
        "",
        "answer = ...",
        "answer = 10 ** 10 ** 10",
        "answer = 1 + 1",
        "answer = other",
        "answer = open('x')",
        "answer = [x for x in 'ab']",
        "answer = f'{1}'",
        "answer = b'x'",
        "answer = {1, 2}",
        "answer = {[1]: 2}",
        "answer = 1j",
        "answer = 'a'[0]",
        "answer = not True",
        "answer = 'a' if True else 'b'",
        "answer = lambda: 1",
        "answer: str = 'a'",
        "answer = copy = 'a'",
        "answer, more = 'a', 'b'",
        "answer = 'a'; answer = 'b'",
        "answer = 'a'\nanswer = 'b'",
        "import os\nanswer = 'a'",
        "if True:\n    answer = 'a'",
        "answer = 'a",
        "answer = ('a'",
        "answer = 'a')",
        r"answer = '\ud83d'",  # half of a pair: no text
        r"answer = '\U0000DFFF'",
        f"answer = {'9' * 5_000}",
        f"answer = 0x{'f' * 5_000}",
        f"answer = '{'a' * (answers.MAX_TEXT + 1)}'",
        f"answer = {'[' * 8}{']' * 8}",
    ],
)
def test_all_else_is_for_the_sandbox(source):
    assert literal(source, ["answer"]) is None


@pytest.mark.parametrize(
    "source",
    [
        "(" * 60_000,
        "answer = " + "[" * 20_000 + "]" * 20_000,
        "answer = " + "-" * 60_000 + "1",
        "answer = " + "not " * 15_000 + "1",
        "answer = " + "lambda:" * 8_000 + "1",
        "answer = 'a'" + ".b" * 30_000,
        "answer = 'a'" + "[0]" * 20_000,
        "answer = 'a'" + "()" * 30_000,
        "answer = 1" + "+1" * 30_000,
        "answer = " + "1 if 1 else " * 5_000 + "1",
        "answer = f'{" + "-" * 60_000 + "1}'",
    ],
    ids=["open", "lists", "signs", "not", "lambda", "attributes", "items", "calls", "sum", "if", "inside a text"],
)
def test_deep_nesting_never_reaches_the_parser(source, monkeypatch):
    monkeypatch.setattr(ast, "parse", lambda source: pytest.fail("parsed"))
    assert literal(source, ["answer"]) is None


@given(st.text(alphabet="an=swer 'x\"\\\n\r\t\f#()[]{},:;-+.1eEjJ_0fbruU\x00\ud800é"))
def test_any_text_is_read_or_left(source):
    found = literal(source, ["answer"])
    assert found is None or list(found) == ["answer"]
