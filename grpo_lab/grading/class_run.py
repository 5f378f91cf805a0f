"""Grade a class: several workers at a time; each result is saved at once, and no submission can stop another."""

import hashlib
import json
import os
import queue
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path

from grpo_lab.grading import notebooks
from grpo_lab.grading.grader import Course
from grpo_lab.grading.reports.files import write_all
from grpo_lab.grading.results import Result
from grpo_lab.grading.sandbox.confinement import MIB
from grpo_lab.grading.submissions import Found
from grpo_lab.grading.worker_client import WorkerClient
from grpo_lab.runs.parallel import side_by_side


class ResultStore:
    """Results on disk, one file each, found again by the submission and the rules."""

    def __init__(self, folder: Path, course: Course) -> None:
        self._folder, self._course = folder, course
        folder.mkdir(parents=True, exist_ok=True)

    def find(self, found: Found) -> Result | None:
        """The saved result of the same file under the same rules; None where there is none or the grader failed."""
        digest = notebooks.digest(found, self._course.rules.notebook_mb * MIB)
        path = self._path(found, digest)
        if not digest or not path.is_file():
            return None
        with suppress(ValueError, TypeError, KeyError):  # a damaged file is graded again
            result = Result.from_json(path.read_text(encoding="utf-8"))
            return None if result.incomplete else result
        return None

    def save(self, found: Found, result: Result) -> None:
        """Write a result, whole or not at all. Raises RunError where it cannot be written."""
        write_all({self._path(found, result.digest): result.to_json().encode()})

    def _path(self, found: Found, digest: str) -> Path:
        file = os.path.relpath(found.file, found.root)
        identity = json.dumps([found.student, file, digest, self._course.settings()], sort_keys=True)
        return self._folder / f"{hashlib.sha256(identity.encode()).hexdigest()[:24]}.json"


def grade(
    every: Sequence[Found], course: Course, store: ResultStore, jobs: int, tell: Callable[[Result], None]
) -> list[Result] | None:
    """The results of all notebooks in the order given, or None after Ctrl-C; finished results are saved either way.

    Raises RunError where no worker can start or a result cannot be written.
    """
    results = {found: result for found in every if (result := store.find(found))}
    clients = [WorkerClient(course) for _ in range(jobs)]
    idle: queue.SimpleQueue[WorkerClient] = queue.SimpleQueue()
    for client in clients:
        idle.put(client)

    def one(found: Found) -> tuple[Found, Result]:
        client = idle.get()
        try:
            return found, client.grade(found)
        finally:
            idle.put(client)

    def stop() -> None:
        for client in clients:
            client.stop()

    try:
        todo = [found for found in every if found not in results]
        for result in results.values():
            tell(result)
        with closing(side_by_side(todo, one, jobs, stop)) as graded:
            for found, result in graded:
                store.save(found, result)
                results[found] = result
                tell(result)
    finally:
        for client in clients:
            client.close()
    return [results[found] for found in every] if len(results) == len(every) else None
