"""The texts of panel, notebooks and reports by key, in the language of GRPO_LAB_LANG; English by default.

A language is one file, data/messages/<language>.toml; all files have the same keys and the same {placeholders}. Texts
whose English stands with code, other data or events are in data/translations/<language>.toml.
"""

import functools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

from grpo_lab.errors import unknown
from grpo_lab.paths import data_directory, read_toml

_PLACE = re.compile(r"\{(\d*)(?::([^{}]*))?\}")
"""A placeholder, with its number and its format, if it has them."""
VARIABLE = "GRPO_LAB_LANG"
ENGLISH = "en"
"""The language of the code, and the source of all others."""


def text(key: str, **values: Any) -> str:
    """The text of `key`, with `values` in place of its {placeholders}.

    >>> text("lecture.title")
    'GRPO stability, live'

    Raises ConfigError for a language without a file, and for a key that the language lacks.
    """
    return text_in(language(), key, **values)


def text_in(language: str, key: str, **values: Any) -> str:
    """The same in a given language.

    >>> text_in("zh", "lecture.title")
    'GRPO 稳定性现场演示'
    """
    words = catalogue(language)
    if key not in words:
        raise unknown("message", key, words)
    return words[key].format(**values) if values else words[key]


def translated(key: str, english: str) -> str:
    """A text whose English stands elsewhere, in the panel's language; in English if there is no translation."""
    return _translations().get(key, english)


class Sentence(str):
    """An English sentence that keeps its template and values, so that `spoken` can say it in another language.

    >>> sentence = Sentence("grad norm {:.4g} > {:g}", 812.43, 10)
    >>> sentence, sentence.parts()
    ('grad norm 812.4 > 10', ['grad norm {:.4g} > {:g}', ['812.4', '10']])

    A value may be a sentence too. Placeholders have no names: the template is the key of the translation, which may
    number them, as in "{1} of {0}".
    """

    template: str
    values: Sequence[str]

    def __new__(cls, template: str, *values: object) -> Self:
        places = _PLACE.finditer(template)
        written = [v if isinstance(v, str) else format(v, at[2] or "") for v, at in zip(values, places, strict=True)]
        sentence = super().__new__(cls, _filled(template, written))
        sentence.template, sentence.values = template, written
        return sentence

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


def spoken(english: str) -> str:
    """A sentence of the code, such as a reason of an event, in the user's language; in English without a translation.

    >>> spoken(Sentence("grad norm {} is not finite", "nan"))
    'grad norm nan is not finite'
    """
    known = _translations()
    if not isinstance(english, Sentence):
        return known.get(f"reason.{english}", english)
    return _filled(known.get(f"reason.{english.template}", english.template), [spoken(each) for each in english.values])


def _filled(template: str, values: Sequence[str]) -> str:
    """A template with values that have been formatted."""
    order = iter(values)
    return _PLACE.sub(lambda place: values[int(place[1])] if place[1] else next(order), template)


def reworded(english: str, table: str) -> str:
    """A text with numbers in the panel's language by the regular expressions of a table.

    A part that no phrase matches stays as it is.
    """
    for key, words in _translations().items():
        if key.startswith(f"{table}."):
            english = re.sub(key.removeprefix(f"{table}."), words, english)
    return english


def label(english: str) -> str:
    """A label of a figure or a table, such as a metric's or a link's, in the user's language.

    >>> label("KL to reference")
    'KL to reference'
    """
    return text(f"chart.{slug(english)}")


def slug(label: str) -> str:
    """The key of a label's message.

    >>> slug("gradient at log-ratio"), slug("clipped to {:g}")
    ('gradient_at_log_ratio', 'clipped_to')
    """
    words = "".join(letter if letter.isalnum() else " " for letter in label.replace("{:g}", "")).split()
    return "_".join(words).lower()


def language() -> str:
    """The language that GRPO_LAB_LANG sets; a region is ignored, zh_CN is zh."""
    return os.environ.get(VARIABLE, "").replace("-", "_").partition("_")[0].lower() or ENGLISH


def use(name: str) -> None:
    """Set the language of this process and of the processes that it starts. Raises ConfigError for an unknown one."""
    catalogue(name)
    os.environ[VARIABLE] = name


def languages() -> list[str]:
    """The available languages.

    >>> languages()
    ['en', 'zh']
    """
    return sorted(path.stem for path in (data_directory() / "messages").glob("*.toml"))


@functools.cache
def catalogue(name: str, folder: str = "messages") -> dict[str, str]:
    """All texts of a language in a folder of data/; keys of nested tables are joined by dots.

    Raises ConfigError for an unknown language and for a file that is not valid TOML.
    """
    if name not in languages():
        raise unknown(f"language in {VARIABLE}", name, languages())
    return dict(_flat(read_toml(data_directory() / folder / f"{name}.toml")))


def _translations() -> dict[str, str]:
    return {} if language() == ENGLISH else catalogue(language(), "translations")


def _flat(tree: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{key}.")
        else:
            yield before + key, value
