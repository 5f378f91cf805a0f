"""Runs an answer: inputs in, plain data out. Nothing here knows what is right, so that a grader can do it elsewhere."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from grpo_lab.config import user_code
from grpo_lab.course.exercises import Function, Values
from grpo_lab.errors import NotYet, Unanswered

MAGIC = "exercise"
"""The cell magic that makes a cell an answer: its first line is `%%exercise <name>`."""
STUB = "...  # your answer"
"""Stands in a learner's cell where the answer goes."""
_STUB = re.compile(r"\.\.\.[ \t]*#[ \t]*your answer")
MAX_DEPTH, MAX_LENGTH, MAX_TEXT, MAX_ELEMENTS, MAX_BITS = 6, 1_000, 20_000, 1_000_000, 1_023
"""Of plain data: nesting, items of one collection, characters, elements of a tensor, bits of a whole number, which any
float can hold."""


class Given(NamedTuple):
    """What an answer gave: plain data, or in a line how it failed."""

    value: Any = None
    error: str = ""


class NotPlain(Exception):
    """A value that is not data, or too much of it."""


Answer = str | Path | ModuleType | Mapping[str, Any]
"""An answer is a file, what it defines by name, or the module that it is."""


def file_text(name: str, cell: str) -> str:
    """What the file of an answer holds, made of the lines below the magic's own.

    That line stays as a comment, so that lines have the numbers that they have in the cell.

    >>> file_text("forecast", "answer = 'b'\\n\\n")
    "# %%exercise forecast\\nanswer = 'b'\\n"
    """
    return f"# %%{MAGIC} {name}\n{cell.rstrip()}\n"


def load(answer: Answer) -> ModuleType:
    """The answer as a module, executed now where a path is given.

    Raises Unanswered for a file that is missing or still holds a stub, and NotYet for one that does not run.
    """
    if isinstance(answer, ModuleType):
        return answer
    if isinstance(answer, Mapping):
        module = ModuleType("answer")
        vars(module).update(answer, __file__="answer.py")
        return module
    path = Path(answer)
    if not path.is_file():
        raise Unanswered(f"{path.stem}: no answer yet; run the cell that begins with %%exercise {path.stem}")
    if line := stub_line(path.read_text(encoding="utf-8")):
        raise Unanswered(f"{path.stem}: waits for your answer in line {line}, in place of `{STUB}`")
    return user_code.execute(path, NotYet)


def stub_line(source: str) -> int | None:
    """The line that still holds a stub, if one does.

    >>> stub_line("x = 1\\nanswer = ...  # your answer")
    2
    """
    found = _STUB.search(source)
    return source.count("\n", 0, found.start()) + 1 if found else None


def calls(check: Function, module: ModuleType, inputs: Iterable[Mapping[str, Any]]) -> list[Given]:
    """What the function that is asked for gives for each of the inputs, of which it gets copies."""
    function = getattr(module, check.name, None)
    if not callable(function):
        defined = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        raise NotYet(f"no function named {check.name}; defined are {', '.join(defined) or 'none'}")
    return [_called(check, function, module, copy.deepcopy(dict(each))) for each in inputs]


def values(check: Values, module: ModuleType) -> dict[str, Given]:
    """The values that are asked for, by name.

    Raises Unanswered for one that is still the `...` of the stub.
    """
    found = {}
    for name in check.names:
        if (value := getattr(module, name, None)) is ...:
            raise Unanswered(f"{name} waits for your answer, in place of `...`")
        found[name] = _plain_or_not(value) if hasattr(module, name) else Given(error=f"nothing named {name}")
    return found


def plain(value: Any, depth: int = 0) -> Any:
    """The value as data alone: None, bool, int, float, str, tensors, and tuples, lists and dictionaries of them.

    What only behaves like a number becomes one. Raises NotPlain for anything else, and for too much of it.
    """
    if depth > MAX_DEPTH:
        raise NotPlain(f"data nested deeper than {MAX_DEPTH}")
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return _scalar(value)
    if isinstance(value, Tensor):
        if value.numel() > MAX_ELEMENTS:
            raise NotPlain(f"a tensor of {value.numel():,} elements; at most {MAX_ELEMENTS:,}")
        return value.detach().cpu().clone().as_subclass(Tensor)
    if not isinstance(value, tuple | list | dict):
        raise NotPlain(f"a value of type {type(value).__name__}; give numbers, texts, tensors, or lists of them")
    if len(value) > MAX_LENGTH:
        raise NotPlain(f"{len(value):,} items; at most {MAX_LENGTH:,}")
    if isinstance(value, dict):
        return {_scalar(key): plain(item, depth + 1) for key, item in value.items()}
    kind = tuple if isinstance(value, tuple) else list
    return kind(plain(item, depth + 1) for item in value)


def _scalar(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str) and len(value) > MAX_TEXT:
        raise NotPlain(f"a text of {len(value):,} characters; at most {MAX_TEXT:,}")
    if isinstance(value, int) and int(value).bit_length() > MAX_BITS:
        raise NotPlain(f"a whole number of more than {MAX_BITS:,} bits")
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    raise NotPlain(f"a key of type {type(value).__name__}; give texts or numbers")


def _called(check: Function, function: Any, module: ModuleType, inputs: Mapping[str, Any]) -> Given:
    try:
        return _plain_or_not(check.probe(function, inputs))
    except (Exception, SystemExit) as error:
        return Given(error=user_code.said(error, str(module.__file__)))


def _plain_or_not(value: Any) -> Given:
    try:
        return Given(plain(value))
    except NotPlain as error:
        return Given(error=str(error))
