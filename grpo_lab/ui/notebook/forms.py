"""Exercises that are answered by clicks: a prediction by radio buttons, names of runs by a gallery with menus.

The answer is written into the exercise's cell, so that the notebook's file has it, as if it had been typed.
"""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import anywidget
import ipywidgets
import traitlets

from grpo_lab.analysis.run_state import fold
from grpo_lab.course import answers
from grpo_lab.course.exercises import Exercise, Naming
from grpo_lab.messages import text
from grpo_lab.runs import recordings
from grpo_lab.runs.session import Session
from grpo_lab.ui import html
from grpo_lab.ui.widgets import Panel, parts
from grpo_lab.ui.widgets.live import thumbnail

_HERE = Path(__file__).parent


class CellText(anywidget.AnyWidget):
    """Puts `source` into the cell that begins with the line `begins`; where it cannot, it says `otherwise`."""

    _esm = _HERE / "cell.js"
    begins = traitlets.Unicode().tag(sync=True)
    source = traitlets.Unicode().tag(sync=True)
    otherwise = traitlets.Unicode().tag(sync=True)


def form(exercise: Exercise, cell: str, check: Callable[[str], str], given: Any) -> ipywidgets.VBox:
    """The inputs of an exercise, a button that gives the answer once each has a value, and the feedback.

    `cell` is the text of the exercise's cell; `check` gets it with the answer, and returns the feedback as HTML. The
    menus of a gallery begin with the names in `given`.
    """
    magic, once = f"%%{answers.MAGIC} {exercise.name}\n", exercise.kind == "prediction"
    asked = exercise.check
    above, below, inputs, answer = _gallery(asked, given) if isinstance(asked, Naming) else _radio(cell)
    written, reply = CellText(begins=magic), parts.words("reply")

    def give() -> None:
        source = magic + filled(cell, answer())
        reply.value = check(source.removeprefix(magic))
        written.otherwise = text("exercise.copy", answer=source[source.rindex("\nanswer = ") :])
        written.source = source
        for each in (*inputs, button):
            each.disabled = once

    def chosen(*_: Any) -> None:
        button.disabled = not all(each.value for each in inputs)

    button = parts.button("give", text("exercise.lock" if once else "exercise.check"), give, button_style="primary")
    for each in inputs:
        each.observe(chosen, "value")
    chosen()
    style = ipywidgets.HTML(f"<style>{(_HERE / 'forms.css').read_text(encoding='utf-8')}</style>")
    style.layout.display = "none"
    return parts.box("form", [style, *above, button, reply, written, *below], ipywidgets.VBox)


Inputs = tuple[list[Any], list[Any], list[Any], Callable[[], Any]]
"""The widgets above and below the button, the inputs among them, and a function that returns the answer."""


def _radio(cell: str) -> Inputs:
    """The question and the options in the comments of a prediction's cell."""
    lines = [line.removeprefix("# ") for line in cell.partition("\n#  ")[0].split("\n") if line.startswith("# ")]
    options = [(f"{letter}  {words.replace('`', '')}", letter) for letter, words in answers.options(cell).items()]
    layout = {"width": "max-content", "max_width": "100%"}
    choice = ipywidgets.RadioButtons(options=options, value=None, layout=layout)
    return [parts.words("asked", html.fill("asked", " ".join(lines))), choice], [], [choice], lambda: choice.value


def _gallery(naming: Naming, given: Any) -> Inputs:
    """The curves of each run, a menu of names for it, and a panel of one run: the first, then that which is clicked."""
    panel = Panel(recording=naming.runs[0], controls=(), guards_shown=(), break_shown=False)
    menus, cards, heading = [], [], parts.words("shown")

    def look(number: int) -> None:
        panel.open(naming.runs[number - 1])
        heading.value = html.fill("heading", text("exercise.shown", number=number))
        for place, each in enumerate(cards, start=1):
            each.children[0].button_style = "info" if place == number else ""

    for number, run in enumerate(naming.runs, start=1):
        names = [(text("exercise.choose"), ""), *((name, name) for name in naming.options)]
        name = given.get(number) if isinstance(given, dict) else ""
        menus.append(ipywidgets.Dropdown(options=names, value=name if name in naming.options else ""))
        opened = parts.button("look", text("exercise.look", number=number), partial(look, number))
        pngs = thumbnail(fold(Session.open(recordings.find(run)).events))
        picture = ipywidgets.HTML(html.figure(pngs, text("exercise.run", number=number), "thumbnail"))
        cards.append(parts.box("card", [opened, picture, menus[-1]], ipywidgets.VBox))
    shown = parts.box("cards", cards, ipywidgets.Box)
    look(1)
    return [shown], [heading, panel.widget], menus, lambda: dict(enumerate((menu.value for menu in menus), start=1))


def filled(cell: str, answer: Any) -> str:
    """The cell of an exercise with this answer, a text or a dictionary of texts, in place of what is assigned there.

    >>> print(filled("# What happens?\\nanswer = ...  # your answer", "b"))
    # What happens?
    answer = "b"
    """
    rows = [f'    {key}: "{value}",' for key, value in answer.items()] if isinstance(answer, dict) else []
    said = "\n".join(["{", *rows, "}"]) if rows else f'"{answer}"'
    return re.sub(r"^answer = .*", lambda _: f"answer = {said}", cell.rstrip(), flags=re.MULTILINE | re.DOTALL)
