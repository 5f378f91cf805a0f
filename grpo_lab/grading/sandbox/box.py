"""The grader's end of a sandbox: send requests, enforce limits, validate replies, and kill every process at the end."""

import json
import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from grpo_lab.course.answers import Given, NotPlain
from grpo_lab.errors import NotYet, RunError
from grpo_lab.grading import wire
from grpo_lab.grading.sandbox.answering import LONGEST, READY
from grpo_lab.grading.sandbox.confinement import MIB, Limits
from grpo_lab.grading.sandbox.linux import PR_SET_CHILD_SUBREAPER, prctl, reap
from grpo_lab.grading.sandbox.tiers import Tier, environment

START = 300.0
"""Seconds that a sandbox may take to start; importing torch is slow on a busy machine."""
TICK = 0.1
"""Seconds between two measurements of memory."""
COSTLY = ("RssAnon:", "RssShmem:", "VmSwap:")
"""Linux's names for memory that no file backs."""
MAPPING, LINK = 256, 64
"""Bytes that the kernel keeps for a mapping, and for each process in the chain of forks that it came through."""
SHARES = ("Pss_Anon:", "Pss_Shmem:", "SwapPss:")
"""The same memory, where each page is divided by the number of processes that map it."""


class Failed(NotYet):
    """The answer exceeded a limit or broke the protocol, and its sandbox is ended."""


