"""Grades a class: examiners side by side, each result kept as soon as it is there, and no submission stops another."""

from __future__ import annotations

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
from grpo_lab.grading.worker_client import Proctor, failed
from grpo_lab.runs.parallel import side_by_side


class Kept:
    """Results on disk, each in a file of its own, found again by what was graded and how."""

    def __init__(self, folder: Path, course: Course) -> None:
        self._folder, self._course = folder, course
        folder.mkdir(parents=True, exist_ok=True)

    def find(self, found: Found) -> Result | None:
        """The result of this very file under these very rules, if it was graded before and nothing failed."""
        digest = notebooks.digest(found, self._course.rules.notebook_mb * MIB)
        path = self._path(found, digest)
        if not digest or not path.is_file():
            return None
        with suppress(ValueError, TypeError, KeyError):  # what cannot be read is graded anew
            result = Result.from_json(path.read_text(encoding="utf-8"))
            return None if failed(result) else result
        return None

    def keep(self, found: Found, result: Result) -> None:
        """Write a result, whole or not at all."""
        write_all({self._path(found, result.digest): result.to_json().encode()})

    def _path(self, found: Found, digest: str) -> Path:
        file = os.path.relpath(found.file, found.root)
        identity = json.dumps([found.student, file, digest, self._course.settings()], sort_keys=True)
        return self._folder / f"{hashlib.sha256(identity.encode()).hexdigest()[:24]}.json"


def grade(
    every: Sequence[Found], course: Course, kept: Kept, jobs: int, tell: Callable[[Result], None]
) -> list[Result] | None:
    """The results of all notebooks, in the order given, or None where Ctrl-C stopped it: what is graded is kept.

    Raises RunError where no examiner can start.
    """
    results = {found: result for found in every if (result := kept.find(found))}
    idle: queue.SimpleQueue[Proctor] = queue.SimpleQueue()
    proctors = [Proctor(course) for _ in range(jobs)]
    for proctor in proctors:
        idle.put(proctor)

    def one(found: Found) -> tuple[Found, Result]:
        proctor = idle.get()
        try:
            return found, proctor.grade(found)
        finally:
            idle.put(proctor)

    def stop() -> None:
        for proctor in proctors:
            proctor.stop()

    try:
        todo = [found for found in every if found not in results]
        for result in results.values():
            tell(result)
        with closing(side_by_side(todo, one, jobs, stop)) as graded:
            for found, result in graded:
                kept.keep(found, result)
                results[found] = result
                tell(result)
    finally:
        for proctor in proctors:
            proctor.close()
    return [results[found] for found in every] if len(results) == len(every) else None
