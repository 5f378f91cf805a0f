"""The texts of panel, notebooks, reports and events in the language of GRPO_LAB_LANG; English by default.

A language is data/locale/<language>/LC_MESSAGES/grpo_lab.po, compiled by `make texts` to the .mo beside it, which is
read. The msgid of a text is an id, such as `lecture.title`, which every language has with the same {placeholders}; or
the English text itself, where that stands in code, data or an event. A context keeps the texts of data/diagnosis and
those of the checks' feedback apart.
"""

import functools
import gettext
import os
from typing import Any

from grpo_lab.errors import check_known, translated
from grpo_lab.paths import data_directory

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
    check_known("message", [key], words)
    return words[key].format(**values) if values else words[key]


def spoken(english: str) -> str:
    """An English text of code, data or an event in the user's language; in English where it has no translation.

    >>> from grpo_lab.errors import Sentence
    >>> spoken(Sentence("grad norm {} is not finite", "nan"))
    'grad norm nan is not finite'
    """
    return translated(english, catalogue(language()))


def visible_bytes(words: str) -> str:
    """The text with a mark for each byte that its decoder lost."""
    return words.replace("\ufffd", r"\x??")


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
    check_known(f"language in {VARIABLE}", [name], languages())
    with (data_directory() / "locale" / name / COMPILED).open("rb") as file:
        words: dict[str, str] = vars(gettext.GNUTranslations(file))["_catalog"]  # it has no public way to list them
    found = ((key.rpartition("\x04"), said) for key, said in words.items() if key)
    return {key: said for (place, _, key), said in found if place == context}
