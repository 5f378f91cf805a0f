"""The catalogue of words: the languages agree with each other and with the code that asks for them."""

import ast
import re
import string
from pathlib import Path

import pytest

from grpo_lab import messages
from grpo_lab.errors import ConfigError
from grpo_lab.grading.reports import pages

PACKAGE = Path(messages.__file__).parent
ENGLISH = messages.catalogue("en")
OTHERS = [name for name in messages.languages() if name != "en"]


def placeholders(words: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(words) if name is not None}


def asked_for(source: str):
    """(pattern of the key, names of the values) of each call of `text` and `text_in` in a module.

    A part of a key that is known only when the program runs, as in text(f"status.{name}"), stands for any word.
    """
    for node in ast.walk(ast.parse(source)):
        name = ast.unparse(node.func).removeprefix("messages.") if isinstance(node, ast.Call) else ""
        place = {"text": 0, "text_in": 1}.get(name)
        if not isinstance(node, ast.Call) or place is None:
            continue
        key = node.args[place]
        if not isinstance(key, ast.Constant | ast.JoinedStr):
            continue  # chosen from strings nearby: see `named`
        parts = key.values if isinstance(key, ast.JoinedStr) else [key]
        pattern = "".join(re.escape(str(p.value)) if isinstance(p, ast.Constant) else r"[^.]+" for p in parts)
        # **values may hold any name
        yield pattern, None if any(k.arg is None for k in node.keywords) else {k.arg for k in node.keywords}


def named(source: str) -> set[str]:
    """The keys that a module names in plain strings, whether or not it asks for them on the spot."""
    return {str(node.value) for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)} & set(ENGLISH)


SOURCES = {path.relative_to(PACKAGE): path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py"))}
IMPORTS = re.compile("messages import|import messages|^def text_in", re.M)
"""A module that uses the catalogue, or is it."""
ASKING = {path: source for path, source in SOURCES.items() if IMPORTS.search(source)}
CALLS = [(path, *call) for path, source in ASKING.items() for call in asked_for(source)]
NAMED = set().union(*map(named, ASKING.values()))


def test_the_scan_reads_keys_and_values():
    source = (
        'text("a.b", n=1); messages.text(f"c.{name}.d"); text("e", **values); other("f"); text_in("zh", "g"); x.text()'
    )
    assert list(asked_for(source)) == [(r"a\.b", {"n"}), (r"c\.[^.]+\.d", set()), ("e", None), ("g", set())]


@pytest.mark.parametrize("other", OTHERS)
def test_languages_have_the_same_keys_and_placeholders(other):
    words = messages.catalogue(other)
    assert set(words) == set(ENGLISH)
    assert {key: placeholders(words[key]) for key in words} == {key: placeholders(ENGLISH[key]) for key in ENGLISH}
    assert [key for key in words if not words[key].strip()] == []


def test_what_is_asked_for_is_there_with_its_values():
    for path, pattern, values in CALLS:
        found = [key for key in ENGLISH if re.fullmatch(pattern, key)]
        assert found, f"{path} asks for {pattern}, which no language has"
        if values is not None and "[" not in pattern:
            assert placeholders(ENGLISH[found[0]]) - {""} == values, f"{path} gives {values} to {found[0]}"


def asked_by_reports() -> set[str]:
    """The keys that templates and Gradescope's report ask for: word("key"), word.count("thing", …) and statuses."""
    folder = Path(pages.__file__).parent
    sources = [path.read_text(encoding="utf-8") for path in (*folder.rglob("*.html"), folder / "gradescope.py")]
    keys = {f"report.{key}" for source in sources for key in re.findall(r"word(?:\.before)?\([\"'](\w+)", source)}
    things = {thing for source in sources for thing in re.findall(r"count\([\"'](\w+)", source)}
    statuses = {f"report.status.{status}" for status in pages.STATUSES}
    details = {f"report.{name}" for name in ("got", "expected", "why", "right", "wrong", "more_characters")}
    return keys | {f"report.{many}.{thing}" for many in ("one", "many") for thing in things} | statuses | details


def test_reports_ask_for_the_words_that_are_there():
    assert {key for key in ENGLISH if key.startswith("report.")} == asked_by_reports()


def test_what_is_there_is_asked_for():
    patterns = [pattern for _, pattern, _ in CALLS] + [
        r"(report|diagnosis)\..*"
    ]  # tests of reports and diagnoses look for these
    assert [key for key in ENGLISH if key not in NAMED and not any(re.fullmatch(p, key) for p in patterns)] == []


def test_language_follows_the_variable(monkeypatch):
    for given, found in {"": "en", "en": "en", "zh": "zh", "zh_CN": "zh", "zh-Hans": "zh"}.items():
        monkeypatch.setenv(messages.VARIABLE, given)
        assert messages.text("lecture.title") == messages.catalogue(found)["lecture.title"]


def test_what_does_not_exist_is_named(monkeypatch):
    with pytest.raises(ConfigError, match=r"unknown message 'lecture.titel'; did you mean 'lecture.title'"):
        messages.text("lecture.titel")
    monkeypatch.setenv(messages.VARIABLE, "fr")
    with pytest.raises(ConfigError, match=r"unknown language in GRPO_LAB_LANG 'fr'. Known: en, zh"):
        messages.text("lecture.title")
