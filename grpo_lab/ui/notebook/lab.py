"""What the cells of a lab call: its exercises, runs, panel, questions and export."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from grpo_lab.config.schema import Config
from grpo_lab.course import answers
from grpo_lab.course.answers import MAGIC
from grpo_lab.course.evaluate import all_right, check
from grpo_lab.course.exercises import Exercise, Finding, Function, Values
from grpo_lab.course.registry import lab_page
from grpo_lab.errors import DataError, NotYet, unknown
from grpo_lab.runs.child_pool import warm_child, warm_up
from grpo_lab.runs.notebook_mode import headless, settled
from grpo_lab.runs.run_folder import next_free
from grpo_lab.runs.session import Session
from grpo_lab.ui.notebook import feedback_view
from grpo_lab.ui.notebook.questions import ask

if TYPE_CHECKING:
    from grpo_lab.ui.widgets import Panel

LOCKED = "locked.json"


class Lab:
    """One lab in a notebook: `lab = Lab("02_explosion")`.

    In a notebook, a cell that begins with `%%exercise <name>` is an answer: it is written to
    answers/<lab>/<name>.py, from where a config can name what it defines, and looked at. The cell raises Unanswered or
    NotYet, in one line, where there is more to do, so that running all cells stops there.
    """

    def __init__(self, name: str) -> None:
        self.page = lab_page(name)
        self.name = name
        self.answers, self.runs = Path("answers") / name, Path("runs") / name
        self._earned: dict[str, float] = {}
        if ipython := feedback_view.ipython():
            ipython.register_magic_function(self.exercise, "cell", MAGIC)
        if not headless():
            warm_up()

    def exercise(self, line: str, cell: str) -> None:
        """The cell magic: keep the answer in its file, look at it, and say what is right and what is not yet."""
        exercise = self._exercise(line.strip())
        path = self._path(exercise)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(answers.file_text(exercise.name, cell), encoding="utf-8")
        self._earned[exercise.name] = 0.0
        with feedback_view.looking(exercise):
            findings = check(exercise, path)
        if all_right(findings):
            self._earned[exercise.name] = float(exercise.points)
        note = self._lock(exercise, path) if exercise.kind == "prediction" and all_right(findings) else ""
        feedback_view.feedback(exercise, findings, note)
        if not all_right(findings):
            raise NotYet(_progress(exercise, findings))

    def points(self, name: str) -> float:
        """What an answer earned when its cell was last run here; 0.0 where it was not. nbgrader's cells end with it.

        Nothing is run for it, so that nothing an answer prints or warns of can change what nbgrader reads.
        """
        return self._earned.get(self._exercise(name).name, 0.0)

    def answer(self, name: str) -> ModuleType:
        """The module that an answer is: `lab.answer("clamp").clamped(...)`.

        Raises Unanswered where there is none yet.
        """
        return answers.load(self._path(self._exercise(name)))

    def path(self, name: str, inside: str | None = None) -> str:
        """The function or class of an answer as a config names it: `answers/02_explosion/clamp.py:clamped`.

        Without `inside`, the function that the exercise asks for. Raises Unanswered where there is no answer yet.
        """
        exercise = self._exercise(name)
        answers.load(self._path(exercise))
        asked = exercise.check.name if isinstance(exercise.check, Function) else exercise.name
        return f"{self._path(exercise).as_posix()}:{inside or asked}"

    def panel(self, *scenario: Any, **options: Any) -> Panel:
        """A `Panel` whose runs lie below runs/<lab>; takes what Panel takes."""
        from grpo_lab.ui.widgets import Panel  # matplotlib and widgets, only where a panel is shown

        return Panel(*scenario, runs=self.runs, **options)

    def run(self, config: Config, name: str | None = None) -> Session:
        """A whole run in the warm child, below runs/<lab>; returns also when it crashed."""
        config = settled(config.with_(f"run.name={name or config.run.name}"))
        with warm_child() as child:
            session = Session(config, next_free(self.runs / config.run.name), child=child)
            session.views.append(feedback_view.RunLine(config))
            return session.run()

    def questions(self) -> Any:
        """The questions to ask oneself at the end, with radio buttons; as text where nobody can press them."""
        return ask(self.page.questions)

    def export(self) -> Path:
        """Answers, runs and figures of this lab in one zip file: its path."""
        path = Path(f"{self.name}.zip")
        part = path.with_suffix(".zip.part")  # a half-written file must not look like a whole one
        with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as archive:
            for folder in (self.answers, self.runs):
                for file in sorted(folder.rglob("*")):
                    if file.is_file() and "__pycache__" not in file.parts:
                        archive.write(file)
        part.replace(path)
        return path

    def _exercise(self, name: str) -> Exercise:
        if name not in self.page.exercises:
            raise unknown(f"exercise of {self.name}", name, self.page.exercises)
        return self.page.exercises[name]

    def _path(self, exercise: Exercise) -> Path:
        return self.answers / f"{exercise.name}.py"

    def _lock(self, exercise: Exercise, path: Path) -> str:
        """Keep the first prediction; say which one that is."""
        assert isinstance(exercise.check, Values)
        given = answers.values(exercise.check, answers.load(path))
        made = json.loads(json.dumps({name: each.value for name, each in given.items()}))  # as it is read back
        file = self.answers / LOCKED
        try:
            locked = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        except ValueError:
            raise DataError(f"{file} cannot be read any more; delete it, and predictions are locked anew") from None
        first = locked.setdefault(exercise.name, made)
        file.write_text(json.dumps(locked, indent=2) + "\n", encoding="utf-8")
        words = ", ".join(f"{name} = {value!r}" for name, value in first.items())
        if first == made:
            return f"Locked in: {words}. Now run it and see."
        return f"Your first prediction stays: {words}. To have been wrong is what predictions are for."


def _progress(exercise: Exercise, findings: Sequence[Finding]) -> str:
    right = sum(finding.right for finding in findings)
    return f"{exercise.title}: {right} of {len(findings)} right so far; change the cell and run it again"
