"""Every word that a panel shows, by key, in the language of GRPO_LAB_LANG: English unless told otherwise.

A language is one file, data/messages/<language>.toml; all of them hold the same keys and the same {placeholders}.
"""

from __future__ import annotations

import functools
import os
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

from grpo_lab.errors import ConfigError, unknown
from grpo_lab.paths import data_directory

VARIABLE = "GRPO_LAB_LANG"


def text(key: str, **values: Any) -> str:
    """The words for `key`, with `values` in place of its {placeholders}.

    >>> text("lecture.title")
    'GRPO stability, live'

    Raises ConfigError for a language that has no file, and for a key that the language does not have.
    """
    words = catalogue(language())
    if key not in words:
        raise unknown("message", key, words)
    return words[key].format(**values) if values else words[key]


def language() -> str:
    """The language asked for; a region does not matter, zh_CN is zh."""
    return os.environ.get(VARIABLE, "").replace("-", "_").partition("_")[0].lower() or "en"


def languages() -> list[str]:
    """The languages there are.

    >>> languages()
    ['en', 'zh']
    """
    return sorted(path.stem for path in (data_directory() / "messages").glob("*.toml"))


@functools.cache
def catalogue(name: str) -> dict[str, str]:
    """All words of a language: nested tables of its file, joined by dots."""
    if name not in languages():
        raise unknown(f"language in {VARIABLE}", name, languages())
    path = data_directory() / "messages" / f"{name}.toml"
    try:
        return dict(_flat(tomllib.loads(path.read_text(encoding="utf-8"))))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid TOML ({error}); mend the file") from error


def _flat(tree: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{key}.")
        else:
            yield before + key, value
