"""User code: functions and classes in a user's files, which a config names as `path/to/file.py:name`."""

import sys
import traceback
import zlib
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from grpo_lab.errors import ConfigError, GrpoLabError, Sentence, unknown

FORM = "path/to/file.py:name"
LONGEST = 300
"""Number of characters of an error's message that are shown."""
T = TypeVar("T")


def is_own(name: str) -> bool:
    """Whether a name stands for user code.

    >>> is_own("mine.py:k3"), is_own("k3")
    (True, False)
    """
    return ":" in name


def files_of(tree: Mapping[str, Any]) -> list[Path]:
    """The files of user code that a config names, as `Config.to_dict` gives it.

    >>> files_of({"guards": {"mine.py:Mine": {}}, "loss": {"kl_estimator": "k3"}, "data": {"rewards": ["a.py:score"]}})
    [PosixPath('a.py'), PosixPath('mine.py')]
    """
    names: list[Any] = [*tree.get("guards", ()), *tree.get("faults", ())]
    for part in (tree.get("data", {}), tree.get("loss", {}), *tree.get("objectives", ())):
        for value in part.values():
            names += value if isinstance(value, list | tuple) else [value]
    return sorted({Path(name.rpartition(":")[0]) for name in names if isinstance(name, str) and is_own(name)})


def named(kind: str, name: str, registered: Mapping[str, T], error: type[GrpoLabError] = ConfigError) -> T:
    """The registered object of that name, or the function or class of a user's file.

    >>> named("formula", "double", {"double": lambda x: 2 * x})(4)
    8

    Raises `error` for a name that is neither, with the nearest ones.
    """
    if is_own(name):
        return load(name, error)
    if name not in registered:
        raise _usage(unknown(kind, name, [*registered, FORM], error))
    return registered[name]


def load(name: str, error: type[GrpoLabError] = ConfigError) -> Any:
    """The function or class at "path/to/file.py:name". The file is read at each call, so that an edit takes effect.

    Raises `error` for a file that is missing or does not run, and for a name that is not in it or cannot be called.
    """
    file, _, name_there = name.rpartition(":")
    if not Path(file).is_file():
        raise _usage(error(f"{name}: no file {file!r} in {Path.cwd()}; give {FORM}"))
    defined = vars(execute(Path(file), error))
    if name_there not in defined:
        known = [key for key, value in defined.items() if callable(value) and not key.startswith("_")]
        raise _usage(unknown(f"name in {file}", name_there, known, error))
    loaded = defined[name_there]
    if not callable(loaded):
        raise _usage(error(f"{name}: {name_there!r} is of type {type(loaded).__name__}; name a function or a class"))
    return loaded


def execute(
    path: Path, error: type[GrpoLabError] = ConfigError, in_a_cell: bool = False, source: bytes | str | None = None
) -> ModuleType:
    """The module in a file, or of a source text as if it were in this file, executed at each call.

    Raises `error` with the error that the code raised, its line, and the path; a learner has a cell, and knows no file.
    """
    if source is None:  # not imported: Python's cached bytecode is stale when a file changes within the same second
        path, source = path.resolve(), path.read_bytes()
    # The path is part of the name: dataclasses look up their module by it, and two files may have the same stem.
    module = ModuleType(f"grpo_lab_own_{path.stem}_{zlib.crc32(str(path).encode()):08x}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # where dataclasses and pickle look it up
    try:
        exec(compile(source, str(path), "exec"), vars(module))
    except (Exception, SystemExit) as raised:
        del sys.modules[module.__name__]
        in_a_file = Sentence("{}: importing it raised {}; mend the file", path, said(raised, path))
        cell = Sentence("the cell raised {}; correct the cell", said_in_cell(raised, path))
        raise _usage(error(cell if in_a_cell else in_a_file)) from raised
    return module


def _usage(error: GrpoLabError) -> GrpoLabError:
    """The error with the exit code of a bad file: of whatever kind, it came up before anything ran."""
    error.exit_code = ConfigError.exit_code
    return error


def said(error: BaseException, path: str | Path) -> str:
    """An error of user code in one line: its type, its message and, if it was raised in that file, its line.

    >>> said(ValueError("too much"), "mine.py")
    'ValueError: too much'
    """
    message: object = error
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    if isinstance(error, SyntaxError) and error.filename == str(path):
        message, lines = error.msg, [error.lineno]  # its own text names the file too
    line = brief(f"{type(error).__name__}: {message}", LONGEST).removesuffix(":")
    return f"{line} (line {lines[-1]})" if lines else line


def brief(text: object, longest: int = 60) -> str:
    """A text in one line of at most so many characters."""
    words = " ".join(str(text).split())
    return words if len(words) <= longest else f"{words[:longest]} ..."


def said_in_cell(error: BaseException, path: str | Path) -> str:
    """The same for a learner's cell, which is a file: another cell's names are missing in it, also where they run."""
    if not isinstance(error, NameError) or isinstance(error, UnboundLocalError):
        return said(error, path)
    template = "{}. Each exercise is a file of its own: import or define {} in this cell"
    return Sentence(template, said(error, path), error.name or Sentence("the name"))