class Sandbox:
    """A sandbox that serves one request after another. It starts when needed, and again after a failure.

    While it is open, this process must start no other child: every new descendant counts as the sandbox's.
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
        prctl(PR_SET_CHILD_SUBREAPER, 1)  # orphans become children of this process

    def calls(
        self, source: str, file: str, function: str, probe: str, inputs: Sequence[Mapping[str, Any]]
    ) -> list[Given]:
        """The values that a function of the answer returns for each of the inputs, called through the named probe.

        Raises NotYet for an answer that does not run, lacks the function or ends too early, and its subclass Failed.
        """
        packed = [wire.pack(dict(each)) for each in inputs]
        what = {"function": function, "probe": probe, "inputs": packed}
        return self._ask({"source": source, "file": file, **what}, len(packed))

    def values(self, source: str, file: str, names: Sequence[str]) -> dict[str, Given]:
        """The plain values of these names. Raises NotYet and Failed as `calls` does."""
        given = self._ask({"source": source, "file": file, "names": list(names)}, len(names))
        return dict(zip(names, given, strict=True))

    def close(self) -> None:
        """Kill every process of the sandbox."""
        if self._process is None:
            return
        end_descendants(self._before)
        self._process.wait()
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()  # its buffer is unused, so closing writes nothing
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
        """The values of a complete set of replies. Raises NotYet unless number and order are exactly as expected."""
        over = replies.pop()["over"]
        if len(replies) == 2 and isinstance(refused := replies[0].get("refused"), str):
            raise NotYet(_words(refused))
        numbers = [reply.get("number") for reply in replies[:-1]]
        if not replies or replies[-1].get("end") != count or numbers != list(range(count)):
            raise NotYet(f"it ended before it had answered ({_ending(over)})")
        return [_given(reply) for reply in replies[:-1]]

    def _replies(self, end: float) -> Iterator[dict[str, Any]]:
        """The replies to the last request, up to the one that ends them. Raises Failed."""
        left = self._limits.output_kb * 1024
        while True:
            line = self._line(end, left)
            left -= len(line)
            try:
                reply = json.loads(line)
            except (ValueError, RecursionError):
                raise Failed("it sent a line that is not data") from None
            identity = reply.get("id") if isinstance(reply, dict) else None
            if type(identity) is not int or not 0 < identity <= self._asked:
                raise Failed("it sent a reply without a valid id")
            if identity < self._asked:
                continue  # from an earlier answer that forged its own end
            yield reply
            if "over" in reply:
                return

    def _write(self, data: bytes, end: float) -> None:
        """Send a whole request within the time limit, also to a stalled sandbox. Raises Failed if it has ended."""
        view = memoryview(data)
        while view:
            self._wait(self._pipes[0], selectors.EVENT_WRITE, end)
            try:
                view = view[os.write(self._pipes[0], view) :]
            except BrokenPipeError:
                raise Failed("the sandbox ended before it was asked") from None

    def _line(self, end: float, most: int) -> bytes:
        """The next whole line. Raises Failed over the limits of time and bytes."""
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
        """Wait until the pipe is ready. Raises Failed over the limits of time and memory."""
        with selectors.DefaultSelector() as selector:
            selector.register(pipe, what)
            while True:
                now = time.monotonic()
                if now > end:
                    raise Failed(f"no answer within {self._limits.seconds:g} s")
                if now > self._looked + TICK:
                    self._looked = now
                    most = self._limits.memory_mb + self._need
                    # The shares need a walk through all pages, and are no more than the plain sum.
                    if (
                        self._used(memory_of) > most
                        and (used := self._used(shares_of) - self._need) > self._limits.memory_mb
                    ):
                        raise Failed(f"it used {used:,.0f} MB; at most {self._limits.memory_mb:,}")
                if selector.select(TICK):
                    return

    def _start(self) -> None:
        """Start the program unless it runs. Raises RunError with the last line of its errors where it cannot start."""
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
        self._need = 2 * self._used(memory_of)  # a forked answer begins as a copy of the program

    def _used(self, measured: Callable[[int], int]) -> float:
        """Memory of all processes of the sandbox, in MB; `measured` gives the bytes of one process."""
        processes = [pid for pid in descendants() if pid not in self._before]
        kept = sum(mappings_of(pid) for pid in processes) * (MAPPING + LINK * len(processes))
        return (sum(measured(pid) for pid in processes) + kept) / MIB


def _given(reply: Mapping[str, Any]) -> Given:
    error, value = reply.get("error"), reply.get("value")
    if isinstance(error, str):
        return Given(error=_words(error) or "an error without a message")
    try:
        return Given(wire.unpack(value)) if isinstance(value, str) else Given(error="neither a value nor an error")
    except NotPlain as refused:
        return Given(error=str(refused))


def _words(text: str) -> str:
    """The beginning of a text, without lone surrogates, which no report could hold."""
    return text[:LONGEST].encode(errors="replace").decode()


def _ending(over: Any) -> str:
    """The exit status in words, for messages only: a status proves nothing."""
    with suppress(ValueError, TypeError):
        return signal.Signals(-over).name
    return f"exit code {over}" if isinstance(over, int) and 0 <= over < 256 else "unknown exit status"


def descendants() -> list[int]:
    """The living processes below this one."""
    parents: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):  # the process has just ended
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                state, parent, threads = fields[0], int(fields[1]), int(fields[17])
                if state != "Z" or threads > 1:  # a process without its first thread looks dead
                    parents.setdefault(parent, []).append(int(folder.name))
    found, todo = [], [os.getpid()]
    while todo:
        children = parents.get(todo.pop(), [])
        found += children
        todo += children
    return found


def memory_of(process: int) -> int:
    """The bytes of this process that no file backs; memory that it shares with others is counted in full."""
    return _largest(process, "status", COSTLY)


def shares_of(process: int) -> int:
    """The bytes of this process that no file backs, with its share of what several processes map.

    The sum over all processes counts every page once. Where Linux does not show the shares: the full bytes.
    """
    return _largest(process, "smaps_rollup", SHARES) or memory_of(process)


def mappings_of(process: int) -> int:
    """The number of this process's mappings; the kernel's records of them are no memory of any process."""
    with suppress(OSError):  # the process has just ended
        return Path(f"/proc/{process}/maps").read_bytes().count(b"\n")
    return 0


def _largest(process: int, file: str, names: tuple[str, ...]) -> int:
    """The sum of these lines: all threads share the memory, but a thread that has ended reports none."""
    found = 0
    with suppress(OSError):  # the process has just ended
        for thread in Path(f"/proc/{process}/task").iterdir():
            found = max(found, _told_by(thread / file, names))
            if found:
                break
    return found


def _told_by(file: Path, names: tuple[str, ...]) -> int:
    with suppress(OSError):
        lines = (line.split() for line in file.read_text().split("\n") if line.startswith(names))
        return sum(int(words[1]) * 1024 for words in lines)
    return 0


def end_descendants(spared: frozenset[int]) -> None:
    """Kill all descendants but those spared, again and again until none is left."""
    while todo := [pid for pid in descendants() if pid not in spared]:
        for pid in todo:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.001)
        reap()  # the first process of a namespace ends only after all others have been reaped
    reap()
