"""A learner's predictions: the first one is locked, and after the runs that it is about its verdict is shown."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_lab.course import answers
from grpo_lab.course.exercises import Exercise, Prediction, Values
from grpo_lab.course.judges import letter
from grpo_lab.errors import DataError
from grpo_lab.events import Ended
from grpo_lab.messages import text
from grpo_lab.runs.run_folder import EVENTS, whole_events

LOCKED = "locked.json"


@dataclass(frozen=True)
class Verdict:
    """A prediction beside the outcome; options that stand outside the cell have no text here."""

    title: str
    predicted: str
    outcome: str
    options: dict[str, str]

    def __str__(self) -> str:
        title = self.title if self.title[-1:] in "?？" else f"{self.title}{text('prediction.stop')}"
        if not self.options:
            return text("prediction.verdict", title=title, predicted=self.predicted, outcome=self.outcome)
        rows = {text("prediction.predicted"): self.predicted, text("prediction.was"): self.outcome}
        return "\n".join([title, *(f"    {what:13}  {each}: {self.options[each]}" for what, each in rows.items())])


class Predictions:
    """The predictions of a lab, with its folders of answers and runs."""

    def __init__(self, answers: Path, runs: Path) -> None:
        self._answers, self._runs = answers, runs
        self._open: dict[str, tuple[Prediction, str, set[Path]]] = {}

    def lock(self, exercise: Exercise, path: Path) -> str:
        """Save the first prediction, and return a sentence about it.

        Raises DataError for a file of predictions that cannot be read.
        """
        assert isinstance(exercise.check, Values)
        given = answers.values(exercise.check, answers.load(path))
        made = json.loads(json.dumps({name: each.value for name, each in given.items()}))  # JSON's keys are texts
        locked = self._locked()
        first = locked.setdefault(exercise.name, made)
        (self._answers / LOCKED).write_text(json.dumps(locked, indent=2) + "\n", encoding="utf-8")
        said = "locked_names"
        if isinstance(exercise.check, Prediction):  # the one of lab 8 is compared with an exercise that follows
            self._open[exercise.name], said = (exercise.check, exercise.title, self._ended()), "locked"
        words = ", ".join(f"{name} = {_shown(value)}" for name, value in first.items())
        return text(f"prediction.{said if first == made else 'stays'}", words=words)

    def verdicts(self) -> Iterator[Verdict]:
        """The verdicts that are due: enough runs have ended since the prediction. Each is given once."""
        for name, (check, title, before) in list(self._open.items()):
            if len(self._ended() - before) < check.runs:
                continue
            del self._open[name]
            (predicted,) = self._locked()[name].values()
            options = answers.options((self._answers / f"{name}.py").read_text(encoding="utf-8"))
            yield Verdict(title, letter(predicted), check.outcome, options)

    def _locked(self) -> dict[str, dict[str, Any]]:
        file = self._answers / LOCKED
        try:
            return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        except ValueError:
            raise DataError(f"{file} cannot be read any more; delete it to lock predictions again") from None

    def _ended(self) -> set[Path]:
        folders = {file.parent for file in self._runs.rglob(EVENTS)}
        return {each for each in folders if any(isinstance(event, Ended) for event in whole_events(each)[-1:])}


def _shown(value: Any) -> str:
    """A prediction as the learner wrote it: JSON made texts of the numbers that are keys."""
    if not isinstance(value, dict):
        return repr(value)
    return "{" + ", ".join(f"{key if key.isdecimal() else repr(key)}: {each!r}" for key, each in value.items()) + "}"
