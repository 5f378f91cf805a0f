"""Review questions: each answer is explained at once and never saved."""

from collections.abc import Sequence
from typing import Any

from grpo_lab.course.exercises import Question
from grpo_lab.messages import text
from grpo_lab.ui import html
from grpo_lab.ui.notebook import feedback_view
from grpo_lab.ui.notebook_mode import headless


def ask(questions: Sequence[Question]) -> None:
    """Show the questions: radio buttons with explanations, and for readers without a kernel folded replies.

    Without a notebook, they are text.
    """
    if headless():
        feedback_view.show("\n\n".join(_as_text(number, each) for number, each in enumerate(questions, start=1)))
        return
    from IPython.display import HTML, display

    # A reader without a kernel would see the plain text of the widget.
    display({**(buttons(questions)._repr_mimebundle_() or {}), "text/plain": ""}, raw=True)
    # Hidden beside the widget; without a kernel, the reply to an option folds out.
    display(HTML(html.fill("questions", questions)))


def buttons(questions: Sequence[Question]) -> Any:
    """The questions as a widget."""
    import ipywidgets

    boxes = [_box(ipywidgets, number, question) for number, question in enumerate(questions, start=1)]
    return ipywidgets.VBox(boxes).add_class("grpo-lab-questions")


def explanation(question: Question, chosen: int) -> str:
    """The explanation of a chosen option, as HTML."""
    word = text("question.right") if chosen == question.right else text("question.wrong")
    return html.fill("explanation", word, question.options[chosen][1])


def _as_text(number: int, question: Question) -> str:
    return "\n".join([f"{number}. {question.text}", *(f"   ( ) {option}" for option, _ in question.options)])


def _box(widgets: Any, number: int, question: Question) -> Any:
    options = [(option, index) for index, (option, _) in enumerate(question.options)]
    whole_width = widgets.Layout(width="max-content", max_width="100%")
    choice = widgets.RadioButtons(options=options, value=None, layout=whole_width)
    reply = widgets.HTML()

    def answered(change: Any) -> None:
        if change["new"] is not None:
            reply.value = explanation(question, change["new"])

    choice.observe(answered, names="value")
    return widgets.VBox([widgets.HTML(html.fill("question", number, question.text)), choice, reply])
