"""The grade worker: a process that grades one notebook after another, and the client that replaces it where it ends.

Judging an answer may train a model with a student's settings; a crash or a memory limit then costs this process alone.
All processes of its sandbox are its descendants.
"""

import dataclasses
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from grpo_lab.course import mysteries
from grpo_lab.course.registry import lab_names, lab_page
from grpo_lab.errors import RunError, Sentence
from grpo_lab.grading.grader import Course, Grader
from grpo_lab.grading.results import FAULT, Result
from grpo_lab.grading.sandbox.confinement import MIB, PR_SET_PDEATHSIG, end_descendants, prctl
from grpo_lab.grading.submissions import Found

START, GRACE = 300.0, 60.0
"""Seconds that a worker may take to start and to end; a busy machine needs many."""
ADDRESSES_MB = 16_384
"""Limit on a worker's address space, so that a student's settings cannot use up the machine's memory."""


class _Lost(Exception):
    """The worker died or exceeded the notebook's time in the middle of an exercise."""


class WorkerClient:
    """One grade worker at a time. The marks of a lost worker are kept, and the next worker continues after them."""

    def __init__(self, course: Course) -> None:
        self._course = course
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
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
                self._send((found, result))
                while result is None or result.pending:
                    result = self._next(begun + left)
            except _Lost as lost:
                self.close()
                if result is None:
                    result = self._course.result(found.student, found.file.name, problem=Sentence(FAULT, str(lost)))
                else:
                    result = result.marked(dataclasses.replace(result.pending[0], note=str(lost)))
            left -= time.monotonic() - begun
        assert result
        return dataclasses.replace(result, seconds=round(self._course.rules.total_seconds - left, 2))

    def stop(self) -> None:
        """End the worker from another thread; no further notebook is graded."""
        self._stopped = True
        if process := self._process:
            process.terminate()

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
        assert self._connection and self._folder
        self._connection.close()
        self._folder.cleanup()
        self._process = None

    def _send(self, message: object) -> None:
        assert self._connection
        try:
            self._connection.send(message)
        except BrokenPipeError:
            raise _Lost(Sentence("the grade worker had ended before")) from None

    def _next(self, end: float) -> Any:
        """The next message of the worker. Raises _Lost where it ends, and at the end of the time."""
        assert self._connection
        try:
            if self._connection.poll(max(0.0, end - time.monotonic())):
                return self._connection.recv()
        except (EOFError, ConnectionResetError):
            said = "the grade worker ended during this exercise; judging it may have used too much memory"
            raise _Lost(Sentence(said)) from None
        limit = self._course.rules.total_seconds
        raise _Lost(Sentence("not finished within {:g} s, the limit of a notebook; raise total_seconds", limit))

    def _start(self) -> None:
        """Start a worker unless one runs, and wait until it is ready. Raises RunError where it cannot start."""
        if self._stopped:
            raise RunError("stopped")
        if self._process:
            return
        self._folder = tempfile.TemporaryDirectory(prefix="grpo-lab-grade-", ignore_cleanup_errors=True)
        self._connection, theirs = Pipe()
        with tempfile.TemporaryFile() as words, theirs:
            self._process = subprocess.Popen(
                # -P: a module in the current folder, perhaps a student's, must not be imported.
                [sys.executable, "-P", "-u", "-m", __name__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=words,
                stderr=words,
                # Temporary files of judging go into one folder. One thread, because other workers run beside this one.
                env={**os.environ, "TMPDIR": self._folder.name, "OMP_NUM_THREADS": "1"},
                start_new_session=True,  # Ctrl-C is handled by the command alone
            )
            theirs.close()
            try:
                self._send(self._course)
                self._next(time.monotonic() + START)
            except _Lost:
                self.close()
                words.seek(0)
                last = words.read().decode(errors="replace").strip().split("\n")[-1]
                raise RunError(f"the grade worker does not start: {last or 'it printed no reason'}") from None


def main() -> None:
    """Grade the submissions that come over the connection until it is closed."""
    signal.signal(signal.SIGTERM, _end)
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    if most == resource.RLIM_INFINITY or most > ADDRESSES_MB * MIB:
        resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES_MB * MIB, most))
    client = Connection(int(sys.argv[1]))
    course: Course = client.recv()
    grader = Grader(course)
    for lab in lab_names():
        lab_page(lab)  # slow imports must not count against the first notebook's time
    client.send("ready")
    with mysteries.of_seed(course.rules.mysteries):
        while True:
            try:
                found, before = client.recv()
            except EOFError:
                return
            for result in grader.results(found, before):
                client.send(result)


def _end(*_: Any) -> None:
    end_descendants(frozenset())
    os._exit(1)


if __name__ == "__main__":
    main()
