"""HTML pages: one about the class for the teacher, and one about each notebook for the student.

Each page's content security policy forbids scripts, other resources, and any style but the one whose hash it names.
"""

import base64
import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from grpo_lab.grading.reports import tables, words
from grpo_lab.grading.reports.words import ENGLISH, number, visible
from grpo_lab.grading.results import BY_HAND, FAILED, MARKED, RIGHT, UNANSWERED, WRONG, Mark, Result, counted

STATUSES = {RIGHT: "✓", WRONG: "✗", UNANSWERED: "○", BY_HAND: "…", MARKED: "✎", FAILED: "!"}
"""The sign before each status, so that colours are not needed to tell them apart."""
_TEMPLATES = Path(__file__).parent / "templates"


class Tally(NamedTuple):
    """The results of a class in one exercise."""

    exercise: str
    title: str
    counts: Mapping[str, int]
    """Number of notebooks by status."""
    share: float | None
    """Share of the points that was earned; None where no answer was judged."""
    why: str
    """The most frequent reason among wrong answers."""
    told: int
    """Number of notebooks with that reason."""


class Lab(NamedTuple):
    """The section of one lab on the page about a class."""

    name: str
    rows: Sequence[tuple[Result, str, Mapping[str, Mark]]]
    """Notebook, name of its page, and marks by exercise."""
    tallies: Sequence[Tally]
    """In the order of the lab."""

    @property
    def hardest(self) -> Sequence[Tally]:
        """The tallies, the smallest share of points first."""
        return sorted(self.tallies, key=lambda each: 1.0 if each.share is None else each.share)

    @property
    def flagged(self) -> bool:
        """Whether a notebook has a problem, a warning or an exercise that was not graded."""
        return any(each.problem or each.warnings or each.not_graded for each, _, _ in self.rows)


def of_class(results: Sequence[Result], names: Sequence[str], language: str = ENGLISH) -> str:
    """The page about all notebooks; `names` are the names of their own pages, in the same order."""
    here = list(zip(results, names, strict=True))
    labs = sorted({result.lab for result in results}, key=lambda lab: (not lab, lab))
    return _page(
        "class.html",
        language,
        labs=[_lab(lab, [(result, page) for result, page in here if result.lab == lab]) for lab in labs],
        counts=Counter(mark.status for result in results for mark in result.marks),
        trusts=sorted({(result.tier, result.trust) for result in results}),
        class_=tables.of_class(results),
        own={(result.student, result.lab): page for result, page in here},
        of=counted(results),
    )


def of_notebook(result: Result, language: str = ENGLISH) -> str:
    """The page about one notebook: score, findings, and the limits of the tier."""
    return _page("notebook.html", language, result=result)


def tally(marks: Sequence[Mark]) -> Tally:
    """The summary of one exercise, from its marks in all notebooks.

    >>> tally([Mark("k3", "k3", "code", 2.0, 2, RIGHT), Mark("k3", "k3", "code", 0.0, 2, UNANSWERED)]).share
    0.5
    """
    told_each = (dict.fromkeys(found.why for found in mark.findings if not found.right and found.why) for mark in marks)
    reasons = Counter(why for told in told_each for why in told)
    why, told = reasons.most_common(1)[0] if reasons else ("", 0)
    looked_at = [mark for mark in marks if mark.status not in (BY_HAND, FAILED)]
    most = sum(mark.out_of for mark in looked_at)
    share = sum(mark.points for mark in looked_at) / most if most else None
    return Tally(marks[0].exercise, marks[0].title, Counter(mark.status for mark in marks), share, why, told)


def _lab(name: str, here: Sequence[tuple[Result, str]]) -> Lab:
    rows = [(result, page, {mark.exercise: mark for mark in result.marks}) for result, page in here]
    exercises = dict.fromkeys(exercise for _, _, marks in rows for exercise in marks)
    return Lab(name, rows, [tally([marks[each] for _, _, marks in rows if each in marks]) for each in exercises])


def _shown(value: Any) -> Any:
    """A value as templates write it: autoescape makes it harmless, and `visible` makes it readable."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _page(template: str, language: str, **values: Any) -> str:
    return _environment().get_template(template).render(values, word=words.Words(language))


@cache
def _environment() -> Environment:
    style = (_TEMPLATES / "style.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    loader = FileSystemLoader(_TEMPLATES)
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, finalize=_shown, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(number=number, in_words=lambda found, word: word.finding(found))
    environment.globals.update(statuses=STATUSES, by_hand=BY_HAND, failed=FAILED, shown=tables.SHOWN)
    environment.globals.update(style=Markup(style), digest=digest)
    return environment
