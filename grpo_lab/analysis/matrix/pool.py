"""Runs cells in parallel, each in a child process that is kept for the next cell; a child that dies loses one cell."""

import atexit
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from functools import cache
from pathlib import Path

from grpo_lab.analysis.matrix.cells import Cell, Journal, Measurement, measure
from grpo_lab.errors import GrpoLabError
from grpo_lab.events import Ended
from grpo_lab.runs.child import Child
from grpo_lab.runs.clusters import Cluster, WorkerLost, side_by_side
from grpo_lab.runs.run_folder import next_free
from grpo_lab.runs.session import Session


class Pool:
    """Child processes that run cell after cell, at most one for each thread that calls `run`.

    `limit` is the number of seconds that a cell may take. `keep` is a folder for the runs; without it they are removed.
    """

    def __init__(self, limit: float, keep: Path | None = None) -> None:
        self._limit, self._keep = limit, keep
        self._idle: list[Child] = []
        self._busy: set[Child] = set()

    def run(self, cell: Cell) -> Measurement:
        """The measurement of a cell, also if its process died or hung."""
        child = self._take()
        hung = threading.Event()

        def give_up() -> None:
            hung.set()
            child.stop(at_once=True)

        timer = threading.Timer(self._limit, give_up)
        timer.start()
        try:
            with self._folder(cell) as directory:
                session = Session(cell.config, directory, child=child)
                with suppress(GrpoLabError):  # a user's mistake, recorded in the session's last event
                    session.run()
        finally:
            timer.cancel()
            self._busy.discard(child)
            self._idle.append(child)
        if hung.is_set():
            child.wait()
            return measure(cell, session.events, "hung", f"no end within {self._limit:g} s")
        ended = session.ended or Ended("failed", "no end was recorded")
        died = not child.alive and ended.message == child.last_words
        status = f"died: {child.signal or f'exit code {child.process.returncode}'}" if died else ended.status
        return measure(cell, session.events, status, " ".join(ended.message.split())[:200])

    def stop(self) -> None:
        """End the running cells at once."""
        for child in list(self._busy):
            child.stop(at_once=True)

    def close(self) -> None:
        """End the idle children."""
        while self._idle:
            self._idle.pop().close()

    def _take(self) -> Child:
        child = None
        with suppress(IndexError):  # none is idle; another thread may have taken the last one
            child = self._idle.pop()
        if not child or not child.alive:
            child = Child()
            child.ready()  # imports take many seconds on a busy machine, and do not count towards the limit
        self._busy.add(child)
        return child

    def _folder(self, cell: Cell) -> AbstractContextManager[str | Path]:
        if self._keep:
            return nullcontext(next_free(self._keep / cell.scenario / f"{cell.column}, seed {cell.seed}"))
        return tempfile.TemporaryDirectory(prefix="grpo-lab-", ignore_cleanup_errors=True)


class FarPool:
    """Workers of a cluster that run cells, each in a child process of its own, as `Pool` does here."""

    def __init__(self, cluster: Cluster, limit: float, keep: Path | None = None) -> None:
        self._cluster, self._given = cluster, (limit, keep.resolve() if keep else None)

    def run(self, cell: Cell) -> Measurement:
        """The measurement of a cell, also if its workers died. Raises RunError for a worker with other code."""
        try:
            return self._cluster.run(run_cell, cell, *self._given)
        except WorkerLost as error:
            return measure(cell, [], "died: worker", str(error))

    def close(self) -> None:
        """Leave the cluster, and the running cells."""
        self._cluster.close()

    stop = close


def run_cell(cell: Cell, limit: float, keep: Path | None) -> Measurement:
    """The measurement of a cell, on a worker."""
    return _pool(limit, keep).run(cell)


@cache
def _pool(limit: float, keep: Path | None) -> Pool:
    """The pool of this worker, whose child waits for the next cell."""
    pool = Pool(limit, keep)
    atexit.register(pool.close)
    return pool


def run_all(
    cells: Sequence[Cell],
    journal: Journal,
    pool: Pool | FarPool,
    jobs: int,
    tell: Callable[[Measurement], None] = lambda result: None,
) -> bool:
    """Run the cells that are not finished, `jobs` at a time, keep each result at once, and return whether all are.

    After Ctrl-C the running cells finish and no other starts; a second Ctrl-C ends them at once.
    """
    todo = {cell.key: cell for cell in cells if not journal.has(cell)}
    finished = 0
    with closing(side_by_side(list(todo.values()), pool.run, jobs, pool.stop)) as results:
        for result in results:
            journal.add(result)
            tell(result)
            finished += 1
    return finished == len(todo)
