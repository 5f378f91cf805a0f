"""Reads a lab's folder: the words that learners read in lab.toml, and the check of each exercise.

A prediction, a choice of one letter and a text that a person marks are declared in lab.toml. The dictionary CHECKS of
checks.py, which is absent where no exercise needs it, has the other checks. `<language>/lab.toml` has the words alone,
because a number or a kind has one home. The sandbox hides the folder from answers.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from grpo_lab.config import user_code
from grpo_lab.course import judges, known_answers
from grpo_lab.course.editions.solutions import NOTEBOOK, solution
from grpo_lab.course.exercises import Check, Exercise, Function, LabPage, Question
from grpo_lab.errors import DataError, check_known
from grpo_lab.messages import ENGLISH
from grpo_lab.paths import read_toml

FILE, CHECKS = "lab.toml", "checks.py"
_PAGE = {"title": str, "minutes": int, "difficulty": int, "summary": str, "exercises": dict, "questions": list}
_EXERCISE = {"title": str, "kind": str, "minutes": int, "difficulty": int, "points": int, "hints": list}
_QUESTION = {"text": str, "options": list, "right": int}
_OPTION = {"text": str, "reply": str}
_PAGE_WORDS = {"title": str, "summary": str, "exercises": dict, "questions": list}
_MORE_WORDS = {"texts": dict, "reasons": dict, "feedback": dict}
_EXERCISE_WORDS = {"title": str, "hints": list}
_QUESTION_WORDS = {"text": str, "options": list}
"""The keys of these tables in another language."""


def _choice(right: str, wrong: Mapping[str, Any]) -> Check:
    """Raises DataError for more than one letter, a reason against the right one, and a reason that is no text."""
    for each, why in {right: "", **wrong}.items():
        if len(each) != 1 or not isinstance(why, str) or right in wrong:
            raise DataError(f"right = {right!r}, wrong = {wrong!r}: give one letter, and texts for other letters")
    return judges.choice(right, wrong)


_DECLARED: dict[str, tuple[Callable[..., Check], dict[str, type], dict[str, type]]] = {
    "letters": (judges.prediction, {"letters": str, "outcome": str}, {"runs": int}),
    "right": (_choice, {"right": str, "wrong": dict}, {}),
    "words": (judges.text, {"words": int}, {}),
}
"""Checks that lab.toml declares, by a key: the function that makes one, the keys that it takes, and optional ones."""


def page(folder: Path) -> LabPage:
    """The lab of a folder, loaded again only if one of its files has changed.

    Raises DataError for a file that cannot be read, a key that is missing, unknown or of another type, a value outside
    its limits, and an exercise without a check or with two.
    """
    files = (folder / FILE, folder / CHECKS, folder / known_answers.FILE)
    return _page(folder, tuple(path.read_bytes() if path.is_file() else b"" for path in files))


@functools.lru_cache(maxsize=64)
def _page(folder: Path, _: tuple[bytes, ...]) -> LabPage:
    path = folder / FILE
    tree, checks = read_toml(path, DataError), _checks(folder / CHECKS)
    try:
        tree = _table(tree, _PAGE, "the page", {"texts": dict})
        tree.pop("texts", None)
        exercises, questions = tree.pop("exercises"), tree.pop("questions")
        for name in checks:
            if name not in exercises:
                raise DataError(f"{CHECKS} has a check {name!r}: delete it there, or add [exercises.{name}]")
        return LabPage(
            folder.name,
            **tree,
            exercises={name: _exercise(name, texts, checks, folder) for name, texts in exercises.items()},
            questions=tuple(_question(number, texts) for number, texts in enumerate(questions, start=1)),
            folder=folder,
        )
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


def _checks(path: Path) -> Mapping[str, Check]:
    """CHECKS of checks.py, or none without such a file."""
    if not path.is_file():
        return {}
    found = getattr(user_code.execute(path, DataError), "CHECKS", None)
    if not isinstance(found, dict):
        raise DataError(f"{path}: define CHECKS = {{exercise: check}}")
    return found


def in_language(page: LabPage, language: str) -> LabPage:
    """The page with the words of <language>/lab.toml beside its texts; points, minutes, kinds and checks stay.

    A page without such a file, which a lab of one's own may be, stays English.
    Raises DataError for a file that cannot be read, and for words that are missing, too many or of another place.
    """
    path = page.folder / language / FILE
    if language == ENGLISH or not path.is_file():
        return page
    tree = read_toml(path, DataError)
    try:
        tree = _table(tree, _PAGE_WORDS, "the page", _MORE_WORDS)
        exercises, questions = tree.pop("exercises"), tree.pop("questions")
        for names, known in ((exercises, page.exercises), (page.exercises, exercises)):
            check_known("exercise", names, known, DataError)
        if len(questions) != len(page.questions):
            raise DataError(f"{len(questions)} questions; the English page has {len(page.questions)}")
        said, asked = dict[str, Exercise](), list[Question]()
        for name, exercise in page.exercises.items():
            fields = _table(exercises[name], _EXERCISE_WORDS, f"exercise {name!r}", {"wrong": dict})
            said[name] = dataclasses.replace(exercise, title=fields["title"], hints=tuple(fields["hints"]))
        for number, (question, texts) in enumerate(zip(page.questions, questions, strict=True), start=1):
            fields = _table(texts, _QUESTION_WORDS, f"question {number}")
            asked.append(_question(number, {**fields, "right": question.right}))
            options, wanted = len(asked[-1].options), len(question.options)
            if options != wanted:
                raise DataError(f"question {number} has {options} options; in English {wanted}")
        words = {name: tree[name] for name in ("title", "summary")}
        return dataclasses.replace(page, **words, exercises=said, questions=tuple(asked))
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


def _exercise(name: str, texts: Any, checks: Mapping[str, Check], folder: Path) -> Exercise:
    """The exercise with its check, whose known mistakes are those of answers.toml."""
    where = f"exercise {name!r}"
    declared = [kind for key, kind in _DECLARED.items() if isinstance(texts, dict) and key in texts]
    keys = {key: kind for _, taken, _ in declared for key, kind in taken.items()}
    optional = {key: kind for _, _, more in declared for key, kind in more.items()}
    fields = _table(texts, {**_EXERCISE, **keys}, where, optional)
    if (count := len(declared) + (name in checks)) != 1:
        ways = f"{', '.join(_DECLARED)} in {FILE}, or CHECKS[{name!r}] in {CHECKS}"
        raise DataError(f"{where} has {count} checks; it needs exactly one: {ways}")
    given = {key: fields.pop(key) for key in (*keys, *optional) if key in fields}
    check = declared[0][0](**given) if declared else checks[name]
    if isinstance(check, Function):
        check = dataclasses.replace(check, mistakes=functools.partial(known_answers.mistakes, folder, name))
    return Exercise(name, **{**fields, "hints": tuple(fields["hints"])}, check=check)


def _question(number: int, texts: Any) -> Question:
    where = f"question {number}"
    fields = _table(texts, _QUESTION, where)
    options = [_table(option, _OPTION, f"an option of {where}") for option in fields["options"]]
    return Question(fields["text"], tuple((option["text"], option["reply"]) for option in options), fields["right"])


def _table(
    tree: Any, fields: Mapping[str, type], where: str, optional: Mapping[str, type] | None = None
) -> dict[str, Any]:
    """A copy of the table, which has these keys and no others, each with a value of its type; raises DataError else."""
    known = {**fields, **(optional or {})}
    if not isinstance(tree, dict):
        raise DataError(f"{where} is {tree!r}; write a table")
    check_known(f"key of {where}", tree, known, DataError)
    for key, kind in known.items():
        if key not in tree and key in fields:
            raise DataError(f"{where} has no {key!r}; it needs {', '.join(fields)}")
        if key in tree and type(tree[key]) is not kind:
            raise DataError(f"{where}: {key} = {tree[key]!r}: must be of type {kind.__name__}")
    return dict(tree)


def solved(checks: str, exercise: str) -> ModuleType:
    """The solution of an exercise as a module; `checks` is the checks.py that computes expected values by it."""
    path = Path(checks).with_name(NOTEBOOK)
    return user_code.execute(path, DataError, source=solution(path.parent, exercise))


def case_texts(checks: str) -> dict[str, tuple[str, str]]:
    """The texts (what, why) of a lab's test inputs by key, from [texts] of lab.toml beside its checks.py.

    >>> from grpo_lab.paths import labs_directory
    >>> case_texts(str(labs_directory() / "05_kl" / "checks.py"))["agree"]
    ('delta = 0: policy and reference agree', 'Equal probabilities have no distance: 0.')
    """
    texts = read_toml(Path(checks).parent / FILE, DataError).get("texts", {})
    return {key: (what, why) for key, (what, why) in texts.items()}
