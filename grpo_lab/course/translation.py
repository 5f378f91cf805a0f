"""Findings in another language. They are English inside checks, grading and files, and translated where they are shown.

The texts of the code have the context `feedback` in data/locale. A lab has its own in <language>/lab.toml:

    [exercises.cause]                          # beside its title and hints
    wrong.a = "..."                            # the reason for a letter that lab.toml declares wrong
    [texts]
    healthy = ["...", "..."]                   # (what, why) of a test input, by its key in lab.toml
    [reasons.guard]
    "nan > limit" = "..."                      # the reason of a wrong answer, by its name in answers.toml
    [feedback]
    "norm {}" = "..."                          # any other text of checks.py

A key of [feedback] is the English text as the code has it, with {} or {name} for what the code fills in.
"""

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from grpo_lab.course import known_answers, pages, registry
from grpo_lab.course.exercises import Finding
from grpo_lab.errors import DataError
from grpo_lab.messages import ENGLISH, catalogue
from grpo_lab.paths import own_directory, read_toml

_PLACE = re.compile(r"\{(\w*)[^{}' ]*\}")
"""A placeholder, with its name if it has one; the format behind the name belongs to the code."""
_NAMES = re.compile(r"[^\s,;:]+( [-+.\de]+| nan| inf)?")
"""A name, and its value if it has one."""
_ERROR = re.compile(r"\w+(Error|Exception|Exit|Interrupt|Warning|Iteration)\b")
"""The beginning of Python's own message, which stays as Python gave it."""
_QUOTED = re.compile("'[^']*'")
_PROSE = re.compile(r"[a-z] [a-z]+\b")
_SURE = 12
"""Letters of a phrase, besides its placeholders, from which on it is `sure`."""
_SENTENCE = re.compile(r"(?<=[.?]) ")


class Phrase(NamedTuple):
    """A text with placeholders, and its translation."""

    pattern: re.Pattern[str]
    names: Sequence[str]
    """Names of the placeholders, or their numbers, in the order of the English text."""
    sure: bool
    """Whether the text between the placeholders is long enough that no other text matches by chance."""
    said: str


@dataclass(frozen=True, eq=False)
class Table:
    """The texts of a language in the form that a search needs. Two tables are never equal, so one may be a key."""

    exact: Mapping[str, str]
    """Whole texts."""
    separators: Mapping[str, str]
    """Texts that stand between two parts."""
    phrases: Sequence[Phrase]
    """Those with placeholders, the most literal ones first."""


def in_language(finding: Finding, language: str) -> Finding:
    """The finding with its texts in a language; parts without a translation stay as they are.

    >>> in_language(Finding(False, "a healthy run", "1", "a number", "This is a text; a number is wanted."), "zh")
    Finding(right=False, what='健康的运行', got='1', expected='数', why='这是文本；需要的是数。')
    """
    right, *texts = finding
    return Finding(right, *(said(text, language) for text in texts)) if language != ENGLISH else finding


def said(text: str, language: str) -> str:
    """One text of a finding in a language, or the text itself where there is no translation.

    >>> said("The shape is (2,), not (3,). Mend that first.", "zh"), said("'a text'", "zh"), said("a text", "en")
    ('形状是 (2,)，而不是 (3,)。请先改正这一点。', "'a text'", 'a text')
    """
    if language == ENGLISH or _ERROR.match(text):
        return text
    return _said(text, _table(language, _own_files(language))) or text


@functools.lru_cache(maxsize=4096)
def _said(text: str, table: Table) -> str | None:
    """The translation of a text that the table holds, as a whole or in parts; None where it holds no part."""
    if text in table.exact:
        return table.exact[text]
    for found in (*_sentences(text, table), *_joined(text, table)):
        return found
    for phrase in table.phrases:
        if match := phrase.pattern.fullmatch(text):
            parts = [_said(part, table) or part for part in match.groups()]
            if phrase.sure or not any(_PROSE.search(_QUOTED.sub("", part)) for part in parts):
                return _filled(phrase.said, dict(zip(phrase.names, parts, strict=True)))
    return None


def _sentences(text: str, table: Table) -> Iterator[str]:
    """A sentence and the rest, both translated. A judge's difference is no sentence yet: evaluate.py makes it one."""
    for place in _SENTENCE.finditer(text):
        head, tail = text[: place.start()], text[place.start() :]
        first, rest = _sentence(head, table), table.exact.get(tail) or _sentence(tail[1:], table)
        if first and rest:
            yield first + rest.lstrip()


def _sentence(text: str, table: Table) -> str | None:
    whole = _said(text, table)
    if whole or not text.endswith("."):
        return whole
    difference = _said(f"{text[:1].lower()}{text[1:-1]}", table)
    return f"{difference}。" if difference else None


