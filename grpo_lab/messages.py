"""The texts of panel, notebooks and reports by key, in the language of GRPO_LAB_LANG; English by default.

A language is one file, data/messages/<language>.toml; all files have the same keys and the same {placeholders}. Texts
whose English stands with code, other data or events are in data/translations/<language>.toml.
"""

import functools
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from grpo_lab.errors import unknown
from grpo_lab.paths import data_directory, read_toml

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


def reworded(english: str, table: str = "reason") -> str:
    """A text with numbers, such as a reason of an event, in the panel's language by the phrases of a table.

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
