"""Runs an answer: test inputs in, plain data out. Knows no expected values, so that it can run inside the sandbox."""

import copy
import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from grpo_lab.config import user_code
from grpo_lab.course.exercises import Function, Naming, Prediction, Values
from grpo_lab.errors import GrpoLabError, NotYet, Sentence, Unanswered

MAGIC = "exercise"
"""The cell magic that makes a cell an answer: its first line is `%%exercise <name>`."""
STUB = "...  # your answer"
"""The line of a learner's cell that the answer replaces."""
_STUB = re.compile(r"^[^#\n]*\.\.\.[ \t]*#[ \t]*your answer", re.MULTILINE)
_OPTION = re.compile(r"^#\s+(\w)\s\s+(.+)$", re.MULTILINE)
"""An option in the comments of an exercise's cell: `#   b  It shrinks.`"""
_SURROGATE = re.compile("[\ud800-\udfff]")
MAX_DEPTH, MAX_LENGTH, MAX_TEXT, MAX_ELEMENTS, MAX_BITS = 6, 1_000, 20_000, 1_000_000, 1_023
"""Limits of plain data: nesting, items of one collection, characters, elements of a tensor, and bits of a whole number,
which can then be converted to a float."""


class Given(NamedTuple):
    """The result of an answer: plain data, or the error in a line."""

    value: Any = None
    error: str = ""


class NotPlain(GrpoLabError):
    """A value that is no plain data, or exceeds its limits."""


Answer = str | Path | ModuleType | Mapping[str, Any]
"""An answer is a file, a module, or a mapping of the names that it defines."""


def file_text(name: str, cell: str) -> str:
    """The text of an answer's file, from the lines below the cell magic.

    The magic stays as a comment, so that line numbers agree with the cell.

    >>> file_text("forecast", "answer = 'b'\\n\\n")
    "# %%exercise forecast\\nanswer = 'b'\\n"
    """
    return f"# %%{MAGIC} {name}\n{cell.rstrip()}\n"


def load(answer: Answer) -> ModuleType:
    """The answer as a module; a path is executed now.

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
        raise Unanswered("{}: no answer yet; run the cell that begins with %%exercise {}", path.stem, path.stem)
    if line := stub_line(path.read_text(encoding="utf-8")):
        raise Unanswered("{}: waits for your answer in line {}, in place of `{}`", path.stem, line, STUB)
    return user_code.execute(path, NotYet, in_a_cell=True)


def stub_line(source: str) -> int | None:
    """The number of the first line whose code is a stub, or None; a comment holds none.

    >>> stub_line("x = 1\\nanswer = ...  # your answer"), stub_line("# answer = ...  # your answer\\nanswer = 'b'")
    (2, None)
    """
    found = _STUB.search(source)
    return source.count("\n", 0, found.start()) + 1 if found else None


def options(cell: str) -> dict[str, str]:
    """The options in the comments of an exercise's cell, by their letters."""
    return dict(_OPTION.findall(cell))


def by_clicks(check: Function | Values, cell: str) -> bool:
    """Whether a notebook asks the exercise of this cell by radio buttons or menus."""
    return isinstance(check, Naming) or (isinstance(check, Prediction) and bool(options(cell)))


def calls(check: Function, module: ModuleType, inputs: Sequence[Mapping[str, Any]]) -> list[Given]:
    """The results of the check's function, which gets copies of the inputs.

    Raises NotYet where it is missing or takes other parameters.
    """
    function = getattr(module, check.name, None)
    if not callable(function):
        defined = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        names = ", ".join(defined) or Sentence("none")
        raise NotYet("no function named {}; defined are {}", check.name, names)
    fitting = _fitting(check.name, function)
    return [called(check, fitting, module, copy.deepcopy(dict(each))) for each in inputs]