def _joined(text: str, table: Table) -> Iterator[str]:
    """Two parts joined by a comma, `and` or `or`; each has a translation or is one word, and one has a translation."""
    for separator, between in table.separators.items():
        for place in reversed([match.start() for match in re.finditer(re.escape(separator), text)]):
            parts = text[:place], text[place + len(separator) :]
            known = [_said(part, table) for part in parts]
            names = separator in (" and ", " or ") and all(map(_NAMES.fullmatch, parts))
            named = separator == ": " and known[1] and _NAMES.fullmatch(parts[0])
            if names or named or all(known):
                yield between.join(translated or part for translated, part in zip(known, parts, strict=True))


def _filled(template: str, given: Mapping[str, str]) -> str:
    count = iter(range(len(given)))
    return _PLACE.sub(lambda place: given[place[1] or str(next(count))], template)


def _own_files(language: str) -> tuple[tuple[Path, bytes], ...]:
    """The files of one's own labs with texts, by which a change of them is seen; the course's are read once."""
    own, names = own_directory(), (pages.FILE, known_answers.FILE, f"{language}/{pages.FILE}")
    paths = [path for name in names for path in sorted(own.glob(f"labs/*/{name}"))] if own else []
    return tuple((path, path.read_bytes()) for path in paths)


@functools.lru_cache(maxsize=8)
def _table(language: str, _: tuple[tuple[Path, bytes], ...]) -> Table:
    every = texts(language)
    exact = {english: words for english, words in every.items() if not _PLACE.search(english)}
    separators = {": ": "：", ", ": "，", **{english: exact[english] for english in (" and ", " or ")}}
    templates = sorted(every.keys() - exact.keys(), key=_rank)
    return Table(exact, separators, [_phrase(english, every[english]) for english in templates])


def _rank(english: str) -> tuple[bool, int, str]:
    """The place of a phrase among all: one that begins with its own words, and one with many, comes early."""
    return english.startswith("{"), -len(_PLACE.sub("", english)), english


def _phrase(english: str, words: str) -> Phrase:
    literals = _PLACE.split(english)[::2]
    count = iter(range(len(literals)))
    names = [place[1] or str(next(count)) for place in _PLACE.finditer(english)]
    sure = sum(map(str.isalpha, "".join(literals))) >= _SURE
    return Phrase(re.compile("(.+?)".join(map(re.escape, literals)), re.DOTALL), names, sure, words)


def texts(language: str) -> dict[str, str]:
    """Every English text of a finding with its translation: those of the labs, and those of the code, which prevail."""
    found = dict[str, str]()
    for name in reversed(registry.lab_names()):
        found |= of_lab(registry.lab_folder(name), language)
    return found | of_the_code(language)


def of_the_code(language: str) -> dict[str, str]:
    """The texts of the code with their translations."""
    return catalogue(language, "feedback")


def of_lab(folder: Path, language: str) -> dict[str, str]:
    """The texts of the lab in a folder with their translations; none without <language>/lab.toml."""
    path = folder / language / pages.FILE
    if not path.is_file():
        return {}
    tree, english = read_toml(path, DataError), english_texts(folder)
    words = places(tree)
    return {text: words[place] for place, text in english.items() if place in words} | tree.get("feedback", {})


def english_texts(folder: Path) -> dict[tuple[str, ...], str]:
    """The English texts of the lab in a folder, by their place."""
    known = [each for each in known_answers.known_answers(folder) if each.reason]
    given: dict[str, dict[str, str]] = {each.exercise: {} for each in known}
    for each in known:
        given[each.exercise][each.name] = each.reason
    return places({**read_toml(folder / pages.FILE, DataError), "reasons": given})


def check_places(folder: Path, language: str) -> None:
    """Raise DataError for a text, a letter or a reason in <language>/lab.toml that the English lab does not have."""
    path, english = folder / language / pages.FILE, english_texts(folder)
    for place in places(read_toml(path, DataError)) if path.is_file() else ():
        if place not in english:
            named = f"{pages.FILE} or {known_answers.FILE}"
            raise DataError(f"{path}: {'.'.join(place)} has no English text; give it the name that it has in {named}")


def places(tree: Mapping[str, Any]) -> dict[tuple[str, ...], str]:
    """The texts of a lab.toml that findings have, by their place in it, which is the same in every language.

    >>> places({"texts": {"far": ["a far token", "It counts."]}, "exercises": {"cause": {"wrong": {"a": "No."}}}})
    {('texts', 'far', 'what'): 'a far token', ('texts', 'far', 'why'): 'It counts.', ('wrong', 'cause', 'a'): 'No.'}
    """
    tables = {
        "texts": {key: dict(zip(("what", "why"), pair, strict=True)) for key, pair in tree.get("texts", {}).items()},
        "wrong": {name: exercise.get("wrong", {}) for name, exercise in tree.get("exercises", {}).items()},
        "reasons": tree.get("reasons", {}),
    }
    return {
        (kind, name, key): text
        for kind, by_name in tables.items()
        for name, by_key in by_name.items()
        for key, text in by_key.items()
    }
