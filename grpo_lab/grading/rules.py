"""The rules of grading: `grading.toml`, read into one frozen, validated value.

>>> Rules().seconds, Rules(scoring="share").scoring
(10.0, 'share')
"""

import dataclasses
import textwrap
import tomllib
from dataclasses import dataclass
from pathlib import Path

from grpo_lab.config import toml
from grpo_lab.config.fields import Annotated, AtLeast, Between, OneOf, Settings, build, settings_of
from grpo_lab.course.registry import lab_names
from grpo_lab.errors import ConfigError, unknown
from grpo_lab.grading.sandbox.confinement import Limits

PRINTED = "grpo-lab grade --print-rules"
"""The command that prints `as_toml`."""
WIDTH = 100


@dataclass(frozen=True)
class Rules(Settings):
    """Limits on answers, and the way of scoring."""

    seconds: Annotated[float, Between(0, 3_600)] = 10.0
    """Wall clock of one run of one answer in the sandbox; then all of its processes are killed."""
    total_seconds: Annotated[float, Between(0, 86_400)] = 300.0
    """Wall clock of one notebook, judging included."""
    memory_mb: Annotated[int, AtLeast(256, 262_144)] = 2048
    """Memory of one sandbox, the sum over all of its processes."""
    output_kb: Annotated[int, AtLeast(16, 102_400)] = 4096
    """Data that one run of an answer may send back."""
    processes: Annotated[int, AtLeast(1, 4_096)] = 32
    """Processes and threads of one sandbox."""
    notebook_mb: Annotated[int, AtLeast(1, 1_024)] = 10
    """A larger notebook is refused before it is parsed. Mostly figures in the outputs make a notebook large."""
    tier: Annotated[int, AtLeast(0, 2)] = 2
    """The containment of answers: 2 is bubblewrap, and where it does not work nothing is graded; 0 is a plain process
    with limits, for use only in a container that is itself the sandbox. 1 means 2."""
    no_isolation: bool = False
    """Allow tier 0 for a user other than root. Answers then run as that user: they can read the secret and all other
    files of the user, and end the user's processes."""
    secret: str = "grading.secret"
    """The file with the secret from which the challenges are drawn, relative to this file. It is made if it does not
    exist. Keep it: the same secret grades the same submission alike. Keep it away from students."""
    scoring: Annotated[str, OneOf("whole", "share")] = "whole"
    """Points of a partly right exercise: `whole` gives none, `share` gives the share of right findings."""
    mysteries: Annotated[int, AtLeast(0)] = 0
    """The seed of the anonymous runs that the class got in lab 8; 0 for the included ones."""
    labs: tuple[str, ...] = ()
    """Grade only notebooks of these labs, as in ["05_kl"]; an empty list grades all."""
    attempt: Annotated[int, AtLeast(1)] = 1
    """Another number draws other challenges for the same submissions."""

    def __post_init__(self) -> None:
        """Raise ConfigError for settings that contradict each other, and for an unknown lab."""
        super().__post_init__()
        if self.total_seconds < self.seconds:
            raise ConfigError(
                f"total_seconds = {self.total_seconds:g}: must be at least seconds = {self.seconds:g}; raise the "
                "first or lower the second"
            )
        if not self.secret:
            raise ConfigError("secret = '': must name a file, as in 'grading.secret'")
        for lab in self.labs:
            if lab not in lab_names():
                raise ConfigError(f"labs = {lab!r}: {unknown('lab', lab, lab_names())}")

    @property
    def limits(self) -> Limits:
        """The limits of one answer in the sandbox."""
        return Limits(self.seconds, self.memory_mb, self.processes, self.output_kb)


def read(path: Path | None) -> Rules:
    """The rules of a file, or the defaults without a file. `secret` is relative to the file's folder.

    Raises ConfigError, which names the line or the setting, for a file that cannot be read or has a wrong setting.
    """
    if path is None:
        return Rules()
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
        rules = build(Rules, values, "rules")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; `{PRINTED}` prints a file to start from") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not TOML: {error}; compare it with the output of `{PRINTED}`") from error
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    return dataclasses.replace(rules, secret=str(path.parent / Path(rules.secret).expanduser()))


def as_toml(rules: Rules | None = None) -> str:
    """A grading.toml with every setting below its meaning and limits.

    >>> print(as_toml()[-98:])
    # Another number draws other challenges for the same submissions. Must be at least 1.
    attempt = 1
    <BLANKLINE>
    """
    rules = rules or Rules()
    lines = ["# The rules of `grpo-lab grade`. A setting that is left out has the value shown here."]
    for setting in settings_of(Rules).values():
        limit = f" Must be {setting.limit}." if setting.limit else ""
        lines += ["", *(f"# {line}" for line in textwrap.wrap(setting.help + limit, WIDTH))]
        lines.append(f"{setting.name} = {toml.value(getattr(rules, setting.name))}")
    return "\n".join([*lines, ""])
