"""Findings in another language. They are English inside checks, grading and files, and translated where they are shown.

The texts of the code have the context `feedback` in data/locale. A lab has its own in <language>/lab.toml:

    [exercises.cause]                          # beside its title and hints
    wrong.a = "..."                            # the reason for a letter that lab.toml declares wrong
    [texts]
    healthy = ["...", "..."]                   # (what, why) of a test input, by its key in lab.toml
    [reasons.guard]
    "nan > limit" = "..."                      # the reason of a wrong answer, by its name in answers.toml
    [feedback]
    "norm {:.4g}" = "..."                      # any other text of checks.py

A text with values is a `Sentence`, and its key is the template. A value is data, and stays, unless it is a sentence.
"""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grpo_lab.course import known_answers, pages, registry
from grpo_lab.course.exercises import Finding
from grpo_lab.errors import DataError, Sentence, translated
from grpo_lab.messages import ENGLISH, catalogue
from grpo_lab.paths import own_directory, read_toml


def in_language(finding: Finding, language: str) -> Finding:
    """The finding with its texts in a language; one without a translation stays as it is.

    A result that is no sentence is the learner's own, such as a text or Python's message, and stays whatever it says.

    >>> in_language(Finding(False, "a healthy run", "a number", "a number", Sentence("at least {}", 1)), "zh")
    Finding(right=False, what='健康的运行', got='a number', expected='数', why='至少 1')
    """
    right, *texts = finding
    what, got, expected, why = (said(text, language) for text in texts)
    return Finding(right, what, got if isinstance(finding.got, Sentence) else finding.got, expected, why)


def said(text: str, language: str) -> str:
    """A text of checks or of grading in a language, or the text itself where there is no translation.

    >>> said("a text", "zh"), said(Sentence("This is {}; {} is wanted.", "a text", Sentence("a number")), "zh")
    ('文本', '这是a text；需要的是数。')
    """
    return text if language == ENGLISH else translated(text, texts(language, _own_files(language)), data=True)


def _own_files(language: str) -> tuple[tuple[Path, bytes], ...]:
    """The files of one's own labs with texts, by which a change of them is seen; the course's are read once."""
    own, names = own_directory(), (pages.FILE, known_answers.FILE, f"{language}/{pages.FILE}")
    paths = [path for name in names for path in sorted(own.glob(f"labs/*/{name}"))] if own else []
    return tuple((path, path.read_bytes()) for path in paths)


@functools.lru_cache(maxsize=8)
def texts(language: str, _: tuple[tuple[Path, bytes], ...] = ()) -> Mapping[str, str]:
    """Every English text of a finding with its translation: those of the labs, and those of the code, which prevail."""
    found = dict[str, str]()
    for folder in map(registry.lab_folder, reversed(registry.lab_names())):
        if (path := folder / language / pages.FILE).is_file():
            tree = read_toml(path, DataError)
            words = places(tree)
            found |= {text: words[place] for place, text in english_texts(folder).items() if place in words}
            found |= tree.get("feedback", {})
    return found | catalogue(language, "feedback")


def english_texts(folder: Path) -> dict[tuple[str, ...], str]:
    """The English texts of the lab in a folder, by their place."""
    known = known_answers.known_answers(folder)
    reasons = {("reasons", each.exercise, each.name): each.reason for each in known if each.reason}
    return places(read_toml(folder / pages.FILE, DataError)) | reasons


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
    pairs, exercises, reasons = (tree.get(name, {}) for name in ("texts", "exercises", "reasons"))
    found = {("texts", key): dict(zip(("what", "why"), pair, strict=True)) for key, pair in pairs.items()}
    found |= {("wrong", name): exercise.get("wrong", {}) for name, exercise in exercises.items()}
    found |= {("reasons", name): by_answer for name, by_answer in reasons.items()}
    return {(*place, key): text for place, by_key in found.items() for key, text in by_key.items()}
