"""Hands notebooks to an examiner, a process of its own, and replaces it when a submission takes it down."""

from __future__ import annotations

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
from typing import Any

from grpo_lab.course.exercises import Finding
from grpo_lab.course.registry import lab_page
from grpo_lab.errors import RunError
from grpo_lab.grading.grader import Course
from grpo_lab.grading.results import FAILED, Mark, Result
from grpo_lab.grading.submissions import Found

START, GRACE = 300.0, 10.0
"""Seconds that an examiner may take to start on a busy machine, and to leave."""
ABOUT = ("lab", "file", "digest", "problem")
FAULT = "the grader failed: "
"""How a problem begins that is not the learner's."""


class _Lost(Exception):
    """The examiner died, or took too long, in the middle of something."""


class Proctor:
    """Has an examiner to hand notebooks to. What one had marked when it was lost is kept, and the next goes on."""

    def __init__(self, course: Course) -> None:
        self._course = course
        self._process: subprocess.Popen[str] | None = None
        self._replies: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._stopped = False

    def grade(self, found: Found) -> Result:
        """The result of one notebook, whatever it does to the examiner."""
        about: dict[str, Any] = {}
        marks: dict[str, Mark] = {}
        used = begun = 0.0
        while used < self._course.rules.total_seconds:
            current = ""
            try:
                self._start()
                begun = time.monotonic()
                for reply in self._asked(found, list(marks), begun + self._course.rules.total_seconds - used):
                    current = reply.get("exercise", current)
                    about.update({name: reply[name] for name in ABOUT if name in reply})
                    if "mark" in reply:
                        marks[current] = _mark(reply["mark"])
                used += time.monotonic() - begun
                break
            except _Lost as lost:
                used += time.monotonic() - begun
                self._end()
                if not current:
                    about = about or {"problem": f"{FAULT}{lost}"}
                    break
                marks[current] = _failed(about["lab"], current, str(lost))
        return self._result(found, about, marks, used)

    def stop(self) -> None:
        """Grade nothing more, and end what is running, from another thread."""
        self._stopped = True
        if process := self._process:
            process.terminate()

    def close(self) -> None:
        """End it, and its sandbox with it."""
        self._end()

    def _result(self, found: Found, about: dict[str, Any], marks: dict[str, Mark], seconds: float) -> Result:
        course = self._course
        exercises = lab_page(about["lab"]).exercises if about.get("lab") and not about["problem"] else {}
        missed = "not reached: the examiner was lost before"
        return Result(
            student=found.student,
            lab=about.get("lab", ""),
            file=about.get("file") or found.file.name,
            digest=about.get("digest", ""),
            tier=course.tier.number,
            trust=course.tier.trust,
            attempt=course.rules.attempt,
            marks=[marks.get(name) or _failed(about["lab"], name, missed) for name in exercises],
            problem=about.get("problem", ""),
            seconds=round(seconds, 2),
            settings=course.settings(),
        )

    def _asked(self, found: Found, marked: list[str], end: float) -> Iterator[dict[str, Any]]:
        """The replies about a notebook, up to the last. Raises _Lost."""
        where = {"student": found.student, "file": str(found.file), "root": str(found.root), "problem": found.problem}
        self._send({**where, "marked": marked})
        while "over" not in (reply := self._next(end)):
            yield reply

    def _next(self, end: float) -> dict[str, Any]:
        try:
            reply = self._replies.get(timeout=max(0.0, end - time.monotonic()))
        except queue.Empty:
            limit = self._course.rules.total_seconds
            raise _Lost(f"not finished within {limit:g} s, which is the limit of a notebook") from None
        if reply is None:
            raise _Lost("the examiner ended in the middle of it; judging it may have taken too much memory")
        return reply

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process and self._process.stdin
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise _Lost("the examiner had ended") from None

    def _start(self) -> None:
        """Have a process that is ready. Raises RunError for one that cannot start: then no submission can be graded."""
        if self._stopped:
            raise RunError("stopped")
        if self._process:
            return
        self._folder = tempfile.TemporaryDirectory(prefix="grpo-lab-", ignore_cleanup_errors=True)
        with tempfile.TemporaryFile() as words:
            self._process = subprocess.Popen(
                # -P: a module that lies in the current folder, among submissions perhaps, is not to be found.
                [sys.executable, "-P", "-u", "-m", "grpo_lab.grading.grade_worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=words,
                text=True,
                encoding="utf-8",
                # What judging leaves behind lies in one place. One thread, since others are graded at the same time.
                env={**os.environ, "TMPDIR": self._folder.name, "OMP_NUM_THREADS": "1"},
                start_new_session=True,  # Ctrl-C is for who started it to hear
            )
            self._replies = queue.SimpleQueue()
            threading.Thread(target=_listen, args=(self._process, self._replies), daemon=True).start()
            try:
                rules, secret = dataclasses.asdict(self._course.rules), self._course.secret.hex()
                self._send({"rules": rules, "secret": secret})
                self._next(time.monotonic() + START)
            except _Lost:
                self._end()
                words.seek(0)
                last = words.read().decode(errors="replace").strip().split("\n")[-1]
                raise RunError(f"the examiner does not start: {last or 'no word of why'}") from None

    def _end(self) -> None:
        if not (process := self._process):
            return
        process.terminate()  # it ends its sandbox first
        try:
            process.wait(GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdin
        with suppress(BrokenPipeError):
            process.stdin.close()
        self._process = None
        self._folder.cleanup()


def _listen(process: subprocess.Popen[str], replies: queue.SimpleQueue[dict[str, Any] | None]) -> None:
    assert process.stdout
    try:
        with process.stdout:
            for line in process.stdout:
                replies.put(json.loads(line))
    except ValueError:  # cut off in the middle of a line, or something else printed there
        process.kill()
    finally:
        replies.put(None)


def _mark(reply: dict[str, Any]) -> Mark:
    return Mark(**{**reply, "findings": [Finding(*each) for each in reply["findings"]]})


def _failed(lab: str, name: str, why: str) -> Mark:
    exercise = lab_page(lab).exercises[name]
    return Mark(name, exercise.title, exercise.kind, 0.0, exercise.points, FAILED, note=why)


def failed(result: Result) -> bool:
    """Whether the grader failed somewhere, so that a person has to look."""
    return result.problem.startswith(FAULT) or any(mark.status == FAILED for mark in result.marks)
