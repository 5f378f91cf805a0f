"""One run at a time in a child process of the pool, shown by a view and controlled from any thread."""

import shutil
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path

from grpo_lab.analysis.run_state import fold
from grpo_lab.analysis.screen_words import describe
from grpo_lab.config.schema import LIVE_SECTIONS, Config, live_changes
from grpo_lab.errors import ConfigError, GrpoLabError
from grpo_lab.messages import text
from grpo_lab.runs import checkpoints, child_pool, run_folder
from grpo_lab.runs.child import Child
from grpo_lab.runs.session import Session, View
from grpo_lab.training.registry import check
from grpo_lab.ui import html, notebook_mode

CHECKPOINT_MINUTES = 0.1


class Run(Session):
    """A session whose representation in a notebook describes its state."""

    def __repr__(self) -> str:
        return f"{describe(fold(self.events))} ({self.directory})"

    def _repr_html_(self) -> str:
        return html.fill("paragraph", repr(self))  # JupyterLab breaks plain text inside words


class Runner:
    """Starts runs below a folder, one at a time."""

    def __init__(self, runs: Path) -> None:
        self.runs = runs
        self.session: Run | None = None
        self.over: Future[Run] | None = None
        """Resolves at the end of the last run started; None before the first."""
        self._starting = threading.Lock()

    @property
    def running(self) -> bool:
        """Whether a run is going on."""
        return self.over is not None and not self.over.done()

    def start(self, config: Config, view: View, pace: float = 0) -> Future[Run]:
        """Begin a run, shown by a view, and return a future of its end; during a run, that run's future.

        `pace` is the most steps a second; 0 is full speed.

        Raises ConfigError for a config that cannot be run, RunError for a folder that cannot be made.
        """

        def make(child: Child) -> Run:
            directory = run_folder.new_folder(self.runs / f"{time.strftime('%Y%m%d-%H%M%S')}-{config.run.name}")
            return Run(_with_checkpoints(notebook_mode.settled(config)), directory, child=child)

        check(config)
        return self._begin(make, view, pace)

    def go_on(self, old: Session, config: Config, view: View, pace: float = 0) -> Future[Run]:
        """Go on with a run that is over, from its newest checkpoint, with the settings of `config` that may change.

        Raises RunError for a run that cannot go on.
        """
        recover = live_changes(old.config, config)
        return self._begin(lambda child: Run.resume(old.directory, recover, child=child), view, pace)

    def _begin(self, make: Callable[[Child], Run], view: View, pace: float) -> Future[Run]:
        with self._starting:
            if self.over and self.running:
                return self.over
            child = child_pool.take()
            try:
                session, over = make(child), Future[Run]()
                session.views.append(view)
                session.command("pace", (str(pace),))
                over.set_running_or_notify_cancel()  # cancelling the wait for it must not end the run
                work = (session, child, over)
                threading.Thread(target=_run, args=work, name=f"run {session.directory.name}", daemon=True).start()
            except BaseException:
                child_pool.give_back(child)
                raise
            self.session, self.over = session, over
            return over

    def command(self, name: str, *values: str) -> bool:
        """Send a command to the run that is going on; return whether there is one."""
        if not self.running or self.session is None:
            return False
        self.session.command(name, values)
        return True

    def act_now(self, overrides: Sequence[str]) -> str:
        """Apply the settings that a running model accepts; returns in words which settings act when."""
        what = ", ".join(overrides)
        live = [each for each in overrides if each.partition(".")[0].strip() in LIVE_SECTIONS]
        if not (self.running and self.session and live):
            return text("panel.acts_next_run", what=what)
        try:
            self.session.set(*live)
        except ConfigError as error:
            return f"{text('panel.acts_next_run', what=what)} {error}"
        return text("panel.acts_now" if len(live) == len(overrides) else "panel.acts_partly", what=what)


def _with_checkpoints(config: Config) -> Config:
    """The config with a checkpoint every few seconds, where the model is small and the run has any."""
    small = config.model.name == "tiny" and config.run.checkpoint_minutes
    return config.with_(f"run.checkpoint_minutes={CHECKPOINT_MINUTES}") if small else config


def _run(session: Run, child: Child, over: Future[Run]) -> None:
    """The thread of a run. The future resolves last, when the child can take the next run."""
    failure: BaseException | None = None
    try:
        session.run()
        if session.status == "done":
            shutil.rmtree(session.directory / checkpoints.FOLDER, ignore_errors=True)
    except GrpoLabError:
        pass  # the view has it: the last event is `failed`, with the reason
    except BaseException as error:
        failure = error
    finally:
        child_pool.give_back(child)
    if failure:
        over.set_exception(failure)
    else:
        over.set_result(session)
