"""Errors a user can act on: each message names the value, the limit and the way out."""

import difflib
from collections.abc import Iterable


class GrpoLabError(Exception):
    """Base of every error that a user can correct; the command line prints it without a traceback."""

    exit_code = 1

    def _render_traceback_(self) -> list[str]:
        """The one line that a notebook shows, as the command line does."""
        return [f"{type(self).__name__}: {self}"]


class ConfigError(GrpoLabError):
    """A setting, preset, scenario, guard or fault that does not exist or lies outside its limits."""

    exit_code = 2


class ModelError(GrpoLabError):
    """A model that cannot be found, read or trained."""

    exit_code = 2


class DataError(GrpoLabError):
    """A file of prompts, of a run or of a learner's progress that is missing, empty or malformed."""

    exit_code = 2


class RewardError(GrpoLabError):
    """A reward function that cannot be loaded, raises, or answers with the wrong shape."""


class LogError(GrpoLabError):
    """A training log that is missing, empty or in an unknown format."""

    exit_code = 2


class RunError(GrpoLabError):
    """A run folder that cannot be written or read, or a run that crashed under `run(check=True)`."""


class Unanswered(GrpoLabError):
    """An exercise whose cell was not run yet, or still holds its placeholder."""


class NotYet(GrpoLabError):
    """An answer that was checked and is wrong."""


def unknown(kind: str, name: str, known: Iterable[str], error: type[GrpoLabError] = ConfigError) -> GrpoLabError:
    """The error for a name that does not exist, with the nearest names that do.

    >>> print(unknown("guard", "clip_gradient", ["clip_gradients", "warm_up"]))
    unknown guard 'clip_gradient'; did you mean 'clip_gradients'? Known: clip_gradients, warm_up
    """
    names, given = sorted(known), str(name)  # of a file or an answer it may be a number
    near = difflib.get_close_matches(given, names) or difflib.get_close_matches(given, names, cutoff=0.5)
    hint = f"; did you mean {' or '.join(repr(n) for n in near)}?" if near else "."
    return error(f"unknown {kind} {name!r}{hint} Known: {', '.join(names) or 'none'}")
