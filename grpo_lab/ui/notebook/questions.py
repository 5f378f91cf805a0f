"""Review questions: each answer is explained at once and never saved."""

from collections.abc import Sequence
from html import escape
from typing import Any

from grpo_lab.course.exercises import Question
from grpo_lab.messages import text
from grpo_lab.runs.notebook_mode import headless
from grpo_lab.ui.notebook import feedback_view


def ask(questions: Sequence[Question]) -> Any:
    """Radio buttons with explanations; the questions as text without a notebook."""
    if headless():
        feedback_view.show(
            "\n\n".join(_as_text(number, question) for number, question in enumerate(questions, start=1))
        )
        return None
    import ipywidgets

    boxes = [_box(ipywidgets, number, question) for number, question in enumerate(questions, start=1)]
    return ipywidgets.VBox(boxes).add_class("grpo-lab-questions")


def _as_text(number: int, question: Question) -> str:
    return "\n".join([f"{number}. {question.text}", *(f"   ( ) {option}" for option, _ in question.options)])


def _box(widgets: Any, number: int, question: Question) -> Any:
    options = [(option, index) for index, (option, _) in enumerate(question.options)]
    whole_width = widgets.Layout(width="max-content", max_width="100%")
    buttons = widgets.RadioButtons(options=options, value=None, layout=whole_width)
    reply = widgets.HTML()

    def answered(change: Any) -> None:
        if change["new"] is not None:
            reply.value = explanation(question, change["new"])

    buttons.observe(answered, names="value")
    return widgets.VBox([widgets.HTML(f"<strong>{number}. {escape(question.text)}</strong>"), buttons, reply])


def explanation(question: Question, chosen: int) -> str:
    """The explanation of a chosen option, as HTML."""
    word = text("question.right") if chosen == question.right else text("question.wrong")
    return f"<strong>{word}</strong> {escape(question.options[chosen][1])}"
