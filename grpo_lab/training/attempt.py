"""One attempt at a step: values pass through the interventions of each stage, and the actions are recorded."""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NoReturn

from torch import Tensor

from grpo_lab.events import Action, Ended, LinkNote, Stage, Verdict
from grpo_lab.training.interventions import Arrangement, Outcome, Step
from grpo_lab.training.objectives import Objective


class Refused(Exception):
    """A guard refused the rest of this step. The trainer catches it; a user never sees it."""


class Attempt:
    """A step as the trainer runs it: interventions read `step`, the other fields record events.

    `samples` are a few (prompt, completion, reward), and `extras` the values that reward functions logged for them.
    `refusal` is the reason for which the trainer itself, and no guard, refused the step.
    """

    def __init__(self, step: Step, interventions: Arrangement) -> None:
        self.step = step
        self.actions: list[Action] = []
        self.verdict = Verdict.KEEP
        self.refusal = ""
        self.samples: tuple[tuple[str, str, float], ...] = ()
        self.extras: dict[str, tuple[Any, ...]] = {}
        self.notes: tuple[tuple[LinkNote, ...], dict[str, float]] | None = None  # of the recorder, once they are read
        self.started = time.perf_counter()
        self._interventions = interventions

    @property
    def reason(self) -> str:
        """The reason of the action with the worst verdict, the first of equals."""
        return max(self.actions, key=lambda action: action.verdict).reason

    def intervenes(self, stage: Stage) -> bool:
        """Whether anything wants the values of this stage."""
        return bool(self._interventions.get(stage))

    def replace(self, **known: Any) -> None:
        """Replace fields of the step that interventions read from now on."""
        self.step = replace(self.step, **known)

    def turn_to(self, objective: Objective | None, **known: Any) -> None:
        """Let interventions read, and the recorder note, what belongs to this objective; None for all together."""
        self.step.recorder.objective = objective.name if objective else ""
        self.replace(objective=objective, **known)

    def apply(self, stage: Stage, value: Any, note: str = "") -> Any:
        """Pass the value through the interventions of the stage, in their order, and return the result.

        The recorder notes a tensor as it leaves. Raises Refused when a verdict is SKIP_STEP or worse.
        """
        worst, acting = Verdict.KEEP, self._interventions.get(stage, ())
        if acting:
            self.replace(note=note)
        for kind, intervention in acting:
            value, verdict, reason, known = Outcome(*intervention(value, self.step))
            if known:
                self.replace(**known)
            if verdict or reason:
                self.record_action(intervention.name, stage, Verdict(verdict), reason, kind)
            worst = max(worst, verdict)
        if isinstance(value, Tensor):
            self.step.recorder.tensor(stage, value, self.step.update, note)
        if worst >= Verdict.SKIP_STEP:
            raise Refused
        return value

    def record_action(self, name: str, stage: Stage, verdict: Verdict, reason: str, kind: str = "trainer") -> None:
        """Record an action of an intervention, or of the trainer itself; the worst verdict becomes the step's."""
        self.actions.append(Action(name, kind, stage, self.step.update, verdict, reason))
        self.verdict = max(self.verdict, verdict)

    def refuse(self, name: str, stage: Stage, reason: str) -> NoReturn:
        """Refuse the step by the trainer itself, as for want of a reward. Raises Refused."""
        self.record_action(name, stage, Verdict.SKIP_STEP, reason)
        self.refusal = reason
        raise Refused


def ended(refusals: Sequence[str], updates: int) -> Ended:
    """The end of a run, from the trainer's reasons for refusing the last stage's steps, empty for one not refused.

    Where it refused all of them and no update was made, nothing was trained.
    """
    if updates or not refusals or not all(refusals):
        return Ended("done")
    reason = f"nothing was trained: every step was refused, the last because {refusals[-1]}; mend that and train again"
    return Ended("stopped", reason)
