"""Hand notebooks to a grade worker, a process of its own, and replace the worker when a submission ends it."""

import dataclasses
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from grpo_lab.errors import RunError
from grpo_lab.grading.grade_worker import READY
from grpo_lab.grading.grader import Course
from grpo_lab.grading.results import FAULT, Result
from grpo_lab.grading.submissions import Found

START, GRACE = 300.0, 60.0
"""Seconds that a worker may take to start and to end; a busy machine needs many."""
SCRATCH = "grpo-lab-grade-"
"""The beginning of a worker's temporary folder; the number of the grader's process follows."""


def sweep(folder: Path) -> None:
    """Remove the empty folders of graders that were killed before they could do so; others' folders stay."""
    for left in folder.glob(f"{SCRATCH}*-*"):
        process = left.name.removeprefix(SCRATCH).partition("-")[0]
        if process.isdigit() and not Path("/proc", process).exists():
            with suppress(OSError):  # not empty, another user's, or removed by a grader that starts at the same time
                left.rmdir()


class _Lost(Exception):
    """The worker died or exceeded the notebook's time in the middle of an exercise."""


class WorkerClient:
    """One grade worker at a time. The marks of a lost worker are kept, and the next worker continues after them."""

    def __init__(self, course: Course) -> None:
        self._course = course
        self._process: subprocess.Popen[str] | None = None
        self._replies: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._stopped = False

    def grade(self, found: Found) -> Result:
        """The result of one notebook; a lost worker costs the exercise that it was grading.

        Raises RunError where no worker can start, and after `stop`.
        """
        result, left = None, self._course.rules.total_seconds
        while left > 0 and (result is None or result.pending):
            self._start()
            begun = time.monotonic()
            try:
                for so_far in self._results(found, result, begun + left):
                    result = so_far
            except _Lost as lost:
                self.close()
                if result is None:
                    result = self._course.result(found.student, found.file.name, problem=f"{FAULT}{lost}")
                elif result.pending:
                    result = result.marked(dataclasses.replace(result.pending[0], note=str(lost)))
            left -= time.monotonic() - begun
        assert result
        return dataclasses.replace(result, seconds=round(self._course.rules.total_seconds - left, 2))

    def stop(self) -> None:
        """End the worker from another thread; no further notebook is graded."""
        self._stopped = True
        if process := self._process:
            process.terminate()

    def _results(self, found: Found, before: Result | None, end: float) -> Iterator[Result]:
        """The results after each exercise, up to the complete one. Raises _Lost."""
        read = (found.student, found.file, found.root, found.problem, found.member)  # the rest is for reports
        self._send([*map(str, read), before.to_json() if before else ""])
        while before is None or before.pending:
            line = self._next(end)
            try:
                before = Result.from_json(line)
            except (ValueError, KeyError, TypeError):
                raise _Lost(f"the grade worker sent {line[:80]!r}, which is not a result") from None
            yield before

    def _next(self, end: float) -> str:
        """The next line of the worker. Raises _Lost at the end of its output and of the time."""
        try:
            line = self._replies.get(timeout=max(0.0, end - time.monotonic()))
        except queue.Empty:
            limit = self._course.rules.total_seconds
            raise _Lost(f"not finished within {limit:g} s, the limit of a notebook; raise total_seconds") from None
        if line is None:
            raise _Lost("the grade worker ended during this exercise; judging it may have used too much memory")
        return line

    def _send(self, message: object) -> None:
        """Send a message. Raises _Lost if the worker has ended."""
        assert self._process and self._process.stdin
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise _Lost("the grade worker had ended before") from None

    def _start(self) -> None:
        """Start a worker unless one runs, and wait until it is ready. Raises RunError where it cannot start."""
        if self._stopped:
            raise RunError("stopped")
        if self._process:
            return
        sweep(Path(tempfile.gettempdir()))
        prefix = f"{SCRATCH}{os.getpid()}-"
        self._folder = tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True)
        with tempfile.TemporaryFile() as errors:
            self._process = subprocess.Popen(
                # -P: a module in the current folder, perhaps a student's, must not be imported.
                [sys.executable, "-P", "-u", "-m", "grpo_lab.grading.grade_worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                encoding="utf-8",
                # Temporary files of judging go into one folder. One thread, because other workers run beside this one.
                env={**os.environ, "TMPDIR": self._folder.name, "OMP_NUM_THREADS": "1"},
                start_new_session=True,  # Ctrl-C is handled by the command alone
            )
            self._replies = queue.SimpleQueue()
            threading.Thread(target=_read_lines, args=(self._process, self._replies), daemon=True).start()
            try:
                self._send({"rules": dataclasses.asdict(self._course.rules), "secret": self._course.secret.hex()})
                ready = self._next(time.monotonic() + START).strip() == READY
            except _Lost:
                ready = False
            if not ready:
                self.close()
                errors.seek(0)
                last = errors.read().decode(errors="replace").strip().split("\n")[-1]
                raise RunError(f"the grade worker does not start: {last or 'it printed no reason'}")

    def close(self) -> None:
        """End the worker, and its sandbox with it."""
        if not (process := self._process):
            return
        process.terminate()  # the worker kills its sandbox first
        try:
            process.wait(GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdin and self._folder
        with suppress(BrokenPipeError):
            process.stdin.close()
        self._process = None
        self._folder.cleanup()


def _read_lines(process: subprocess.Popen[str], replies: queue.SimpleQueue[str | None]) -> None:
    """Put each line of the worker into the queue, and None at the end."""
    assert process.stdout
    with process.stdout, suppress(ValueError):  # bytes that are not UTF-8
        for line in process.stdout:
            replies.put(line)
    replies.put(None)