def _fitting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which raises NotYet where its parameters do not take the call that a probe makes."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # a function of C tells no parameters; the calls show whether it fits
        return function

    @functools.wraps(function)
    def fitting(*args: Any, **named: Any) -> Any:
        try:
            signature.bind(*args, **named)
        except TypeError:
            call = ", ".join([*(f"<{type(each).__name__}>" for each in args), *named])
            said = "{} cannot be called as {}; keep the parameters that the cell came with"
            raise NotYet(said, f"{name}({', '.join(signature.parameters)})", f"{name}({call})") from None
        return function(*args, **named)

    return fitting


def values(check: Values, module: ModuleType) -> dict[str, Given]:
    """The values that the check needs, by name. Raises Unanswered for a value that is still the `...` of the stub."""
    found = {}
    for name in check.names:
        if (value := getattr(module, name, None)) is ...:
            raise Unanswered("{} waits for your answer, in place of `...`", name)
        found[name] = _plain_or_not(value) if hasattr(module, name) else Given(error=Sentence("nothing named {}", name))
    return found


def plain(value: Any, depth: int = 0) -> Any:
    """The value as plain data: None, bool, int, float, str, tensors, and tuples, lists and dictionaries of them.

    An instance of a subclass becomes one of the plain type. Raises NotPlain for any other type, and beyond a limit.
    """
    if depth > MAX_DEPTH:
        raise NotPlain("data nested deeper than {}", MAX_DEPTH)
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return _scalar(value)
    if isinstance(value, Tensor):
        return _tensor(value)
    if not isinstance(value, tuple | list | dict):
        raise NotPlain("a value of type {}; give numbers, texts, tensors, or lists of them", type(value).__name__)
    if len(value) > MAX_LENGTH:
        raise NotPlain("{:,} items; at most {:,}", len(value), MAX_LENGTH)
    if isinstance(value, dict):
        return {_scalar(key): plain(item, depth + 1) for key, item in value.items()}
    kind = tuple if isinstance(value, tuple) else list
    return kind(plain(item, depth + 1) for item in value)


def _tensor(value: Tensor) -> Tensor:
    """A copy of the tensor on the CPU. Raises NotPlain for one without a number in each place, and over the limit."""
    value = value.detach()  # first, because a subclass may answer for every attribute
    if value.layout != torch.strided or value.is_nested:
        layout = "nested" if value.is_nested else str(value.layout).removeprefix("torch.")
        raise NotPlain("a tensor of layout {}; give a dense one, with a number in each place", layout)
    if value.is_meta:
        raise NotPlain(Sentence("a tensor of device meta, which holds no numbers; give one with numbers"))
    if value.numel() > MAX_ELEMENTS:
        raise NotPlain("a tensor of {:,} elements; at most {:,}", value.numel(), MAX_ELEMENTS)
    return value.cpu().clone().as_subclass(Tensor)


def _scalar(value: Any) -> Any:
    """The plain value. Raises NotPlain for another type, and over a limit."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str) and len(value) > MAX_TEXT:
        raise NotPlain("a text of {:,} characters; at most {:,}", len(value), MAX_TEXT)
    if isinstance(value, str) and _SURROGATE.search(value):
        raise NotPlain(Sentence("a text with half of a surrogate pair, which is no character; leave it out"))
    if isinstance(value, int) and int(value).bit_length() > MAX_BITS:
        raise NotPlain("a whole number of more than {:,} bits", MAX_BITS)
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    raise NotPlain("a key of type {}; give texts or numbers", type(value).__name__)


def called(check: Function, function: Any, module: ModuleType, inputs: Mapping[str, Any]) -> Given:
    """The result of the check's function for one test input, which it may change. Raises NotYet as `calls` does."""
    try:
        return _plain_or_not(check.probe(function, inputs))
    except NotYet:
        raise
    except (Exception, SystemExit) as error:
        return Given(error=user_code.said_in_cell(error, str(module.__file__)))


def _plain_or_not(value: Any) -> Given:
    try:
        return Given(plain(value))
    except NotPlain as error:
        return Given(error=str(error))
