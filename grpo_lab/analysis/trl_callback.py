"""The diagnosis as a callback of TRL's and transformers' trainers: it says during training what it sees."""

from __future__ import annotations

import dataclasses
import sys
import traceback
from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback

from grpo_lab import messages
from grpo_lab.analysis import logs
from grpo_lab.analysis.diagnosis import Diagnosis, diagnose
from grpo_lab.analysis.diagnosis.report import Words
from grpo_lab.analysis.logs.beside import flat
from grpo_lab.errors import ConfigError
from grpo_lab.hosted.trainers import calls


class DiagnoseCallback(TrainerCallback):
    """Diagnoses a run of TRL from the rows that its trainer logs, every few steps, and at the end.

    Every `every` steps it says the headline; the whole diagnosis is said at the end of training, unless nothing is
    wrong, and after the traceback of an exception that ends the program, each in the user's language (`GRPO_LAB_LANG`).
    `diagnosis` is the last one. With `stop_on_failure`, training ends at the next step after a failure, as with
    `control.should_training_stop`; the trainer then saves as it always does.

    >>> DiagnoseCallback(every=5).diagnosis is None
    True

    Raises ConfigError for `every` below 1.
    """

    def __init__(self, every: int = 10, stop_on_failure: bool = False, say: Callable[[str], Any] = print) -> None:
        if every < 1:
            raise ConfigError(f"every={every}: the callback diagnoses every so many steps; give 1 or more")
        self.every, self.stop_on_failure, self.say = every, stop_on_failure, say
        self.diagnosis: Diagnosis | None = None
        self._next = every
        self._hook: Callable[..., Any] | None = None
        self._last: tuple[Any, Any] | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Begin anew, and wait for an exception: a trainer tells its callbacks nothing of it."""
        self.diagnosis, self._next = None, state.global_step + self.every
        if self._hook is None:
            self._hook, sys.excepthook = sys.excepthook, self._raised
        self._last = args, state

    def on_log(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Diagnose the rows so far, if as many steps as `every` were made since the last time."""
        self._last = args, state
        if state.global_step >= self._next:
            self._next = state.global_step + self.every
            self._look(args, state)
            if self.diagnosis:
                word = Words(messages.language())
                self.say(word("at_step", step=state.global_step, said=self.diagnosis.headline(word.language)))
                if self.stop_on_failure and any(each.cause.level == "failure" for each in self.diagnosis.findings):
                    control.should_training_stop = True

    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Diagnose the whole run."""
        self._put_back()
        self._look(args, state)
        if self.diagnosis and self.diagnosis.findings:
            self.say(self.diagnosis.text(Words(messages.language()).count("step", state.global_step)))

    def _put_back(self) -> None:
        if self._hook is not None and sys.excepthook == self._raised:  # a later hook goes on to call this one
            sys.excepthook, self._hook = self._hook, None

    def _raised(self, kind: type[BaseException], error: BaseException, trace: Any) -> None:
        """Let the traceback be shown, then say what the rows so far show, if this training raised the exception.

        An exception of the training may have been caught, so that the hook meets one of the program after it.
        """
        assert self._hook is not None
        self._hook(kind, error, trace)
        self._put_back()
        if not any(calls(frame.f_locals.get("self"), self) for frame, _ in traceback.walk_tb(trace)):
            return
        if self._last:
            self._look(*self._last, f"{kind.__name__}: {error}")
        if self.diagnosis:
            self.say(self.diagnosis.text())

    def _look(self, args: Any, state: Any, crash: str = "") -> None:
        if not state.is_world_process_zero or not state.log_history:
            return
        about = {"source": "trl", "settings": flat(args.to_dict()), "hides_nan": True, "crash": crash}
        log = dataclasses.replace(logs.from_dicts(state.log_history), **about)
        if len(log.steps):
            self.diagnosis = diagnose(log)
