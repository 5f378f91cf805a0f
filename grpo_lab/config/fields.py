"""Settings: dataclass fields with a type, a limit and, in the string below the field, the help text that users see.

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

import ast
import dataclasses
import difflib
import functools
import inspect
import math
import sys
import textwrap
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from grpo_lab.errors import ConfigError, GrpoLabError, unknown

__all__ = ["Annotated", "AtLeast", "Between", "OneOf", "Setting", "Settings", "parse", "settings_of", "typed"]

NONE = "none"
"""The text that stands for no value, on the command line and in TOML."""
_WORDS = {"true": True, "on": True, "false": False, "off": False, NONE: None, "inf": math.inf}
_JSON_STRINGS = ("inf", "-inf", "nan")
"""How config.json and events.jsonl hold the numbers that JSON lacks."""


@dataclass(frozen=True)
class AtLeast:
    """The limit low <= value <= high."""

    low: float
    high: float = math.inf
    lower_words: ClassVar[str] = "at least"

    def accepts(self, value: Any) -> bool:
        """Whether a value is within the limit."""
        return self.low <= value <= self.high

    def __str__(self) -> str:
        return f"{self.lower_words} {self.low:g}" + (f" and at most {self.high:g}" if self.high < math.inf else "")


@dataclass(frozen=True)
class Between(AtLeast):
    """The limit low < value <= high."""

    lower_words: ClassVar[str] = "above"

    def accepts(self, value: Any) -> bool:
        """Whether a value is within the limit."""
        return self.low < value <= self.high


@dataclass(frozen=True, init=False)
class OneOf:
    """The limit to a few names."""

    names: tuple[str, ...]

    def __init__(self, *names: str) -> None:
        object.__setattr__(self, "names", names)

    def accepts(self, value: Any) -> bool:
        """Whether a value is one of the names."""
        return value in self.names

    def __str__(self) -> str:
        return f"one of {', '.join(self.names)}"


@dataclass(frozen=True)
class Setting:
    """One field, as docs pages, the command line and sliders show it."""

    name: str
    kind: Any
    limit: AtLeast | OneOf | None
    default: Any
    owner: type

    @property
    def help(self) -> str:
        """The string below the field."""
        return _help_texts(self.owner).get(self.name, "")


class Settings:
    """Base of every dataclass of settings: each value is checked at construction, which raises ConfigError."""

    def __post_init__(self) -> None:
        for setting in settings_of(type(self)).values():
            object.__setattr__(self, setting.name, _checked(setting, getattr(self, setting.name)))


class FrozenDict(dict[str, Any]):
    """A dictionary that cannot be changed, nested ones included; it prints, compares and pickles like a plain one.

    >>> FrozenDict({"clip_gradients": {"max_norm": 0.3}})
    {'clip_gradients': {'max_norm': 0.3}}
    """

    def __init__(self, values: Any) -> None:
        super().__init__({name: _frozen(value) for name, value in dict(values).items()})

    def _refuse(self, *args: Any, **kwargs: Any) -> Any:
        """Raise TypeError with the way out."""
        raise TypeError("a config cannot be changed: make another one with `with_`, `merged` or `with_guards`")

    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = _refuse
    setdefault = update = _refuse  # pyright: ignore[reportAssignmentType]

    def __reduce__(self) -> Any:
        return type(self), (dict(self),)  # pickle and copy would fill an empty one item by item


def _frozen(value: Any) -> Any:
    if isinstance(value, Mapping):
        return FrozenDict(value)
    return tuple(value) if isinstance(value, list) else value


@functools.cache
def settings_of(cls: type) -> dict[str, Setting]:
    """The settings of a dataclass by name; fields with `init=False` are left out."""
    hints = typing.get_type_hints(cls, include_extras=True)
    found = {}
    for field in (field for field in dataclasses.fields(cls) if field.init):
        kind, limit = hints[field.name], None
        if typing.get_origin(kind) is Annotated:
            kind, limit = typing.get_args(kind)[:2]
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        found[field.name] = Setting(field.name, kind, limit, default, cls)
    return found


def build(cls: type, values: Mapping[str, Any], where: str) -> Any:
    """A `cls` made from plain values; `where` is its name in error messages.

    Raises ConfigError for a setting that does not exist or a value outside its limit.
    """
    known = settings_of(cls)
    for name in values:
        if name not in known:
            raise unknown(f"setting of {where}", name, known)
    try:
        return cls(**values)
    except ConfigError as error:
        raise ConfigError(f"{where}.{error}") from None


def as_table(
    value: Any, where: str, wanted: str = "a table of names and values, as in {'beta': 0.04}"
) -> Mapping[str, Any]:
    """The table itself. Raises ConfigError for any other value."""
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where} = {value!r}: must be {wanted}")
    return value


def unknown_section(name: str, sections: Mapping[str, type], known: Iterable[str]) -> GrpoLabError:
    """The error for a section that does not exist: perhaps it is a setting, which stands in one or more of them."""
    homes: dict[str, list[str]] = {}
    for section, cls in sections.items():
        for setting in settings_of(cls):
            homes.setdefault(setting, []).append(f"{section}.{setting}")
    if near := difflib.get_close_matches(name, homes, n=1, cutoff=0.9):
        return ConfigError(f"unknown section {name!r}; did you mean {' or '.join(homes[near[0]])}?")
    return ConfigError(f"{unknown('section', name, known)}; a guard is switched by guards.NAME=on")


def distinct(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """The dictionary of an object in JSON, for `object_pairs_hook`. Raises ValueError for a key that is there twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!r} is there twice; keep one")
    return found


