"""Settings: dataclass fields with a type, a limit and, in the string below the field, the help text that users see.

Config sections, guards, faults and the files of presets and scenarios all declare their settings this way:

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
import functools
import inspect
import math
import sys
import textwrap
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from grpo_lab.errors import ConfigError, unknown

T = TypeVar("T")
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
    above: bool = False
    """Whether `low` itself is outside."""

    def accepts(self, value: Any) -> bool:
        """Whether a value is within the limit."""
        return self.low <= value <= self.high and not (self.above and value == self.low)

    def __str__(self) -> str:
        most = f" and at most {self.high:g}" if self.high < math.inf else ""
        return f"{'above' if self.above else 'at least'} {self.low:g}{most}"


Between = functools.partial(AtLeast, above=True)
"""The limit low < value <= high."""


class OneOf:
    """The limit to a few names."""

    def __init__(self, *names: str) -> None:
        self.names = names

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
        raise TypeError("a config cannot be changed: make another one with `with_`, `merged` or `with_guards`")

    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = _refuse
    setdefault = update = _refuse  # pyright: ignore[reportAssignmentType]

    def __reduce__(self) -> Any:
        return type(self), (dict(self),)  # pickle and copy would fill an empty one item by item


def _frozen(value: Any) -> Any:
    if isinstance(value, Mapping):
        return FrozenDict(value)
    return tuple(value) if isinstance(value, list) else value


def plain(value: Any) -> Any:
    """Settings as JSON and TOML hold them: dictionaries and lists, which may be changed."""
    if isinstance(value, Settings):
        return {name: plain(getattr(value, name)) for name in settings_of(type(value))}
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    return [*map(plain, value)] if isinstance(value, tuple) else value


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


# Values are read and checked ------------------------------------------------------------------------------------------


def build(cls: type[T], values: Mapping[str, Any], where: str) -> T:
    """A `cls` made from plain values; `where` is its name in error messages.

    Raises ConfigError for a setting that does not exist or is missing, and for a value outside its limit.
    """
    known = settings_of(cls)
    for name in values:
        if name not in known:
            raise ConfigError("{}: {}", where, unknown("setting", name, known).args[0])
    for name, setting in known.items():
        if setting.default is dataclasses.MISSING and name not in values:
            raise ConfigError(f"{where}: {name} is missing; write it there")
    try:
        return cls(**values)
    except ConfigError as error:
        raise ConfigError(f"{where}.{error}") from None


OF_SETTINGS = "as in {'beta': 0.04}, or {} for the usual settings"
OF_NAMES = "of names with their settings, as in {'warm_up': {}}"
OF_ONE_NAME = "of its settings, {} for the usual ones; leave it out to switch it off"
"""What a table holds, in errors."""


def as_table(value: Any, where: str, held: str = OF_SETTINGS) -> Mapping[str, Any]:
    """The table itself. Raises ConfigError for any other value."""
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where} = {value!r}: must be a table {held}")
    return value


def _checked(setting: Setting, value: Any) -> Any:
    """The value in the setting's type; a ConfigError names the value and the limit."""
    kinds = typing.get_args(setting.kind) if isinstance(setting.kind, types.UnionType) else (setting.kind,)
    if value in (None, NONE) and types.NoneType in kinds:
        return None
    value = _in_kind(kinds[0], value, setting.name)
    if setting.limit and not setting.limit.accepts(value):
        raise ConfigError(f"{setting.name} = {value!r}: must be {setting.limit}")
    return value


def _in_kind(kind: Any, value: Any, name: str) -> Any:
    """The value in a type. Raises ConfigError for another one, for NaN, and for a number that is too large."""
    if typing.get_origin(kind) is tuple:
        return _as_tuple(typing.get_args(kind)[0], value, name)
    if typing.get_origin(kind) is Mapping:
        inner = typing.get_args(kind)[1]
        table = as_table(value, name, OF_ONE_NAME if inner is Any else OF_NAMES).items()
        return FrozenDict(table if inner is Any else {key: _in_kind(inner, v, f"{name}.{key}") for key, v in table})
    if issubclass(kind, Settings):
        return value if isinstance(value, kind) else build(kind, as_table(value, name), name)
    if kind is float and value in _JSON_STRINGS:
        value = float(value)
    if not isinstance(value, (int, float) if kind is float else kind) or (isinstance(value, bool) and kind is not bool):
        raise ConfigError(f"{name} = {value!r}: must be of type {kind.__name__}")
    try:
        value = kind(value)
    except OverflowError:
        raise ConfigError(f"{name}: must be at most {sys.float_info.max:.3g} in magnitude") from None
    if value != value:
        raise ConfigError(f"{name} = nan: must be a number")
    return value


def _as_tuple(element: Any, value: Any, name: str) -> tuple[Any, ...]:
    """The tuple of a list, or of one text or number. Raises ConfigError for anything else."""
    if element in (str, float) and isinstance(value, str | int | float):
        value = (value,)
    if not isinstance(value, tuple | list):
        raise ConfigError(f"{name} = {value!r}: must be a list")
    if element is str and not all(isinstance(each, str) and each for each in value):
        raise ConfigError(f"{name} = {value!r}: each must be a non-empty str")
    if typing.get_origin(element) is tuple and not all(isinstance(each, tuple | list) for each in value):
        raise ConfigError(f"{name} = {value!r}: must be a list of lists")
    return tuple(_in_kind(element, each, name) for each in value)


def parse(text: str) -> Any:
    """The value that a text on the command line stands for.

    >>> parse("1e-3"), parse("true"), parse("none"), parse("k3"), parse("a,2")
    (0.001, True, None, 'k3', ('a', 2))
    """
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if "," in text:
        return tuple(map(parse, listed(text)))
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            continue
    return text


def typed(setting: Setting | None, text: str) -> Any:
    """`parse` for one setting: a setting that takes words keeps `7` and `on` as words."""
    if setting is None or setting.kind not in (str, tuple[str, ...]):
        return parse(text)
    return listed(text) if "," in text and setting.kind is not str else text


def listed(text: str) -> tuple[str, ...]:
    """The parts of a text between commas, as ('a', 'b') of "a, b,"."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def distinct(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """The dictionary of an object in JSON, for `object_pairs_hook`. Raises ValueError for a key that is there twice."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"the key {name!r} is there twice; keep one")
        found[name] = value
    return found
