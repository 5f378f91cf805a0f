"""One run at a time in a warm child, told to a view, and commanded from any thread."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from pathlib import Path

from grpo_lab.analysis.run_state import describe, fold
from grpo_lab.config.schema import Config
from grpo_lab.errors import GrpoLabError, RunError
from grpo_lab.runs import child_pool, notebook_mode, run_folder
from grpo_lab.runs.child import Child
from grpo_lab.runs.session import Session, View
from grpo_lab.training.registry import validated


class Run(Session):
    """A session that says how it stands where a notebook shows it."""

    def __repr__(self) -> str:
        return f"{describe(fold(self.events))} ({self.directory})"


class Runner:
    """Starts runs below a folder, one at a time."""

    def __init__(self, runs: Path) -> None:
        self.runs = runs
        self.session: Run | None = None
        self._over: Future[Run] | None = None
        self._starting = threading.Lock()

    @property
    def over(self) -> Future[Run] | None:
        """What tells the end of the last run started, if there was one."""
        return self._over

    @property
    def running(self) -> bool:
        """Whether a run was started that is not over."""
        return self._over is not None and not self._over.done()

    def start(self, config: Config, view: View) -> Future[Run]:
        """Begin a run, told to a view, and return what tells its end; while one is going on, that one's.

        Raises ConfigError for a config that cannot be run, RunError for a folder that cannot be made.
        """
        with self._starting:
            if self._over and not self._over.done():
                return self._over
            validated(config)
            directory = _new_folder(self.runs / f"{time.strftime('%Y%m%d-%H%M%S')}-{config.run.name}")
            child = child_pool.take()
            try:
                session = Run(notebook_mode.settled(config), directory, child=child)
            except BaseException:
                child_pool.give_back(child)
                raise
            session.views.append(view)
            self.session, self._over = session, Future()
            self._over.set_running_or_notify_cancel()  # who waits for it may give up; the run goes on
            work = (session, child, self._over)
            threading.Thread(target=_run, args=work, name=f"run {directory.name}", daemon=True).start()
            return self._over


def _new_folder(wanted: Path) -> Path:
    """Made at once, so that two panels that start within a second have two folders."""
    try:
        while True:
            free = run_folder.next_free(wanted)
            try:
                free.mkdir(parents=True)
                return free
            except FileExistsError:
                continue
    except OSError as error:
        raise RunError(
            f"{wanted} cannot be made: {error.strerror}; start Jupyter in a folder you may write to"
        ) from error


def _run(session: Run, child: Child, over: Future[Run]) -> None:
    """The thread of a run. Its end is told last, when the child can take the next run."""
    failure: BaseException | None = None
    try:
        session.run()
    except GrpoLabError:
        pass  # the view was told: the last event says `failed`, and why
    except BaseException as error:
        failure = error
    finally:
        child_pool.give_back(child)
    if failure:
        over.set_exception(failure)
    else:
        over.set_result(session)