def parse(text: str) -> Any:
    """The value that a text on the command line stands for.

    >>> parse("1e-3"), parse("true"), parse("none"), parse("k3"), parse("a,b")
    (0.001, True, None, 'k3', ('a', 'b'))
    """
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if "," in text:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            continue
    return text


def typed(setting: Setting, text: str) -> Any:
    """`parse` for one setting: a setting that takes words keeps `7` and `on` as words."""
    one_word = setting.kind is str or (typing.get_origin(setting.kind) is tuple and "," not in text)
    return text if one_word else parse(text)


def _checked(setting: Setting, value: Any) -> Any:
    """The value in the setting's type; a ConfigError names the value and the limit."""
    kinds = typing.get_args(setting.kind) if isinstance(setting.kind, types.UnionType) else (setting.kind,)
    if value in (None, NONE) and types.NoneType in kinds:
        return None
    kind = next(kind for kind in kinds if kind is not types.NoneType)
    value = _as_tuple(setting, kind, value) if typing.get_origin(kind) is tuple else _as_one(setting, kind, value)
    if any(isinstance(each, float) and math.isnan(each) for each in (value if isinstance(value, tuple) else [value])):
        raise ConfigError(f"{setting.name} = nan: must be a number")
    if setting.limit and not setting.limit.accepts(value):
        raise ConfigError(f"{setting.name} = {value!r}: must be {setting.limit}")
    return value


def _as_one(setting: Setting, kind: type, value: Any) -> Any:
    """The value in its type. Raises ConfigError for another one, and for a number that is too large."""
    if kind is float and value in _JSON_STRINGS:
        value = float(value)
    wanted = {float: (int, float), FrozenDict: Mapping}.get(kind, kind)
    if not isinstance(value, wanted) or (isinstance(value, bool) and kind is not bool):
        raise ConfigError(f"{setting.name} = {value!r}: must be of type {kind.__name__}")
    try:
        return kind(value)
    except OverflowError:
        raise ConfigError(f"{setting.name}: must be at most {sys.float_info.max:.3g} in magnitude") from None


def _as_tuple(setting: Setting, kind: Any, value: Any) -> tuple[Any, ...]:
    """The tuple of a list. Raises ConfigError for anything else."""
    element = typing.get_args(kind)[0]
    if element is float:
        given = value if isinstance(value, tuple | list) else [value]
        return tuple(_as_one(setting, float, parse(each) if isinstance(each, str) else each) for each in given)
    value = (value,) if isinstance(value, element) else value
    if not isinstance(value, tuple | list):
        raise ConfigError(f"{setting.name} = {value!r}: must be of type tuple")
    if not all(isinstance(each, element) and each for each in value):
        raise ConfigError(f"{setting.name} = {value!r}: each must be a non-empty {element.__name__}")
    return tuple(value)


@functools.cache
def _help_texts(cls: type) -> dict[str, str]:
    """The string below each field, read from the source: Python keeps no docstrings of attributes."""
    texts: dict[str, str] = {}
    for base in (base for base in reversed(cls.__mro__) if dataclasses.is_dataclass(base)):
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(body, ast.ClassDef)
        for pair in zip(body.body, body.body[1:], strict=False):
            match pair:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=text)):
                    texts[name] = " ".join(str(text).split())
    return texts
