"""What a setting is: a dataclass field with a type, a limit and, in the string under it, its only help text.

Config sections, guards and faults all declare their settings this way:

>>> from dataclasses import dataclass
>>> @dataclass(frozen=True)
... class Example(Settings):
...     epsilon: Annotated[float, Between(0, 1)] = 0.2
>>> Example(epsilon=-1)
Traceback (most recent call last):
    ...
grpo_lab.errors.ConfigError: epsilon = -1.0: must be above 0 and at most 1
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import math
import sys
import textwrap
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from grpo_lab.errors import ConfigError, unknown

__all__ = ["Annotated", "AtLeast", "Between", "OneOf", "Setting", "Settings", "parse", "settings_of", "typed"]

_AS_JSON_HOLDS_THEM = ("inf", "-inf", "nan")
"""JSON has no such numbers: they are written down as these words."""


@dataclass(frozen=True)
class Between:
    """low < value <= high."""

    low: float
    high: float = math.inf

    def accepts(self, value: Any) -> bool:
        return self.low < value <= self.high

    def __str__(self) -> str:
        return f"above {self.low:g}" + (f" and at most {self.high:g}" if self.high < math.inf else "")


@dataclass(frozen=True)
class AtLeast:
    """low <= value <= high."""

    low: float
    high: float = math.inf

    def accepts(self, value: Any) -> bool:
        return self.low <= value <= self.high

    def __str__(self) -> str:
        return f"at least {self.low:g}" + (f" and at most {self.high:g}" if self.high < math.inf else "")


@dataclass(frozen=True, init=False)
class OneOf:
    """One of a few names."""

    names: tuple[str, ...]

    def __init__(self, *names: str) -> None:
        object.__setattr__(self, "names", names)

    def accepts(self, value: Any) -> bool:
        return value in self.names

    def __str__(self) -> str:
        return f"one of {', '.join(self.names)}"


@dataclass(frozen=True)
class Setting:
    """One field, as documents, command lines and sliders show it."""

    name: str
    kind: Any
    limit: Between | AtLeast | OneOf | None
    default: Any
    owner: type

    @property
    def help(self) -> str:
        """The text written under the field."""
        return _help_texts(self.owner).get(self.name, "")


class Settings:
    """Base of every dataclass of settings: checks each value when it is made."""

    def __post_init__(self) -> None:
        for setting in settings_of(type(self)).values():
            value = _convert(setting, getattr(self, setting.name))
            object.__setattr__(self, setting.name, value)


@functools.cache
def settings_of(cls: type) -> dict[str, Setting]:
    """The settings of a dataclass by name."""
    hints = typing.get_type_hints(cls, include_extras=True)
    found = {}
    for field in dataclasses.fields(cls):
        if not field.init:
            continue
        kind, limit = hints[field.name], None
        if typing.get_origin(kind) is Annotated:
            kind, limit = typing.get_args(kind)[:2]
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        found[field.name] = Setting(field.name, kind, limit, default, cls)
    return found


def build(cls: type, values: Mapping[str, Any], where: str) -> Any:
    """Make `cls` from plain values; `where` names it in errors.

    Raises ConfigError for a setting that does not exist or a value outside its limit.
    """
    known = settings_of(cls)
    for name in values:
        if name not in known:
            raise unknown(f"setting of {where}", name, known)
    try:
        return cls(**{name: values[name] for name in values})
    except ConfigError as error:
        raise ConfigError(f"{where}.{error}") from None


def parse(text: str) -> Any:
    """A value as typed on a command line.

    >>> parse("1e-3"), parse("true"), parse("none"), parse("k3"), parse("a,b")
    (0.001, True, None, 'k3', ('a', 'b'))
    """
    words: dict[str, Any] = {"true": True, "on": True, "false": False, "off": False, "none": None, "inf": math.inf}
    if text.lower() in words:
        return words[text.lower()]
    if "," in text:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            continue
    return text


def typed(setting: Setting, text: str) -> Any:
    """`parse` for one setting: where it wants words, a word that looks like a number or a switch stays a word."""
    one_word = setting.kind is str or (typing.get_origin(setting.kind) is tuple and "," not in text)
    return text if one_word else parse(text)


def _convert(setting: Setting, value: Any) -> Any:
    """The value as the setting's type, or a ConfigError that names value, limit and way out."""
    kinds = typing.get_args(setting.kind) if isinstance(setting.kind, types.UnionType) else (setting.kind,)
    if value is None and type(None) in kinds:
        return None
    kind = next(k for k in kinds if k is not type(None))
    value = _as_tuple(setting, kind, value) if typing.get_origin(kind) is tuple else _as_one(setting, kind, value)
    if isinstance(value, float) and math.isnan(value):
        raise ConfigError(f"{setting.name} = nan: must be a number")
    if setting.limit and not setting.limit.accepts(value):
        raise ConfigError(f"{setting.name} = {value!r}: must be {setting.limit}")
    return value


def _as_one(setting: Setting, kind: type, value: Any) -> Any:
    wanted = (int, float) if kind is float else (kind,)
    if kind is float and value in _AS_JSON_HOLDS_THEM:
        value = float(value)
    if not isinstance(value, wanted) or (isinstance(value, bool) and kind is not bool):
        raise ConfigError(f"{setting.name} = {value!r}: must be of type {kind.__name__}")
    try:
        return kind(value)
    except OverflowError:
        raise ConfigError(f"{setting.name}: must be at most {sys.float_info.max:.3g} in magnitude") from None


def _as_tuple(setting: Setting, kind: Any, value: Any) -> tuple[Any, ...]:
    element = typing.get_args(kind)[0]
    value = (value,) if isinstance(value, element) else value
    if not isinstance(value, tuple | list):
        raise ConfigError(f"{setting.name} = {value!r}: must be of type tuple")
    if not all(isinstance(part, element) and part for part in value):
        raise ConfigError(f"{setting.name} = {value!r}: each must be a non-empty {element.__name__}")
    return tuple(value)


@functools.cache
def _help_texts(cls: type) -> dict[str, str]:
    """The string under each field, read from the source: Python keeps no docstrings of attributes."""
    texts: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        assert isinstance(body, ast.ClassDef)
        for field, below in zip(body.body, body.body[1:], strict=False):
            match field, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=text)):
                    texts[name] = " ".join(str(text).split())
    return texts
