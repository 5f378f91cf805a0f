"""Grade a class: several workers at a time; each result is saved at once, and no submission can stop another."""

import hashlib
import json
import queue
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path

from grpo_lab.errors import ConfigError, RunError, Sentence
from grpo_lab.grading import notebooks
from grpo_lab.grading.grader import Course
from grpo_lab.grading.reports import write_all
from grpo_lab.grading.results import FAULT, Result
from grpo_lab.grading.sandbox import box
from grpo_lab.grading.sandbox.confinement import MIB
from grpo_lab.grading.submissions import Found
from grpo_lab.grading.worker import WorkerClient
from grpo_lab.runs.clusters import Cluster, WorkerLost, of_this_worker, side_by_side


class ResultStore:
    """Results on disk, one file each, found again by the submission, the rules and the checks."""

    def __init__(self, folder: Path, course: Course) -> None:
        self._folder, self._course = folder, course
        folder.mkdir(parents=True, exist_ok=True)

    def find(self, found: Found) -> Result | None:
        """The saved result of the same file under the same rules; None where there is none or the grader failed."""
        if digest := notebooks.digest(found, self._course.rules.notebook_mb * MIB):
            with suppress(OSError, ValueError, TypeError, KeyError):  # a damaged file is graded again
                result = Result.from_json(self._path(found, digest).read_text(encoding="utf-8"))
                return None if result.incomplete else result
        return None

    def save(self, found: Found, result: Result) -> None:
        """Write a result, whole or not at all. Raises RunError where it cannot be written."""
        write_all({self._path(found, result.digest): result.to_json().encode()})

    def _path(self, found: Found, digest: str) -> Path:
        identity = json.dumps([found.student, found.path, digest, self._course.settings()], sort_keys=True)
        return self._folder / f"{hashlib.sha256(identity.encode()).hexdigest()[:24]}.json"


class Clients:
    """Grade workers of this machine, `jobs` at a time."""

    def __init__(self, course: Course, jobs: int) -> None:
        self.jobs = jobs
        self._every = [WorkerClient(course) for _ in range(jobs)]
        self._idle: queue.SimpleQueue[WorkerClient] = queue.SimpleQueue()
        for client in self._every:
            self._idle.put(client)

    def grade(self, found: Found) -> Result:
        """The result of one notebook. Raises RunError where no worker can start."""
        client = self._idle.get()
        try:
            return client.grade(found)
        finally:
            self._idle.put(client)

    def stop(self) -> None:
        """End the running workers at once."""
        for client in self._every:
            client.stop()

    def close(self) -> None:
        """End all workers."""
        for client in self._every:
            client.close()


class FarClients:
    """Grade workers on the workers of a cluster, which see the submissions' folder and receive the secret.

    Raises ConfigError for a cluster whose messages others can read.
    """

    def __init__(self, course: Course, cluster: Cluster) -> None:
        if not cluster.private:
            raise ConfigError(
                "the secret travels to the workers, and this cluster's messages are open: use dask with an address of "
                "tls://, ray with RAY_USE_TLS=1, or a cluster of this machine (no --scheduler)"
            )
        self.jobs, self._course, self._cluster = cluster.jobs, course, cluster

    def grade(self, found: Found) -> Result:
        """The result of one notebook. Raises RunError for a worker of another version."""
        there = found._replace(root=found.root.resolve(), file=found.file.resolve())
        try:
            return self._cluster.run(grade_there, self._course, there)
        except WorkerLost as error:
            return self._course.result(found.student, found.file.name, problem=Sentence(FAULT, str(error)))

    def stop(self) -> None:
        """Leave the cluster at once."""
        self._cluster.close()

    close = stop


def grade_there(course: Course, found: Found) -> Result:
    """The result of a notebook, on a worker. Raises RunError where it does not see the file, or no sandbox works."""
    if not (found.problem or found.file.is_file()):
        raise RunError(f"a worker does not see {found.file}; put the submissions where all workers see them")
    return of_this_worker(_client, course).grade(found)


def _client(course: Course) -> WorkerClient:
    """The client of this worker, whose grade worker waits for the next notebook, after its sandbox was probed."""
    box.working(course.rules.tier, course.rules.limits, course.rules.no_isolation)
    return WorkerClient(course)


def grade(
    every: Sequence[Found],
    store: ResultStore,
    clients: Clients | FarClients,
    tell: Callable[[Result], None],
) -> list[Result] | None:
    """The results of all notebooks in the order given, or None after Ctrl-C; finished results are saved either way.

    Raises RunError where no worker can start or a result cannot be written.
    """
    try:
        results = {found: result for found in every if (result := store.find(found))}
        for result in results.values():
            tell(result)
        todo = [found for found in every if found not in results]
        graded = side_by_side(todo, lambda each: (each, clients.grade(each)), clients.jobs, clients.stop)
        with closing(graded):
            for found, result in graded:
                store.save(found, result)
                results[found] = result
                tell(result)
    finally:
        clients.close()
    return [results[found] for found in every] if len(results) == len(every) else None
