"""The texts of panel, notebooks, reports and events in the language of GRPO_LAB_LANG; English by default.

A language is data/locale/<language>/LC_MESSAGES/grpo_lab.po, compiled by `make texts` to the .mo beside it, which is
read. The msgid of a text is an id, such as `lecture.title`, which every language has with the same {placeholders}; or
the English text itself, where that stands in code, data or an event. A context keeps the texts of data/diagnosis and
those of the checks' feedback apart.
"""

import functools
import gettext
import os
import re
from collections.abc import Sequence
from typing import Any, Self

from grpo_lab.errors import unknown
from grpo_lab.paths import data_directory

_PLACE = re.compile(r"\{(\d*)(?::([^{}]*))?\}")
"""A placeholder, with its number and its format, if it has them."""
VARIABLE = "GRPO_LAB_LANG"
ENGLISH = "en"
"""The language of the code, and the source of all others."""
COMPILED = "LC_MESSAGES/grpo_lab.mo"


def text(key: str, **values: Any) -> str:
    """The text of `key`, with `values` in place of its {placeholders}.

    >>> text("lecture.title")
    'GRPO stability, live'

    Raises ConfigError for an unknown language, and for a key that the language lacks.
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
    """An English text of code, data or an event in the user's language; in English where it has no translation.

    >>> spoken(Sentence("grad norm {} is not finite", "nan"))
    'grad norm nan is not finite'
    """
    known = catalogue(language())
    if not isinstance(english, Sentence):
        return known.get(english, english)
    return _filled(known.get(english.template, english.template), [spoken(each) for each in english.values])


def _filled(template: str, values: Sequence[str]) -> str:
    """A template with values that have been formatted."""
    order = iter(values)
    return _PLACE.sub(lambda place: values[int(place[1])] if place[1] else next(order), template)


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
    return sorted(path.parents[1].name for path in (data_directory() / "locale").glob(f"*/{COMPILED}"))


@functools.cache
def catalogue(name: str, context: str = "") -> dict[str, str]:
    """The texts of a language by msgid: those of a context, or those without any.

    Raises ConfigError for an unknown language.
    """
    if name not in languages():
        raise unknown(f"language in {VARIABLE}", name, languages())
    with (data_directory() / "locale" / name / COMPILED).open("rb") as file:
        words: dict[str, str] = vars(gettext.GNUTranslations(file))["_catalog"]  # it has no public way to list them
    found = ((key.rpartition("\x04"), said) for key, said in words.items() if key)
    return {key: said for (place, _, key), said in found if place == context}
