"""Plain data as JSON, for inputs into the sandbox and answers out of it. Never pickle: answers are hostile."""

import base64
import json
import math
from typing import Any

import torch
from torch import Tensor

from grpo_lab.course.answers import MAX_DEPTH, MAX_ELEMENTS, MAX_LENGTH, NotPlain, plain
from grpo_lab.errors import Sentence

DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in (
    torch.float16, torch.bfloat16, torch.float32, torch.float64,
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
)}  # fmt: skip


def pack(value: Any) -> str:
    """Data as one line of JSON. Tuples, keys of any type, the exact bits of tensors, NaN and infinities survive.

    Raises NotPlain for a tensor of an unknown type.

    >>> unpack(pack({1: (float("inf"), torch.tensor([0.5]))}))
    {1: (inf, tensor([0.5000]))}
    """
    return json.dumps(_packed(value))


def unpack(line: str | bytes) -> Any:
    """The data in a line that `pack` made. Raises NotPlain for any other line and for data over a limit."""
    try:
        return plain(_unpacked(json.loads(line), 0))
    except (ValueError, RecursionError) as error:
        raise NotPlain("not data: {}", type(error).__name__) from error


def _packed(value: Any) -> Any:
    if isinstance(value, Tensor):
        name = str(value.dtype).removeprefix("torch.")
        if name not in DTYPES:
            raise NotPlain("a tensor of type {}; give one of {}", name, ", ".join(DTYPES))
        flat = value.detach().cpu().contiguous().reshape(-1)
        data = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
        shape = list(value.shape)
        return {"tensor": name, "shape": shape, "bytes": base64.b64encode(data).decode("ascii")}
    if isinstance(value, tuple):
        return {"tuple": [_packed(item) for item in value]}
    if isinstance(value, list):
        return [_packed(item) for item in value]
    if isinstance(value, dict):
        return {"dict": [[_packed(key), _packed(item)] for key, item in value.items()]}
    return value


def _unpacked(value: Any, depth: int) -> Any:
    """The data of parsed JSON. Raises NotPlain for anything else, and nested too deeply."""
    if depth > MAX_DEPTH:
        raise NotPlain("data nested deeper than {}", MAX_DEPTH)
    if isinstance(value, list):
        return [_unpacked(item, depth + 1) for item in _short(value)]
    if not isinstance(value, dict):
        return value
    match value:
        case {"tuple": list(items), **rest} if not rest:
            return tuple(_unpacked(item, depth + 1) for item in _short(items))
        case {"dict": list(pairs), **rest} if not rest:
            return dict(_pair(pair, depth + 1) for pair in _short(pairs))
        case {"tensor": str(name), "shape": list(shape), "bytes": str(data), **rest} if not rest:
            return _tensor(name, shape, data)
    raise NotPlain(Sentence("an object that is not data"))


def _short(items: list[Any]) -> list[Any]:
    if len(items) > MAX_LENGTH:
        raise NotPlain("{:,} items; at most {:,}", len(items), MAX_LENGTH)
    return items


def _pair(pair: Any, depth: int) -> tuple[Any, Any]:
    if not (isinstance(pair, list) and len(pair) == 2) or isinstance(pair[0], dict | list):
        raise NotPlain(Sentence("a key that is neither a text nor a number"))
    return pair[0], _unpacked(pair[1], depth)


def _tensor(name: str, shape: list[Any], data: str) -> Tensor:
    """The tensor. Raises NotPlain for a bad type, shape, size or text."""
    if name not in DTYPES or not all(type(size) is int and 0 <= size <= MAX_ELEMENTS for size in shape):
        raise NotPlain(Sentence("a tensor of unknown type or shape"))
    if len(shape) > MAX_DEPTH or (count := math.prod(shape)) > MAX_ELEMENTS:
        raise NotPlain("a tensor of more than {:,} elements or {} dimensions", MAX_ELEMENTS, MAX_DEPTH)
    raw = bytearray(base64.b64decode(data, validate=True))
    dtype = DTYPES[name]
    if len(raw) != count * dtype.itemsize or (dtype is torch.bool and raw.strip(b"\0\1")):
        raise NotPlain(Sentence("a tensor whose bytes do not fit its shape"))
    return torch.frombuffer(raw, dtype=dtype).reshape(shape) if count else torch.empty(shape, dtype=dtype)
