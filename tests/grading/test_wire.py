"""Data survive the wire; other objects, and data over a limit, are refused."""

import contextlib
import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo_lab.course.answers import MAX_ELEMENTS, MAX_LENGTH, MAX_TEXT, NotPlain
from grpo_lab.course.compare import differs
from grpo_lab.grading import wire

SCALARS = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=9)
KEYS = st.text(max_size=4) | st.integers(-9, 9)
DATA = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.lists(inner, max_size=4).map(tuple) | st.dictionaries(KEYS, inner, max_size=4)
    ),
    max_leaves=8,
)


@given(DATA.filter(lambda data: depth(data) <= 5))
def test_data_survives(data):
    back = wire.unpack(wire.pack(data))
    assert differs(back, data) == ""
    assert repr(back) == repr(data)  # tuples stay tuples, -0.0 stays -0.0, True is not 1


def depth(data) -> int:
    inner = data.values() if isinstance(data, dict) else data if isinstance(data, tuple | list) else ()
    return 1 + max((depth(item) for item in inner), default=0)


@pytest.mark.parametrize("dtype", wire.DTYPES.values(), ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (2, 3)])
def test_tensors_survive_to_the_bit(dtype, shape):
    tensor = (torch.randn(shape) * 3).to(dtype)
    back = wire.unpack(wire.pack(tensor))
    assert back.dtype == dtype
    assert torch.equal(back, tensor)


def test_nan_and_views_survive():
    tensor = torch.tensor([[math.nan, -math.inf], [0.0, -0.0]]).T
    back = wire.unpack(wire.pack([tensor, tensor[1:]]))
    assert str(back) == str([tensor, tensor[1:]])


def tensor(**changed):
    return {"tensor": "float32", "shape": [1], "bytes": "AAAAAA==", **changed}


@pytest.mark.parametrize(
    "line",
    [
        "",
        "{",
        "[" * 100_000,
        "[" * 9 + "]" * 9,
        "9" * 5_000,
        '{"other": 1}',
        '{"tuple": [], "dict": []}',
        '{"dict": [[[1], 2]]}',
        '{"dict": [[{"tuple": [1]}, 2]]}',
        json.dumps("x" * (MAX_TEXT + 1)),
        json.dumps("\ud800"),
        json.dumps([0] * (MAX_LENGTH + 1)),
        json.dumps({"tuple": [0] * (MAX_LENGTH + 1)}),
        json.dumps(tensor(tensor="object")),
        json.dumps(tensor(shape=[2])),
        json.dumps(tensor(shape=[-1])),
        json.dumps(tensor(shape=[MAX_ELEMENTS, MAX_ELEMENTS])),
        json.dumps(tensor(shape=[1] * 9)),
        json.dumps(tensor(bytes="****")),
        json.dumps(tensor(tensor="bool", bytes="/w==")),
        json.dumps(tensor(more=1)),
    ],
    ids=lambda line: line[:40],
)
def test_what_is_no_data_is_refused(line):
    with pytest.raises(NotPlain):
        wire.unpack(line)


@given(st.text() | st.binary())
def test_any_line_is_data_or_refused(line):
    with contextlib.suppress(NotPlain):
        wire.unpack(line)


def test_what_cannot_be_sent_is_said():
    with pytest.raises(NotPlain, match="complex64"):
        wire.pack(torch.zeros(1, dtype=torch.complex64))
