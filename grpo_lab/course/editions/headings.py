"""The texts of a notebook that the registry gives: its cover, the heading of an exercise, and three folded hints."""

from grpo_lab.course.exercises import Exercise, LabPage
from grpo_lab.messages import text_in


def with_cover(source: str, page: LabPage, language: str) -> str:
    """The first cell, with minutes, difficulty and summary below its title."""
    title, _, rest = source.partition("\n")
    facts = {"minutes": page.minutes, "stars": stars(page.difficulty), "summary": page.summary}
    return f"{title}\n\n{text_in(language, 'notebook.cover', **facts)}\n{rest}"


def exercise(exercise: Exercise, language: str) -> str:
    """The heading of an exercise, and a line of facts."""
    kind = text_in(language, f"notebook.kind.{exercise.kind}")
    facts = {"minutes": exercise.minutes, "stars": stars(exercise.difficulty), "kind": kind}
    return f"### {text_in(language, 'notebook.exercise', title=exercise.title)}\n\n" + text_in(
        language, "notebook.facts", **facts
    )


def hints(exercise: Exercise, language: str) -> str:
    """The hints, each folded."""
    return "\n\n".join(
        f"<details><summary>{text_in(language, 'notebook.hint', number=number)}</summary>\n\n{hint}\n\n</details>"
        for number, hint in enumerate(exercise.hints, start=1)
    )


def stars(difficulty: int) -> str:
    """The difficulty as a row of three stars.

    >>> stars(2)
    '★★☆'
    """
    return "★" * difficulty + "☆" * (3 - difficulty)
