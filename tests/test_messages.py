"""The catalogue of words: the languages agree with each other."""

import string

import pytest
from babel.messages import pofile

from grpo_lab import messages
from grpo_lab.errors import ConfigError
from grpo_lab.paths import data_directory

ENGLISH = messages.catalogue("en")
OTHERS = [name for name in messages.languages() if name != "en"]


def placeholders(words: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(words) if name is not None}


@pytest.mark.parametrize("other", OTHERS)
def test_languages_have_the_same_keys_and_placeholders(other):
    words = messages.catalogue(other)
    assert set(ENGLISH) <= set(words)
    assert {key: placeholders(words[key]) for key in ENGLISH} == {key: placeholders(ENGLISH[key]) for key in ENGLISH}
    assert [key for key in words if not words[key].strip()] == []


def test_language_follows_the_variable(monkeypatch):
    for given, found in {"": "en", "en": "en", "zh": "zh", "zh_CN": "zh", "zh-Hans": "zh"}.items():
        monkeypatch.setenv(messages.VARIABLE, given)
        assert messages.text("lecture.title") == messages.catalogue(found)["lecture.title"]


def test_what_does_not_exist_is_named(monkeypatch):
    with pytest.raises(ConfigError, match=r"'lecture.titel'; did you mean 'lecture.title'"):
        messages.text("lecture.titel")
    monkeypatch.setenv(messages.VARIABLE, "fr")
    with pytest.raises(ConfigError, match=r"'fr'. Known: en, zh"):
        messages.text("lecture.title")


@pytest.mark.parametrize("language", messages.languages())
def test_what_is_read_is_what_is_written(language):
    """`make texts` compiles a changed .po."""
    path = (data_directory() / "locale" / language / messages.COMPILED).with_suffix(".po")
    with path.open("rb") as file:
        entries = [entry for entry in pofile.read_po(file) if entry.id]
    assert [entry.id for entry in entries if entry.fuzzy or not entry.string] == []
    for context in {entry.context for entry in entries}:
        written = {entry.id: entry.string for entry in entries if entry.context == context}
        assert messages.catalogue(language, context or "") == written, "run `make texts`"
