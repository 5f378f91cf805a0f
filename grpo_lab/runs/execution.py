"""A run in this process: train, put each event into the folder, tell how it ended, save the weights.

A Session does so for a run in its own process, and the child process for a Session of its parent.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grpo_lab.config.schema import Config, planned_steps
from grpo_lab.errors import GrpoLabError
from grpo_lab.events import Ended, Event, Resumed, Stepped, lineage
from grpo_lab.models import loading
from grpo_lab.runs import run_folder
from grpo_lab.runs.checkpoints import Checkpoints
from grpo_lab.runs.commands import CommandQueue, Stopped
from grpo_lab.runs.crashes import Resume, context_lost
from grpo_lab.runs.processes import trained
from grpo_lab.tasks.tasks import Tasks

BY_THE_USER, AT_ONCE = "by the user", "by the user, at once"
"""Messages of a run that was stopped: after its step, or in the middle of it."""


@dataclass
class Execution:
    """Training into a folder that is there, with its config; with `resume` the run in it goes on."""

    config: Config
    directory: Path
    commands: CommandQueue
    resume: Resume | None = None
    save_model: bool = False
    model: tuple[Any, Any] | None = None
    tasks: Tasks | None = None
    rewards: Sequence[Callable[..., Any]] | None = None
    leave: Callable[[str], None] | None = None
    """Called with the message of an error that cost the CUDA context, before `Ended`."""
    events: list[Event] = field(default_factory=list)
    """Those that are in the folder, without those that a resume replaced."""

    def run(self) -> Generator[Event]:
        """Train and yield the events, each of which is on disk by then.

        Raises RunError for a folder that cannot be written or that another process writes, and the GrpoLabError that
        ended the run, after `Ended`.
        """
        if self.resume:
            self.events = run_folder.read(self.directory)[1]
        try:
            with run_folder.writer(self.directory, self.config) as append:
                for event in self._train():
                    append(event)
                    self.events.append(event)
                    if isinstance(event, Resumed):
                        self.events = lineage(self.events)
                    yield event
        except OSError as error:
            raise run_folder.unwritable(self.directory, self.events, error) from error

    def _train(self) -> Iterator[Event]:
        """The events of training; the last one says how it ended. Then the weights are saved."""
        config, model, lost, mistake = self.config, self.model, False, None
        stopping, steps = self.commands.stopping.is_set, sum(planned_steps(config.to_dict()).values())
        checkpoints = Checkpoints(self.directory, config, self.resume, lambda: len(self.events), stopping)
        try:
            model = model or loading.load(config.model.name, config.model.precision, config.run.device)
            for event in trained(config, model, self.tasks, self.rewards, self.commands, checkpoints):
                yield event
                more = isinstance(event, Stepped) and event.step + 1 < steps  # and a checkpoint before the next step
                if stopping() and not (more or isinstance(event, Ended)):
                    raise Stopped
        except Stopped:
            yield Ended("stopped", BY_THE_USER)
        except GrpoLabError as error:
            yield Ended("failed", str(error))
            mistake = error
        except (Exception, SystemExit) as error:  # a reward function may call exit()
            ended = run_folder.write_crash(self.directory, error)
            if (lost := context_lost(error)) and self.leave:
                self.leave(ended.message)
            yield ended
        stepped = any(isinstance(event, Stepped) for event in self.events)
        if self.save_model and model and not lost and (stepped or not mistake):
            run_folder.save_model(self.directory, *model, merge=config.lora.save_merged)
        if mistake:
            raise mistake
