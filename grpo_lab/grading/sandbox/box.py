"""The grader's end of a sandbox: asks, waits as long as is allowed, believes nothing, and leaves nothing alive."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from grpo_lab.course.answers import Given, NotPlain
from grpo_lab.errors import NotYet, RunError
from grpo_lab.grading import wire
from grpo_lab.grading.sandbox.answering import LONGEST, READY
from grpo_lab.grading.sandbox.confinement import MIB, Limits
from grpo_lab.grading.sandbox.linux import PR_SET_CHILD_SUBREAPER, prctl
from grpo_lab.grading.sandbox.tiers import Tier, environment

START = 120.0
"""Seconds to start in: on a busy machine torch alone takes many."""
TICK = 0.1
"""Seconds between two looks at what it uses."""
COSTLY = ("RssAnon:", "RssShmem:", "VmSwap:")
"""Memory that no file backs, as Linux calls it."""


class Failed(NotYet):
    """The answer broke a limit, and its sandbox ends with it."""


class Sandbox:
    """Answers one request after another, in one sandbox that is started when needed, and anew after a failure.

    While it is open, this process must start no other child: whatever is new among its descendants is the sandbox's.
    """

    def __init__(self, tier: Tier, limits: Limits) -> None:
        self._tier, self._limits = tier, limits
        self._process: subprocess.Popen[bytes] | None = None
        self._before = self._spared = frozenset(descendants())
        self._need = 0.0
        self._pipes = (-1, -1)
        self._buffer = bytearray()
        self._asked = 0
        self._looked = 0.0
        prctl(PR_SET_CHILD_SUBREAPER, 1)  # orphans come to this process, not out of sight

    def calls(
        self, source: str, file: str, function: str, probe: str, inputs: Sequence[Mapping[str, Any]]
    ) -> list[Given]:
        """What a function of the answer gives for each of the inputs, as the probe of that name calls it.

        Raises NotYet for an answer that does not run, lacks the function or ends too early, and Failed, which is one.
        """
        packed = [wire.pack(dict(each)) for each in inputs]
        what = {"function": function, "probe": probe, "inputs": packed}
        return self._ask({"source": source, "file": file, **what}, len(packed))

    def values(self, source: str, file: str, names: Sequence[str]) -> dict[str, Given]:
        """The plain values of these names. Raises as `calls` does."""
        given = self._ask({"source": source, "file": file, "names": list(names)}, len(names))
        return dict(zip(names, given, strict=True))

    def close(self) -> None:
        """End it, and all that was started in it."""
        if self._process is None:
            return
        end_descendants(self._before)
        self._process.wait()
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()  # written to without its buffer, so nothing is left to fail
        self._process.stdout.close()
        self._process = None
        self._buffer.clear()

    def _ask(self, request: dict[str, Any], count: int) -> list[Given]:
        self._start()
        self._asked += 1
        end = time.monotonic() + self._limits.seconds
        try:
            self._write((json.dumps({"id": self._asked, **request}) + "\n").encode(), end)
            return self._read(list(self._replies(end)), count)
        except Failed:
            self.close()
            raise
        finally:
            if self._process:
                end_descendants(self._spared)

    def _read(self, replies: list[dict[str, Any]], count: int) -> list[Given]:
        """The values of a whole set of replies. What is not exactly as it should be counts as nothing."""
        over = replies.pop()["over"]
        if len(replies) == 2 and isinstance(refused := replies[0].get("refused"), str):
            raise NotYet(_words(refused))
        numbers = [reply.get("number") for reply in replies[:-1]]
        if not replies or replies[-1].get("end") != count or numbers != list(range(count)):
            raise NotYet(f"it ended before it had answered ({_ending(over)})")
        return [_given(reply) for reply in replies[:-1]]

    def _replies(self, end: float) -> Iterator[dict[str, Any]]:
        """The replies to what was asked last, up to the one that says it is over."""
        left = self._limits.output_kb * 1024
        while True:
            line = self._line(end, left)
            left -= len(line)
            try:
                reply = json.loads(line)
            except (ValueError, RecursionError):
                raise Failed("it sent something else than data") from None
            identity = reply.get("id") if isinstance(reply, dict) else None
            if type(identity) is not int or not 0 < identity <= self._asked:
                raise Failed("it sent something else than was asked for")
            if identity < self._asked:
                continue  # of an answer before, which said that it was over when it was not
            yield reply
            if "over" in reply:
                return

    def _write(self, data: bytes, end: float) -> None:
        """Send a whole request. Who stopped reading holds nobody up."""
        view = memoryview(data)
        while view:
            self._wait(self._pipes[0], selectors.EVENT_WRITE, end)
            try:
                view = view[os.write(self._pipes[0], view) :]
            except BrokenPipeError:
                raise Failed("the sandbox ended before it was asked") from None

    def _line(self, end: float, most: int) -> bytes:
        """The next whole line, in time and in bounds."""
        while (newline := self._buffer.find(b"\n")) < 0 and len(self._buffer) <= most:
            self._wait(self._pipes[1], selectors.EVENT_READ, end)
            if not (chunk := os.read(self._pipes[1], 1 << 16)):
                raise Failed("the sandbox ended before it had answered")
            self._buffer += chunk
        if not 0 <= newline <= most:
            raise Failed(f"it sent more than {self._limits.output_kb:,} kB")
        line = bytes(self._buffer[:newline])
        del self._buffer[: newline + 1]
        return line

    def _wait(self, pipe: int, what: int, end: float) -> None:
        """Until the pipe is ready, looking now and then at the clock and at what is used."""
        with selectors.DefaultSelector() as selector:
            selector.register(pipe, what)
            while True:
                now = time.monotonic()
                if now > end:
                    raise Failed(f"no answer within {self._limits.seconds:g} s")
                if now > self._looked + TICK:
                    self._looked = now
                    if (used := self._used() - self._need) > self._limits.memory_mb:
                        raise Failed(f"it used {used:,.0f} MB; at most {self._limits.memory_mb:,}")
                if selector.select(TICK):
                    return

    def _start(self) -> None:
        """Have the program ready to be asked. Raises RunError, with its last words, where it cannot start."""
        if self._process:
            return
        self._before, self._need = frozenset(descendants()), 0.0
        with tempfile.TemporaryFile() as words:
            try:
                self._process = subprocess.Popen(
                    self._tier.command(self._limits),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=words,
                    env=environment(),
                    cwd="/",
                    start_new_session=True,
                )
            except OSError as error:
                raise RunError(f"{error.filename}: {error.strerror}") from None
            assert self._process.stdin and self._process.stdout
            self._pipes = (self._process.stdin.fileno(), self._process.stdout.fileno())
            os.set_blocking(self._pipes[0], False)
            try:
                ready = json.loads(self._line(time.monotonic() + START, MIB)) == READY
            except (Failed, ValueError):
                ready = False
            if not ready:
                self.close()
                words.seek(0)
                said = words.read(20_000).decode(errors="replace").strip().split("\n")[-1]
                raise RunError(f"the sandbox does not start: {said or 'it printed no reason'}")
        self._spared = frozenset(descendants())
        self._need = 2 * self._used()  # an answer begins with a copy of it all

    def _used(self) -> float:
        """MB that no file backs, of all that runs in it."""
        return memory_of(pid for pid in descendants() if pid not in self._before) / MIB


def _given(reply: Mapping[str, Any]) -> Given:
    error, value = reply.get("error"), reply.get("value")
    if isinstance(error, str):
        return Given(error=_words(error) or "an error without a word")
    try:
        return Given(wire.unpack(value)) if isinstance(value, str) else Given(error="neither a value nor an error")
    except NotPlain as refused:
        return Given(error=str(refused))


def _words(text: str) -> str:
    """As much of a text as is shown, without halves of pairs of surrogates, which no report could hold."""
    return text[:LONGEST].encode(errors="replace").decode()


def _ending(over: Any) -> str:
    """How its process ended, in words: what the exit status is good for."""
    with suppress(ValueError, TypeError):
        return signal.Signals(-over).name
    return f"exit code {over}" if isinstance(over, int) and 0 <= over < 256 else "in a way of its own"


def descendants() -> list[int]:
    """Processes below this one that are alive."""
    parents: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):  # it ended while we looked
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                state, parent, threads = fields[0], int(fields[1]), int(fields[17])
                if state != "Z" or threads > 1:  # its first thread may end before the others
                    parents.setdefault(parent, []).append(int(folder.name))
    found, todo = [], [os.getpid()]
    while todo:
        children = parents.get(todo.pop(), [])
        found += children
        todo += children
    return found


def memory_of(processes: Iterable[int]) -> int:
    """Bytes that no file backs: what they cost."""
    total = 0
    for process in processes:
        with suppress(OSError):  # it ended while we looked
            # Its threads share it all, but those that have ended tell nothing.
            total += max((_told_by(thread) for thread in Path(f"/proc/{process}/task").iterdir()), default=0)
    return total


def _told_by(thread: Path) -> int:
    with suppress(OSError):
        lines = (line.split() for line in (thread / "status").read_text().split("\n") if line.startswith(COSTLY))
        return sum(int(words[1]) * 1024 for words in lines)
    return 0


def end_descendants(spared: frozenset[int]) -> None:
    """Kill what runs below this process, and what that starts meanwhile, until nothing is left but those spared."""
    while todo := [pid for pid in descendants() if pid not in spared]:
        for pid in todo:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.001)
        _bury()  # the first process of a namespace ends only when all others of it are buried
    _bury()


def _bury() -> None:
    """Take the exit codes of children, and of orphans that came to this process."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
