"""The functions that the cells of a lab call: exercises, runs, panel, questions and export."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from grpo_lab import messages
from grpo_lab.config.schema import Config
from grpo_lab.course import answers, pages, progress, trials
from grpo_lab.course.answers import MAGIC
from grpo_lab.course.evaluate import all_right, check
from grpo_lab.course.exercises import Exercise, Function, Naming, Question, Values
from grpo_lab.course.progress import MARKS, Row
from grpo_lab.course.registry import lab_page
from grpo_lab.errors import NotYet, Unanswered, check_known
from grpo_lab.messages import text
from grpo_lab.runs.child import warm_child, warm_up
from grpo_lab.runs.run_folder import new_folder
from grpo_lab.runs.session import Session
from grpo_lab.ui import html
from grpo_lab.ui.notebook import feedback_view
from grpo_lab.ui.notebook.predictions import Predictions
from grpo_lab.ui.notebook.scoreboard import Runs, Scoreboard
from grpo_lab.ui.notebook_mode import headless, settled
from grpo_lab.ui.widgets.exports import figures, write_zip

if TYPE_CHECKING:
    from grpo_lab.ui.widgets import Panel


class Lab:
    """One lab in a notebook: `lab = Lab("02_explosion")`, with `language="zh"` in Chinese.

    In a notebook, a cell that begins with `%%exercise <name>` is an answer: it is saved as answers/<lab>/<name>.py,
    where a config can refer to its definitions, and checked. An unfinished answer raises Unanswered or NotYet, shown
    in one line, so that Run All stops there.

    Raises ConfigError for an unknown lab or language.
    """

    def __init__(self, name: str, language: str | None = None) -> None:
        if language:
            messages.use(language)
        self.page = pages.in_language(lab_page(name), messages.language())
        self.name = name
        self.answers, self.runs = Path("answers") / name, Path("runs") / name
        self._earned: dict[str, float] = {}
        self._predictions = Predictions(self.answers, self.runs)
        if ipython := feedback_view.ipython():
            ipython.register_magic_function(self.exercise, "cell", MAGIC)
            for hook in list(ipython.events.callbacks["post_run_cell"]):
                earlier = getattr(hook, "__self__", None)
                if isinstance(earlier, Lab) and earlier.name == name:  # which an earlier cell made
                    self._predictions = earlier._predictions
                    ipython.events.unregister("post_run_cell", hook)
            ipython.events.register("post_run_cell", self.show_verdicts)
        if not headless():
            warm_up()

    def exercise(self, line: str, cell: str, tell: Callable[..., None] = feedback_view.feedback) -> None:
        """The cell magic: save the answer, check it, and show feedback; ask a prediction by radio buttons.

        Raises Unanswered for an unfinished cell, NotYet for an answer that is not right.
        """
        exercise = self._exercise(line.strip())
        if answers.by_clicks(exercise.check, cell) and answers.stub_line(cell) and not headless():
            self._ask(exercise, cell)
            raise Unanswered(text("exercise.unanswered", title=exercise.title))
        path = self._path(exercise)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(answers.file_text(exercise.name, cell), encoding="utf-8")
        self._earned[exercise.name] = 0.0
        with feedback_view.checking(), trials.watched(runs := Runs()):
            findings = check(exercise, path)
        progress.record(Path(), self.name, exercise.name, findings)
        if all_right(findings):
            self._earned[exercise.name] = float(exercise.points)
        note = self._predictions.lock(exercise, path) if exercise.kind == "prediction" and all_right(findings) else ""
        tell(exercise, findings, note, self.page.cell_id(exercise.name))
        if isinstance(exercise.check, Values) and exercise.check.scoreboard and runs.steps:
            (tried,) = answers.values(exercise.check, answers.load(path)).values()
            (board := self.scoreboard()).add(tried.value, findings, runs)
            feedback_view.show(repr(board), board._repr_html_())
        if not all_right(findings):
            if isinstance(exercise.check, Naming) and tell is feedback_view.feedback and not headless():
                self._ask(exercise, cell)
            right = sum(finding.right for finding in findings)
            raise NotYet(text("feedback.so_far", title=exercise.title, right=right, all=len(findings)))

    def _ask(self, exercise: Exercise, cell: str) -> None:
        """Show the radio buttons or menus of an exercise; those of a gallery begin with an earlier answer."""
        from grpo_lab.ui.notebook import forms  # imports matplotlib and ipywidgets

        def check(source: str) -> str:
            told: list[str] = []
            with suppress(NotYet):
                self.exercise(exercise.name, source, lambda *found: told.append(feedback_view.whole(*found)))
            return told[0]

        given: Any = None
        if isinstance(asked := exercise.check, Naming):
            for name in filter(None, (asked.earlier, exercise.name)):
                with suppress(NotYet, Unanswered):
                    given = answers.values(asked, answers.load(self.answers / f"{name}.py"))["answer"].value
        _display(forms.form(exercise, cell, check, given))

    def show_verdicts(self, *_: Any) -> None:
        """Show the verdicts that are due on predictions; a notebook calls it after each cell."""
        for verdict in self._predictions.verdicts():
            feedback_view.show(str(verdict), html.fill("verdict", str(verdict)))

    def points(self, name: str) -> float:
        """The points of an answer when its cell last ran here, otherwise 0.0. nbgrader's cells end with it.

        It runs no code of the answer, whose output or warnings nbgrader would read.
        """
        return self._earned.get(self._exercise(name).name, 0.0)

    def answer(self, name: str) -> ModuleType:
        """The answer as a module: `lab.answer("clamp").clamped(...)`. Raises Unanswered if there is no answer yet."""
        return answers.load(self._path(self._exercise(name)))

    def path(self, name: str, inside: str | None = None) -> str:
        """The function or class of an answer as a config names it: `answers/02_explosion/clamp.py:clamped`.

        Without `inside`, the function that the exercise asks for. Raises Unanswered if there is no answer yet.
        """
        exercise = self._exercise(name)
        answers.load(self._path(exercise))
        asked = exercise.check.name if isinstance(exercise.check, Function) else exercise.name
        return f"{self._path(exercise).as_posix()}:{inside or asked}"

    def panel(self, *scenario: Any, **options: Any) -> Panel:
        """A `Panel` with its runs below runs/<lab> and the arguments of `Panel`."""
        from grpo_lab.ui.widgets import Panel  # imports matplotlib and ipywidgets

        return Panel(*scenario, runs=self.runs, **options)

    def run(self, config: Config, name: str | None = None) -> Session:
        """Train to the end in a child process, below runs/<lab>; returns after a crash too."""
        config = settled(config.with_(f"run.name={name or config.run.name}"))
        with warm_child() as child:
            session = Session(config, new_folder(self.runs / config.run.name), child=child)
            session.views.append(feedback_view.RunLine(config))
            return session.run()

    def progress(self) -> None:
        """Show every exercise of every lab: passed, attempted or open."""
        rows = progress.rows(Path(), messages.language())
        feedback_view.show(progress_as_text(rows), html.fill("progress", list(_labs(rows)), MARKS))

    def scoreboard(self) -> Scoreboard:
        """The sets of guards that were tried in this lab: what each stopped and cost, fewest guards first."""
        return Scoreboard(self.answers / "scoreboard.json")

    def questions(self) -> None:
        """Show the review questions of the lab with radio buttons; as text without a notebook."""
        ask(self.page.questions)

    def export(self) -> Path:
        """Write answers, runs and figures of this lab to one zip file, and return its path."""
        found = [file for folder in (self.answers, self.runs) for file in sorted(folder.rglob("*")) if file.is_file()]
        files = [(file.as_posix(), file) for file in found if "__pycache__" not in file.parts]
        return write_zip(Path(f"{self.name}.zip"), [*files, *figures(self.runs)])

    def _exercise(self, name: str) -> Exercise:
        """The exercise of this lab. Raises ConfigError for an unknown one."""
        check_known(f"exercise of {self.name}", [name], self.page.exercises)
        return self.page.exercises[name]

    def _path(self, exercise: Exercise) -> Path:
        return self.answers / f"{exercise.name}.py"


def ask(questions: Sequence[Question]) -> None:
    """Show the questions: radio buttons with explanations, and for readers without a kernel folded replies.

    Without a notebook, they are text.
    """
    if headless():
        said = [
            "\n".join([f"{number}. {each.text}", *(f"   ( ) {option}" for option, _ in each.options)])
            for number, each in enumerate(questions, start=1)
        ]
        return feedback_view.show("\n\n".join(said))
    from IPython.display import HTML, display

    _display(buttons(questions))
    # Hidden beside the widget; without a kernel, the reply to an option folds out.
    display(HTML(html.fill("questions", questions)))


def _display(widget: Any) -> None:
    """Show a widget, without the plain text that a reader without a kernel would see."""
    from IPython.display import display

    display({**(widget._repr_mimebundle_() or {}), "text/plain": ""}, raw=True)


def buttons(questions: Sequence[Question]) -> Any:
    """The questions as a widget."""
    import ipywidgets

    def box(number: int, question: Question) -> Any:
        options = [(option, index) for index, (option, _) in enumerate(question.options)]
        layout = {"width": "max-content", "max_width": "100%"}
        choice = ipywidgets.RadioButtons(options=options, value=None, layout=layout)
        reply = ipywidgets.HTML()
        explained = partial(html.fill, "explanation", question)
        choice.observe(lambda change: setattr(reply, "value", explained(change["new"])), names="value")
        return ipywidgets.VBox([ipywidgets.HTML(html.fill("question", number, question.text)), choice, reply])

    return ipywidgets.VBox([box(*each) for each in enumerate(questions, start=1)]).add_class("grpo-lab-questions")


def progress_as_text(rows: Iterable[Row]) -> str:
    """A heading a lab, and a line an exercise."""
    lines = []
    for heading, of_lab in _labs(rows):
        lines.append(heading)
        lines += [f"  {MARKS[row.status]} {text(f'progress.{row.status}'):9}  {row.exercise.title}" for row in of_lab]
    return "\n".join(lines)


def _labs(rows: Iterable[Row]) -> Iterator[tuple[str, list[Row]]]:
    for page, group in itertools.groupby(rows, operator.attrgetter("lab")):
        of_lab = list(group)
        passed = sum(row.status == "passed" for row in of_lab)
        number = page.name.partition("_")[0].lstrip("0") or "0"
        heading = text("progress.lab", title=page.title, passed=passed, all=len(of_lab))
        yield f"{number}. {heading}", of_lab
