"""Reads the texts of a lab page from data/course/<lab>.toml and joins each exercise with its check.

The files hold the words that learners read; data/course/<language>/ has them in another language. Checks, test inputs
and right answers to graded exercises stay in code. The words about test inputs lie beside that code, in
labs/lab_<lab>/texts.toml.
"""

import dataclasses
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grpo_lab.course.exercises import Check, Exercise, LabPage, Question
from grpo_lab.errors import DataError, unknown
from grpo_lab.messages import ENGLISH
from grpo_lab.paths import data_directory

_PAGE = {"title": str, "minutes": int, "difficulty": int, "summary": str, "exercises": dict, "questions": list}
_EXERCISE = {"title": str, "kind": str, "minutes": int, "difficulty": int, "points": int, "hints": list}
_QUESTION = {"text": str, "options": list, "right": int}
_OPTION = {"text": str, "reply": str}
_PAGE_WORDS = {"title": str, "summary": str, "exercises": dict, "questions": list}
_EXERCISE_WORDS = {"title": str, "hints": list}
_QUESTION_WORDS = {"text": str, "options": list}
"""The keys of these tables in another language: words alone, because a number or a kind has one home."""


def page(name: str, checks: Mapping[str, Check], folder: Path | None = None) -> LabPage:
    """The page of a lab: the texts of `folder`/<name>.toml, and the check of each exercise by its name.

    Raises DataError for a file that cannot be read, a key that is missing, unknown or of another type, a value outside
    its limits, and an exercise that has texts without a check or a check without texts.
    """
    path = (folder or data_directory() / "course") / f"{name}.toml"
    try:
        tree = _table(tomllib.loads(path.read_text(encoding="utf-8")), _PAGE, "the page")
        exercises, questions = tree.pop("exercises"), tree.pop("questions")
        _same_names(exercises, checks)
        return LabPage(
            name,
            **tree,
            exercises={each: _exercise(each, texts, checks[each]) for each, texts in exercises.items()},
            questions=tuple(_question(number, texts) for number, texts in enumerate(questions, start=1)),
            folder=path.parent,
        )
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, DataError) as error:
        raise DataError(f"{path}: {error}") from error


def in_language(page: LabPage, language: str) -> LabPage:
    """The page with the words of <language>/<name>.toml beside its texts; points, minutes, kinds and checks stay.

    A page without such a file, which a lab of one's own may be, stays English.
    Raises DataError for a file that cannot be read, and for words that are missing, too many or of another place.
    """
    path = (page.folder or data_directory() / "course") / language / f"{page.name}.toml"
    if language == ENGLISH or not path.is_file():
        return page
    try:
        tree = _table(tomllib.loads(path.read_text(encoding="utf-8")), _PAGE_WORDS, "the page")
        exercises, questions = tree.pop("exercises"), tree.pop("questions")
        _same_names(exercises, page.exercises)
        if len(questions) != len(page.questions):
            raise DataError(f"{len(questions)} questions; the English page has {len(page.questions)}")
        said = {name: _exercise_said(each, exercises[name]) for name, each in page.exercises.items()}
        asked = map(_question_said, range(1, len(questions) + 1), page.questions, questions)
        return dataclasses.replace(page, **tree, exercises=said, questions=tuple(asked))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, DataError) as error:
        raise DataError(f"{path}: {error}") from error


def _exercise_said(exercise: Exercise, texts: Any) -> Exercise:
    fields = _table(texts, _EXERCISE_WORDS, f"exercise {exercise.name!r}")
    return dataclasses.replace(exercise, title=fields["title"], hints=tuple(fields["hints"]))


def _question_said(number: int, question: Question, texts: Any) -> Question:
    """The question in other words. Raises DataError for another number of options."""
    fields = _table(texts, _QUESTION_WORDS, f"question {number}")
    said = _question(number, {**fields, "right": question.right})
    if len(said.options) != len(question.options):
        raise DataError(f"question {number} has {len(said.options)} options; in English {len(question.options)}")
    return said


def _same_names(exercises: Mapping[str, Any], checks: Mapping[str, Any]) -> None:
    """Raise DataError unless texts and checks have the same names."""
    for name in exercises:
        if name not in checks:
            raise unknown("exercise", name, checks, DataError)
    if missing := [name for name in checks if name not in exercises]:
        raise DataError(f"exercise {missing[0]!r} has a check and no texts; add [exercises.{missing[0]}]")


def _exercise(name: str, texts: Any, check: Check) -> Exercise:
    fields = _table(texts, _EXERCISE, f"exercise {name!r}")
    return Exercise(name, **{**fields, "hints": tuple(fields["hints"])}, check=check)


def _question(number: int, texts: Any) -> Question:
    where = f"question {number}"
    fields = _table(texts, _QUESTION, where)
    options = [_table(option, _OPTION, f"an option of {where}") for option in fields["options"]]
    return Question(fields["text"], tuple((option["text"], option["reply"]) for option in options), fields["right"])


def _table(tree: Any, fields: Mapping[str, type], where: str) -> dict[str, Any]:
    """A copy of the table, which has exactly these keys, each with a value of its type; raises DataError else."""
    if not isinstance(tree, dict):
        raise DataError(f"{where} is {tree!r}; write a table")
    for key in tree:
        if key not in fields:
            raise unknown(f"key of {where}", key, fields, DataError)
    for key, kind in fields.items():
        if key not in tree:
            raise DataError(f"{where} has no {key!r}; it needs {', '.join(fields)}")
        if type(tree[key]) is not kind:
            raise DataError(f"{where}: {key} = {tree[key]!r}: must be of type {kind.__name__}")
    return dict(tree)


def case_texts(lab: str) -> dict[str, tuple[str, str]]:
    """The texts (what, why) of a lab's test inputs by key, from labs/lab_<lab>/texts.toml, hidden from an answer.

    >>> case_texts("05_kl")["agree"]
    ('delta = 0: policy and reference agree', 'Equal probabilities have no distance: 0.')
    """
    path = Path(__file__).parent / "labs" / f"lab_{lab}" / "texts.toml"
    return {key: (what, why) for key, (what, why) in tomllib.loads(path.read_text(encoding="utf-8")).items()}
