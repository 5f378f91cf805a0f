"""Compares a result with its expected value, and shows values in a line."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from grpo_lab.errors import Sentence, joined, listed

TOLERANCE = {torch.float16: 2e-3, torch.bfloat16: 2e-2}
"""Relative, by type of number."""
USUAL, NEAR_ZERO = 1e-4, 1e-6
"""The relative tolerance of all other types, and the absolute one."""
DIGITS = 4
"""Digits of a number that is shown, if they are enough."""
SHOWN = 12
"""Items of a tensor or list that are shown in full."""


ELEMENTS = "{} of {} elements differ"


class OfForm(Sentence):
    """A difference of type, shape or length, found before any number was compared."""


@dataclass(frozen=True)
class Span:
    """The numbers from `low` to `high`, which are all right: an expected value of a question with several answers."""

    low: float
    high: float

    def nearest(self, number: float) -> float:
        """The number of the span that is nearest to this one; `low` for NaN."""
        return max(self.low, min(number, self.high)) if number == number else self.low


def differs(got: Any, expected: Any) -> str:
    """The difference in a few words, or an empty text. NaN equals NaN; a tuple equals a list of the same items.

    Raises TypeError for an expected value that is not plain data.
    >>> differs(1.00001, 1), differs(float("nan"), float("nan")), differs(None, 1.0)
    ('', '', 'nothing is returned')
    >>> differs(torch.zeros(2), torch.zeros(2, 1))
    'the shape is (2,), not (2, 1)'
    """
    if got is None and expected is not None:
        return OfForm("nothing is returned")
    if isinstance(expected, Tensor):
        return _tensors(got, expected)
    if isinstance(got, Tensor) and got.numel() == 1 and not got.shape:
        got = got.item()
    if isinstance(expected, Span):
        return _numbers(got, expected.nearest(got) if isinstance(got, int | float) else expected.low)
    if isinstance(expected, bool | str) or expected is None:
        right = type(got) is type(expected) and got == expected
        return "" if right else Sentence("the value differs") if type(got) is type(expected) else _kinds(got, expected)
    if isinstance(expected, int | float):
        return _numbers(got, expected)
    if isinstance(expected, dict):
        return _items(got, expected) if isinstance(got, dict) else _kinds(got, expected)
    if isinstance(expected, tuple | list):
        return _in_a_row(got, expected) if isinstance(got, tuple | list) else _kinds(got, expected)
    raise TypeError(f"a check expects {type(expected).__name__}, which is not plain data")


def is_number(value: Any) -> bool:
    """Whether a value is an int or a float; True and False are neither.

    >>> is_number(1), is_number(True), is_number("1")
    (True, False, False)
    """
    return isinstance(value, int | float) and not isinstance(value, bool)


def kind(value: Any) -> str:
    """The kind of plain data that a value is, in words.

    >>> kind("1.5"), kind(1.5), kind((1, 2)), kind(True)
    ('a text', 'a number', 'a tuple', 'True or False')
    """
    return next((Sentence(words) for types, words in _KINDS if isinstance(value, types)), f"a {type(value).__name__}")


def other_kind(got: Any, *wanted: str) -> str:
    """The reason why a value of another kind than the wanted ones is wrong, or an empty text.

    >>> other_kind("1.5", "a number"), other_kind(1.5, "a number")
    ('This is a text; a number is wanted.', '')
    """
    options = listed("{} or {}", [Sentence(each) for each in wanted])
    return "" if kind(got) in wanted else Sentence("This is {}; {} is wanted.", kind(got), options)


_KINDS = (
    (bool, "True or False"),
    (int | float | Span, "a number"),
    (str, "a text"),
    (tuple, "a tuple"),
    (list, "a list"),
    (dict, "a dictionary"),
    (Tensor, "a tensor"),
    (type(None), "None"),
)
"""The kinds of plain data; a bool is an int, too."""


def _kinds(got: Any, expected: Any) -> str:
    return OfForm("this is {}; {} is wanted", kind(got), kind(expected))


def _numbers(got: Any, expected: float) -> str:
    if not is_number(got):
        return _kinds(got, expected)
    same = got == expected or (got != got and expected != expected)
    close = same or math.isclose(got, expected, rel_tol=USUAL, abs_tol=NEAR_ZERO)
    return "" if close else Sentence("the number differs")


def _tensors(got: Any, expected: Tensor) -> str:
    if not isinstance(got, Tensor):
        return _kinds(got, expected)
    if got.shape != expected.shape:
        return OfForm("the shape is {}, not {}", tuple(got.shape), tuple(expected.shape))
    if got.dtype != expected.dtype:
        return OfForm("the type is {}, not {}", _dtype(got), _dtype(expected))
    if expected.is_floating_point():
        relative = TOLERANCE.get(expected.dtype, USUAL)
        close = torch.isclose(got, expected, rtol=relative, atol=NEAR_ZERO, equal_nan=True)
    else:
        close = got == expected
    wrong = int((~close).sum())
    return Sentence(ELEMENTS, wrong, close.numel()) if wrong else ""


def _in_a_row(got: Any, expected: Any) -> str:
    if len(got) == len(expected):
        return _items(dict(enumerate(got)), dict(enumerate(expected)), "item {}, counted from 0: {}")
    # The length of a tuple is its form; that of a list is often the answer, as in a list of steps.
    kind = OfForm if isinstance(expected, tuple) else Sentence
    return kind("the number of items is {}, not {}", len(got), len(expected))


def _items(got: dict[Any, Any], expected: dict[Any, Any], words: str = "item {}: {}") -> str:
    if set(got) != set(expected):
        return OfForm("the items are {}, not {}", shown(list(got)), shown(list(expected)))
    found = ((name, differs(got[name], expected[name])) for name in expected)
    return next((type(each)(words, repr(name), each) for name, each in found if isinstance(each, Sentence)), "")


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def beside(value: float, limit: float) -> str:
    """The number with three digits, or more where fewer would show it on another side of the limit.

    >>> beside(0.0375, 0.04), beside(0.03999, 0.04), beside(0.47, 0.04)
    ('0.0375', '0.03999', '0.47')
    """
    texts = (f"{value:.{digits}g}" for digits in range(3, 18))
    same = (text for text in texts if (float(text) > limit, float(text) < limit) == (value > limit, value < limit))
    return next(same, repr(value))


def shown_apart(got: Any, expected: Any) -> tuple[str, str]:
    """Two values that differ, each in a line, with as many digits as it takes to see it.

    >>> shown_apart(1.0002, 1.0), shown_apart(1.5, 1.0)
    (('1.0002', '1'), ('1.5', '1'))
    """
    pairs = ((shown(got, digits), shown(expected, digits)) for digits in range(DIGITS, 18))
    return next((pair for pair in pairs if pair[0] != pair[1]), (shown(got), shown(expected)))


def shown(value: Any, digits: int = DIGITS) -> str:
    """A value in a line: numbers with four digits, long collections cut.

    >>> shown(torch.tensor([1.0, 2.5])), shown((1, 0.123456)), shown("b")
    ('[1, 2.5] float32', '(1, 0.1235)', "'b'")
    """
    if isinstance(value, Tensor) and value.numel() > 4 * SHOWN and value.shape:
        begin = _nested(value.flatten()[:SHOWN], digits)
        return Sentence("a tensor of shape {}, beginning {}, {}", tuple(value.shape), begin, _dtype(value))
    if isinstance(value, Tensor):
        return f"{_nested(value, digits)} {_dtype(value)}"
    if isinstance(value, float):
        return f"{value:.{digits}g}"
    if isinstance(value, Span):
        low, high = shown(value.low, digits), shown(value.high, digits)
        return low if low == high else Sentence("{} to {}", low, high)
    if isinstance(value, dict):
        return _in_brackets("{", [_pair(repr(name), shown(item, digits)) for name, item in value.items()], "}")
    if isinstance(value, tuple | list):
        left, right = "()" if isinstance(value, tuple) else "[]"
        comma = "," if isinstance(value, tuple) and len(value) == 1 else ""
        return _in_brackets(left, [shown(item, digits) for item in value], comma + right)
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:196]} ..."


def _nested(tensor: Tensor, digits: int) -> str:
    if not tensor.shape:
        return f"{tensor.item():.{digits}g}" if tensor.is_floating_point() else str(tensor.item())
    return "[" + ", ".join(_nested(row, digits) for row in tensor) + "]"


def _pair(name: str, item: str) -> str:
    return Sentence("{0}: {1}", name, item) if isinstance(item, Sentence) else f"{name}: {item}"


def _in_brackets(left: str, texts: list[str], right: str) -> str:
    """A collection; it is a sentence where a part of it is one, or where it is cut."""
    short = texts[:SHOWN]
    row = joined(", ", short) if any(isinstance(each, Sentence) for each in short) else ", ".join(short)
    row = row if len(texts) <= SHOWN else Sentence("{}, and {} more", row, len(texts) - SHOWN)
    return Sentence(f"{left}{{}}{right}", row) if isinstance(row, Sentence) else f"{left}{row}{right}"
