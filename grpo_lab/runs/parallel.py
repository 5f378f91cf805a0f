"""Many independent tasks, a few at a time: Ctrl-C lets the running ones end, as SIGTERM does; again, at once."""

import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from typing import TypeVar

from grpo_lab.runs.commands import signals

Task = TypeVar("Task")
Done = TypeVar("Done")


def side_by_side(
    tasks: Sequence[Task], run: Callable[[Task], Done], jobs: int, end: Callable[[], None]
) -> Generator[Done]:
    """The result of `run` for each task, in the order in which they are ready, from `jobs` threads.

    Threads are enough, because each task does its work in a process of its own; a pool of processes would die whole
    with one crash. After Ctrl-C or SIGTERM the tasks that did not begin have no result. `end` ends the running tasks
    at once; it is called when a task raises and when this generator is closed before its end.
    """
    stopping = threading.Event()

    def one(task: Task) -> tuple[Done] | None:
        return None if stopping.is_set() else (run(task),)

    with signals(stopping.set, stopping), ThreadPoolExecutor(jobs) as threads:
        try:
            waiting = {threads.submit(one, task) for task in tasks}
            while waiting:
                # Windows handles no Ctrl-C while a thread waits, so no wait is long.
                done, waiting = wait(waiting, timeout=0.5, return_when=FIRST_COMPLETED)
                yield from (result[0] for future in done if (result := future.result()))
        except BaseException:
            stopping.set()
            end()
            raise
