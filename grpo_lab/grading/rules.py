"""How a class is graded: `grading.toml`, read into one frozen, validated value.

>>> Rules().seconds, Rules(scoring="share").scoring
(10.0, 'share')
"""

from __future__ import annotations

import dataclasses
import json
import textwrap
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_lab.config.fields import Annotated, AtLeast, Between, OneOf, Settings, build, settings_of
from grpo_lab.course.registry import LABS
from grpo_lab.errors import ConfigError, unknown

PRINTED = "grpo-lab grade --print-rules"
"""The command that prints `as_toml`."""
WIDTH = 100


@dataclass(frozen=True)
class Rules(Settings):
    """Limits of what answers may use, and how they are scored."""

    seconds: Annotated[float, Between(0, 3_600)] = 10.0
    """Wall clock of one run of one exercise's answer in the sandbox; then all of it is ended."""
    total_seconds: Annotated[float, Between(0, 86_400)] = 300.0
    """Wall clock of one notebook, the judging included."""
    memory_mb: Annotated[int, AtLeast(256, 262_144)] = 2048
    """Memory of one sandbox as a whole, all of its processes together."""
    output_kb: Annotated[int, AtLeast(16, 102_400)] = 4096
    """What one run of an answer may send back, printed text included."""
    processes: Annotated[int, AtLeast(1, 4_096)] = 32
    """Processes and threads of one sandbox."""
    notebook_mb: Annotated[int, AtLeast(1, 1_024)] = 10
    """A larger notebook is refused before it is parsed; what makes one large are the figures in its outputs."""
    tier: Annotated[int, AtLeast(0, 2)] = 2
    """The containment of answers: 2 is bubblewrap, and without it nothing is graded; 0 is a plain process with limits,
    only for a container that is itself the sandbox. 1 means 2."""
    secret: str = "grading.secret"
    """The file, seen from this one, that holds the secret from which the questions are drawn. It is made when it does
    not exist. Keep it: the same secret grades the same submission alike. Give it to nobody who hands in."""
    scoring: Annotated[str, OneOf("whole", "share")] = "whole"
    """Points of an exercise that is right in part: `whole` gives none, `share` gives the right findings' share."""
    mysteries: Annotated[int, AtLeast(0)] = 0
    """The seed of the anonymous runs that the class was given in lab 8; 0 for those that ship."""
    labs: tuple[str, ...] = ()
    """Grade only notebooks of these labs, as in ["05_kl"]; none named grades all."""
    attempt: Annotated[int, AtLeast(1)] = 1
    """Another number asks other questions of the same submissions."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.total_seconds < self.seconds:
            raise ConfigError(
                f"total_seconds = {self.total_seconds:g}: must be at least seconds = {self.seconds:g}; raise the one "
                "or lower the other"
            )
        if not self.secret:
            raise ConfigError("secret = '': must name a file, as in 'grading.secret'")
        for lab in self.labs:
            if lab not in LABS:
                raise ConfigError(f"labs = {lab!r}: {unknown('lab', lab, LABS)}")


def read(path: Path | None) -> Rules:
    """The rules of a file, or the defaults where none is named. `secret` is seen from the file's own folder.

    Raises ConfigError for a file that cannot be read or says what does not exist; it names the line or the setting.
    """
    if path is None:
        return Rules()
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
        rules = build(Rules, values, "rules")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; `{PRINTED}` prints a file to begin with") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: no TOML: {error}; compare it with what `{PRINTED}` prints") from error
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    return dataclasses.replace(rules, secret=str(path.parent / Path(rules.secret).expanduser()))


def as_toml(rules: Rules | None = None) -> str:
    """A grading.toml with every setting, what it means and its limits above it.

    >>> print(as_toml()[-95:])
    # Another number asks other questions of the same submissions. Must be at least 1.
    attempt = 1
    <BLANKLINE>
    """
    return "\n".join(_lines(rules or Rules()))


def _lines(rules: Rules) -> Iterator[str]:
    yield "# How `grpo-lab grade` grades. What is left out has the value that stands here."
    for setting in settings_of(Rules).values():
        limit = f" Must be {setting.limit}." if setting.limit else ""
        yield ""
        yield from (f"# {line}" for line in textwrap.wrap(setting.help + limit, WIDTH))
        yield f"{setting.name} = {_value(getattr(rules, setting.name))}"
    yield ""


def _value(value: Any) -> str:
    """A value as TOML: texts, numbers and lists of them are written as in JSON, but for one character."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
