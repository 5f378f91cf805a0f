"""Findings in another language. They are English inside checks, grading and files, and translated where they are shown.

The table of a language is `[feedback]` of data/translations/<language>.toml, and labs/lab_<lab>/texts.<language>.toml,
whose English is texts.toml. A key is the English text as the code has it, with {} or {name} for what the code fills in.
"""

import functools
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from grpo_lab.course import registry
from grpo_lab.course.exercises import Finding
from grpo_lab.messages import ENGLISH, catalogue

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
    return _said(text, language) or text


@functools.lru_cache(maxsize=4096)
def _said(text: str, language: str) -> str | None:
    """The translation of a text that the table holds, as a whole or in parts; None where it holds no part."""
    exact, separators, phrases = _table(language)
    if text in exact:
        return exact[text]
    for found in (*_sentences(text, language), *_joined(text, language, separators)):
        return found
    for phrase in phrases:
        if match := phrase.pattern.fullmatch(text):
            parts = [_said(part, language) or part for part in match.groups()]
            if phrase.sure or not any(_PROSE.search(_QUOTED.sub("", part)) for part in parts):
                return _filled(phrase.said, dict(zip(phrase.names, parts, strict=True)))
    return None


def _sentences(text: str, language: str) -> Iterator[str]:
    """A sentence and the rest, both translated. A judge's difference is no sentence yet: evaluate.py makes it one."""
    for place in _SENTENCE.finditer(text):
        head, tail = text[: place.start()], text[place.start() :]
        first, rest = _sentence(head, language), _table(language)[0].get(tail) or _sentence(tail[1:], language)
        if first and rest:
            yield first + rest.lstrip()


def _sentence(text: str, language: str) -> str | None:
    whole = _said(text, language)
    if whole or not text.endswith("."):
        return whole
    difference = _said(f"{text[:1].lower()}{text[1:-1]}", language)
    return f"{difference}。" if difference else None


def _joined(text: str, language: str, separators: Mapping[str, str]) -> Iterator[str]:
    """Two parts joined by a comma, `and` or `or`; each has a translation or is one word, and one has a translation."""
    for separator, between in separators.items():
        for place in reversed([match.start() for match in re.finditer(re.escape(separator), text)]):
            parts = text[:place], text[place + len(separator) :]
            known = [_said(part, language) for part in parts]
            names = separator in (" and ", " or ") and all(map(_NAMES.fullmatch, parts))
            named = separator == ": " and known[1] and _NAMES.fullmatch(parts[0])
            if names or named or all(known):
                yield between.join(translated or part for translated, part in zip(known, parts, strict=True))


def _filled(template: str, given: Mapping[str, str]) -> str:
    count = iter(range(len(given)))
    return _PLACE.sub(lambda place: given[place[1] or str(next(count))], template)


@functools.cache
def _table(language: str) -> tuple[Mapping[str, str], Mapping[str, str], Sequence[Phrase]]:
    """Whole texts, texts that stand between two parts, and phrases with placeholders, the most literal ones first."""
    every = texts(language)
    exact = {english: words for english, words in every.items() if not _PLACE.search(english)}
    separators = {": ": "：", ", ": "，", **{english: exact[english] for english in (" and ", " or ")}}
    templates = sorted(every.keys() - exact.keys(), key=_rank)
    return exact, separators, [_phrase(english, every[english]) for english in templates]


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
    """Every English text of a finding with its translation: those of the code, and those of the labs' test inputs."""
    found = table(language)
    for lab in registry.LABS:
        folder = Path(__file__).parent / "labs" / f"lab_{lab}"
        if (folder / "texts.toml").exists():
            english, other = _read(folder / "texts.toml"), _read(folder / f"texts.{language}.toml")
            found |= {text: words for key in english for text, words in zip(english[key], other[key], strict=True)}
    return found


def table(language: str) -> dict[str, str]:
    """The texts of the code with their translations, [feedback] of data/translations/<language>.toml."""
    words = catalogue(language, "translations").items()
    return {key.removeprefix("feedback."): said for key, said in words if key.startswith("feedback.")}


def _read(path: Path) -> dict[str, Mapping[str, str]]:
    return tomllib.loads(path.read_text(encoding="utf-8"))
