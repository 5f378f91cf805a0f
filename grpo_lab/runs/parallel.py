"""Many independent tasks, a few at a time: Ctrl-C lets the running ones end, a second one ends them at once."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

from joblib import Parallel, delayed

from grpo_lab.runs.commands import ctrl_c

Task = TypeVar("Task")
Done = TypeVar("Done")


def side_by_side(
    tasks: Sequence[Task], run: Callable[[Task], Done], jobs: int, end: Callable[[], None]
) -> Generator[Done]:
    """What `run` gives for each task, as they come, from `jobs` threads.

    Threads, because each task's work is done in a process of its own: a pool of processes dies whole with one crash.
    Fewer than there are tasks come out where Ctrl-C stopped it. `end` ends what is running, at once; so does closing
    this generator before its end.
    """
    stopping = threading.Event()
    # A single job of joblib's would run in the main thread, which has Ctrl-C to listen to.
    gate, threads = threading.Semaphore(jobs), max(2, jobs)

    def one(task: Task) -> tuple[Done] | None:
        with gate:
            return None if stopping.is_set() else (run(task),)

    results: Any = None  # joblib's annotations know no generator alone, and "auto" alone
    one_by_one: Any = 1
    parallel = Parallel(n_jobs=threads, backend="threading", batch_size=one_by_one, return_as="generator_unordered")
    try:
        with ctrl_c(stopping.set, stopping):
            results = parallel(delayed(one)(task) for task in tasks)
            for result in filter(None, results):
                yield result[0]
    except BaseException:
        stopping.set()
        end()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of tasks that are given up, which is what was asked for
            if results is not None:
                results.close()
        raise
