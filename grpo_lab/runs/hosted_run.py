"""The run folder of guards in somebody else's loop or trainer: it goes on where an earlier process left it."""

from contextlib import ExitStack
from pathlib import Path

from grpo_lab.config.schema import Config
from grpo_lab.errors import GrpoLabError, RunError
from grpo_lab.events import Ended, Event, Resumed, Started, Stepped, lineage, to_json
from grpo_lab.runs import run_folder

NAME = "hosted"
"""The name of such a run in its config."""


def check(folder: Path, over: bool = False) -> None:
    """Raise RunError for a folder with a run that guards must not go on with.

    That is one that other means than guards have written, and one that is over where that is not expected.
    """
    if (folder / run_folder.EVENTS).exists():
        config, events = run_folder.read(folder)
        if config.run.name != NAME or (events and isinstance(events[-1], Ended) and not over):
            raise RunError(f"{folder} already holds a run; choose another folder, or show it with `grpo-lab replay`")


class HostedRun:
    """The events of guards, each on disk before the next step; they hold the folder until `close`.

    Raises RunError while another process writes the folder.
    """

    def __init__(self, folder: Path, config: Config) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self._config, self.began = folder, config, False
        self._held = ExitStack()
        # A trainer that failed in a notebook is still there: the next one of this process may write on.
        self._held.enter_context(run_folder.held(folder, by_process=True))

    def begin(self, step: int, started: Started) -> None:
        """Begin with `step`: a new run, or the one that is there without what it did from `step` on."""
        self.began = True
        run_folder.go_on(self.folder, self._config)
        run_folder.write_environment(self.folder, self._config)
        if not (before := _written(self.folder)):
            self.append(started)
            return
        kept = (at for at, event in enumerate(before) if _replaced(event, step))
        self.append(Resumed(step, next(kept, len(before)), "the loop began again"))

    def append(self, event: Event) -> None:
        """Write an event."""
        with (self.folder / run_folder.EVENTS).open("a", encoding="utf-8") as file:
            file.write(to_json(event) + "\n")

    def close(self, end: Ended) -> None:
        """Write the end, if there was a step, and let other processes write."""
        if self.began:
            self.append(end)
        self._held.close()

    def fail(self, error: BaseException) -> None:
        """Write that an error ended the run, with its traceback if it is no message to the user."""
        if isinstance(error, GrpoLabError):
            self.close(Ended("failed", str(error)))
        elif isinstance(error, KeyboardInterrupt):
            self.close(Ended("stopped", "interrupted"))
        else:
            self.close(run_folder.write_crash(self.folder, error))


def _written(folder: Path) -> list[Event]:
    """The events that hold so far, without a last line that a killed process left half-written."""
    if not (folder / run_folder.EVENTS).exists():
        return []
    run_folder.cut_half_line(folder)
    return lineage(run_folder.whole_events(folder))


def _replaced(event: Event, step: int) -> bool:
    """Whether a run that goes on with `step` replaces this event."""
    return isinstance(event, Ended) or (isinstance(event, Stepped) and event.step >= step)
