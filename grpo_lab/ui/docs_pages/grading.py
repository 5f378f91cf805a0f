"""docs/grading.md: how a class is graded, with the numbers of exercises and points of every lab."""

from collections.abc import Iterable

from grpo_lab.analysis.markdown import render
from grpo_lab.course.exercises import Exercise
from grpo_lab.course.registry import course_labs, lab_page

_NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


def page() -> str:
    """The page on grading."""
    pages = [lab_page(lab) for lab in course_labs()]
    every = [exercise for each in pages for exercise in each.exercises.values()]
    rows = [["lab", "exercises", "points", "of them for texts"]]
    for each in pages:
        exercises = each.exercises.values()
        rows.append([each.name, str(len(exercises)), str(_points(exercises)), str(_points(_texts(exercises)))])
    counts = {"exercises": len(every), "points": _points(every), "texts": _points(_texts(every))}
    names = _NUMBERS[len(pages)] if len(pages) < len(_NUMBERS) else str(len(pages))
    return render("grading", labs=names, rows=rows, **counts)


def _points(exercises: Iterable[Exercise]) -> int:
    return sum(exercise.points for exercise in exercises)


def _texts(exercises: Iterable[Exercise]) -> list[Exercise]:
    return [exercise for exercise in exercises if exercise.kind == "text"]
