"""Errors a user can act on, and the sentences that texts are made of, which a catalogue says in another language.

Each message names the value, the limit and the way out.
"""

import difflib
import functools
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Self


class GrpoLabError(Exception):
    """Base of every error that a user can correct; the command line prints it without a traceback."""

    exit_code = 1

    def __init__(self, text: str, *values: object) -> None:  # a text, or the template and values of a sentence
        super().__init__(Sentence(text, *values) if values else text)

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
    every = ", ".join(names) or Sentence("none")
    if near:
        nearest = listed("{} or {}", list(map(repr, near)))
        return error("unknown {} {}; did you mean {}? Known: {}", kind, repr(name), nearest, every)
    return error("unknown {} {}. Known: {}", kind, repr(name), every)


def check_known(
    kind: str, names: Iterable[str], known: Collection[str], error: type[GrpoLabError] = ConfigError
) -> None:
    """Raise `error` for the first name that does not exist, with the nearest names that do."""
    for name in names:
        if name not in known:
            raise unknown(kind, name, known, error)


_PLACE = re.compile(r"\{(\d*)(?::([^{}]*))?\}")
"""A placeholder, with its number and its format, if it has them."""


class Sentence(str):
    """An English sentence that keeps its template and values, so that `translated` can say it in another language.

    >>> sentence = Sentence("grad norm {:.4g} > {:g}", 812.43, 10)
    >>> sentence, sentence.parts()
    ('grad norm 812.4 > 10', ['grad norm {:.4g} > {:g}', ['812.4', '10']])

    A value may be a sentence too. Placeholders have no names: the template is the key of the translation, which may
    number them, as in "{1} of {0}". A template without values is a whole text, in which braces are no placeholders;
    that of a sentence is the sentence itself.
    """

    template: str
    values: Sequence[str]

    def __new__(cls, template: str, *values: object) -> Self:
        if isinstance(template, cls) and not values:
            return template
        places = _PLACE.finditer(template) if values else ()
        written = [v if isinstance(v, str) else format(v, at[2] or "") for v, at in zip(values, places, strict=True)]
        sentence = super().__new__(cls, _filled(template, written) if values else template)
        sentence.template, sentence.values = template, written
        return sentence

    def __str__(self) -> Self:
        return self  # so that str(error) stays a sentence

    def __reduce__(self) -> tuple[type[Self], tuple[str, ...]]:
        return type(self), (self.template, *self.values)

    def parts(self) -> list[Any]:
        """Template and values for JSON."""
        return [self.template, [v.parts() if isinstance(v, Sentence) else v for v in self.values]]

    @classmethod
    def of(cls, parts: Sequence[Any]) -> Self:
        """The sentence with these `parts`."""
        template, values = parts
        return cls(template, *(value if isinstance(value, str) else cls.of(value) for value in values))


def joined(separator: str, sentences: Sequence[str]) -> Sentence:
    """Sentences with a separator between them."""
    return Sentence(separator.join(["{}"] * len(sentences)), *sentences)


def listed(template: str, parts: Sequence[str]) -> str:
    """Any number of parts by the template of two, as in "{} and {}"."""
    return functools.reduce(functools.partial(Sentence, template), parts)


def translated(english: str, words: Mapping[str, str], data: bool = False) -> str:
    """An English text by a catalogue. With `data`, a value that is no sentence stays, whatever it says."""
    if not isinstance(english, Sentence) or not english.values:
        return words.get(english, english)
    values = [
        each if data and not isinstance(each, Sentence) else translated(each, words, data) for each in english.values
    ]
    return _filled(words.get(english.template, english.template), values)


def _filled(template: str, values: Sequence[str]) -> str:
    """A template with values that have been formatted."""
    order = iter(values)
    return _PLACE.sub(lambda place: values[int(place[1])] if place[1] else next(order), template)
