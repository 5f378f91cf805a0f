"""Settings in training_args.bin, which Hugging Face's Trainer writes with `torch.save`, read without unpickling.

A pickle is a program, and loading it may run anything. Here its opcodes are read, and only plain values are built: a
class or function that it names stays a name, and nothing is imported or called.
"""

import io
import pickletools
import warnings
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LARGEST = 2**24
"""Bytes; the arguments of a training take some kilobytes."""
DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, LookupError, TypeError, AttributeError, RuntimeError, OverflowError)
"""Exceptions of a damaged archive or pickle."""
_MARK = object()


@dataclass(eq=False)
class Named:
    """An object that a pickle would build by a call: the name that it calls, its arguments, and its attributes."""

    name: str
    arguments: tuple[Any, ...] = ()
    attributes: dict[Any, Any] = field(default_factory=dict)

    @property
    def value(self) -> Any:
        """A plain value in its place: an enum's or device's only argument, or the last part of its name."""
        if len(self.arguments) == 1 and isinstance(self.arguments[0], str | int | float):
            return self.arguments[0]
        return self.name.rpartition(".")[2]


def settings_in(path: Path) -> dict[str, Any]:
    """The attributes of the object in a file that `torch.save` wrote. Raises ValueError for a file without them."""
    try:
        with zipfile.ZipFile(path) as archive:
            entry = next((each for each in archive.infolist() if each.filename.endswith("data.pkl")), None)
            if entry is None or entry.file_size > LARGEST:
                raise ValueError(f"no data.pkl of at most {LARGEST:,} bytes in it")
            with archive.open(entry) as file:
                found = built(file.read(LARGEST))
    except DAMAGE as error:
        raise ValueError(f"it is damaged: {error!r}") from error
    attributes = found.attributes if isinstance(found, Named) else found
    if not isinstance(attributes, Mapping):
        raise ValueError(f"it holds {type(found).__name__}, no arguments")
    return {str(name): plain(value) for name, value in attributes.items() if not str(name).startswith("_")}


def plain(value: Any) -> Any:
    """The value in place of an object that is only named."""
    return value.value if isinstance(value, Named) and not value.attributes else value


def built(data: bytes) -> Any:
    """The object in a pickle, of plain values and `Named`. Raises ValueError for opcodes that are not known here."""
    machine = _Machine()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # an escape sequence in a damaged text
        for opcode, argument, _ in pickletools.genops(io.BytesIO(data)):
            if opcode.name == "STOP":
                break
            machine.step(opcode.name, argument)
    return machine.stack[-1]


class _Machine:
    """The stack and the memo of a pickle."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def step(self, name: str, argument: Any) -> None:
        if name in _VALUES or name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name]() if name in _CONSTANTS else argument)
        elif name in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
            self.memo[len(self.memo) if argument is None else argument] = self.stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            self.stack.append(self.memo[argument])
        elif name == "GLOBAL":
            self.stack.append(Named(argument.replace(" ", ".")))
        elif name in _OF_MARKED:
            self._end(_OF_MARKED[name], self._marked())
        elif name in _OF_TOP:
            count, make = _OF_TOP[name]
            taken = [self.stack.pop() for _ in range(count)][::-1]
            self._end(make, taken)
        elif name not in ("PROTO", "FRAME"):
            raise ValueError(f"the opcode {name} is not known here")

    def _end(self, make: Callable[[list[Any], list[Any]], Any], taken: list[Any]) -> None:
        """Push the value made of those taken; None is none: it went into an object that is on the stack already."""
        if (made := make(self.stack, taken)) is not None:
            self.stack.append(made)

    def _marked(self) -> list[Any]:
        """The values above the last mark, taken with it from the stack."""
        place = max(place for place, value in enumerate(self.stack) if value is _MARK)
        taken = self.stack[place + 1 :]
        del self.stack[place:]
        return taken


def _reduced(taken: list[Any]) -> Named:
    """A call of a class or function, which is not made."""
    called, arguments = taken[:2]
    name = called.name if isinstance(called, Named) else type(called).__name__
    return Named(name, arguments if isinstance(arguments, tuple) else ())


def _set(target: Any, taken: list[Any]) -> None:
    """Put pairs of names and values into a dictionary, or into the attributes of an object."""
    held = target.attributes if isinstance(target, Named) else target
    held.update(zip(taken[::2], taken[1::2], strict=True))


def _state(target: Any, taken: list[Any]) -> None:
    for state in taken[0] if isinstance(taken[0], tuple) else taken:
        if isinstance(state, Mapping):
            target.attributes.update(state)


def _add(target: Any, taken: list[Any]) -> None:
    if isinstance(target, list):
        target.extend(taken)


_VALUES = frozenset(
    opcode.name
    for opcode in pickletools.opcodes
    if opcode.arg is not None and opcode.stack_before == [] and len(opcode.stack_after) == 1
) - {"GLOBAL", "GET", "BINGET", "LONG_BINGET", "PERSID", "EXT1", "EXT2", "EXT4", "NEXT_BUFFER"}
"""Opcodes that push their own argument: numbers, texts and bytes."""
_CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "EMPTY_SET": list,
    "MARK": lambda: _MARK,
}
_Make = Callable[[list[Any], list[Any]], Any]
_OF_MARKED: dict[str, _Make] = {
    "TUPLE": lambda stack, taken: tuple(taken),
    "LIST": lambda stack, taken: taken,
    "FROZENSET": lambda stack, taken: taken,
    "DICT": lambda stack, taken: dict(zip(taken[::2], taken[1::2], strict=True)),
    "SETITEMS": lambda stack, taken: _set(stack[-1], taken),
    "APPENDS": lambda stack, taken: _add(stack[-1], taken),
    "ADDITEMS": lambda stack, taken: _add(stack[-1], taken),
    "POP_MARK": lambda stack, taken: None,
}
_OF_TOP: dict[str, tuple[int, _Make]] = {
    "TUPLE1": (1, lambda stack, taken: tuple(taken)),
    "TUPLE2": (2, lambda stack, taken: tuple(taken)),
    "TUPLE3": (3, lambda stack, taken: tuple(taken)),
    "SETITEM": (2, lambda stack, taken: _set(stack[-1], taken)),
    "APPEND": (1, lambda stack, taken: _add(stack[-1], taken)),
    "STACK_GLOBAL": (2, lambda stack, taken: Named(".".join(taken))),
    "REDUCE": (2, lambda stack, taken: _reduced(taken)),
    "NEWOBJ": (2, lambda stack, taken: _reduced(taken)),
    "NEWOBJ_EX": (3, lambda stack, taken: _reduced(taken)),
    "BUILD": (1, lambda stack, taken: _state(stack[-1], taken)),
    "BINPERSID": (1, lambda stack, taken: Named("persistent")),
    "POP": (1, lambda stack, taken: None),
}
"""The number of values that each takes from the top of the stack, and the function that makes one of them."""
