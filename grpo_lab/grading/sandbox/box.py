"""The grader's end of a sandbox: send requests, enforce limits, validate replies, and kill every process at the end."""

import json
import os
import select
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from io import FileIO
from typing import Any

from grpo_lab.course.answers import Given, NotPlain
from grpo_lab.errors import NotYet, RunError, Sentence
from grpo_lab.grading import wire
from grpo_lab.grading.sandbox.answering import ASK, LONGEST, READY
from grpo_lab.grading.sandbox.confinement import MIB, Limits
from grpo_lab.grading.sandbox.processes import (
    PR_SET_CHILD_SUBREAPER,
    descendants,
    end_descendants,
    mappings_of,
    memory_of,
    prctl,
    shares_of,
)
from grpo_lab.grading.sandbox.tiers import Tier, environment

START = 300.0
"""Seconds that a sandbox may take to start; importing torch is slow on a busy machine."""
TICK = 0.1
"""Seconds between two measurements of memory."""
DEPTH, VALUES = 4, 8
"""Limits of a sentence in a reply: sentences within sentences, and the values of one."""
MAPPING, LINK = 256, 64
"""Bytes that the kernel keeps for a mapping, and for each process in the chain of forks that it came through."""


class Failed(NotYet):
    """The answer exceeded a limit or broke the protocol, and its sandbox is ended."""


class Sandbox:
    """A warm sandbox that serves one request after another. It starts when needed, and again after a failure.

    Each request has a file in memory and a pipe for its replies of its own: no answer can read the request of a later
    one, or write into its replies.

    While it is open, this process must start no other child: every new descendant counts as the sandbox's.
    """

    def __init__(self, tier: Tier, limits: Limits) -> None:
        self._tier, self._limits = tier, limits
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._before = self._spared = frozenset(descendants())
        self._program = 0.0
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
        assert self._control
        self._control.close()
        self._process = None

    def _ask(self, request: dict[str, Any], count: int) -> list[Given]:
        self._start()
        try:
            replies, over = self._exchange(json.dumps(request).encode())
        except Failed:
            self.close()
            raise
        return _read(replies, over, count)

    def _exchange(self, request: bytes) -> tuple[bytes, Any]:
        """Send a request; return all that came back through its pipe, and the exit status. Raises Failed."""
        end = time.monotonic() + self._limits.seconds
        assert self._control
        ours, theirs = os.pipe()
        with open(os.memfd_create("request"), "w+b") as asked, open(ours, "rb", buffering=0) as replies:
            asked.write(request)
            asked.seek(0)
            try:
                socket.send_fds(self._control, [ASK], [asked.fileno(), theirs])
            except BrokenPipeError:
                raise Failed(Sentence("the sandbox ended before it was asked")) from None
            finally:
                os.close(theirs)
            return self._collect(replies, end)

    def _collect(self, pipe: FileIO, end: float) -> tuple[bytes, Any]:
        """The replies and the exit status, once the pipe and the answer have ended. Raises Failed."""
        assert self._control
        replies, over = bytearray(), b""
        watched: list[FileIO | socket.socket] = [pipe, self._control]
        while watched:
            for each in self._ready(watched, end):
                if each is pipe:
                    chunk = pipe.read(1 << 16)
                    replies += chunk
                    if len(replies) > self._limits.output_kb * 1024:
                        raise Failed("it sent more than {:,} kB", self._limits.output_kb)
                    if not chunk:
                        watched.remove(pipe)
                else:
                    chunk = self._control.recv(1 << 10)
                    over += chunk
                    if not chunk:
                        raise Failed(Sentence("the sandbox ended before it had answered"))
                    if over.endswith(b"\n"):
                        watched.remove(self._control)
                        end_descendants(self._spared)  # one of them may hold the pipe open
        return bytes(replies), json.loads(over)["over"]

    def _ready(self, watched: Sequence[FileIO | socket.socket], end: float) -> list[FileIO | socket.socket]:
        """Wait until some of these can be read. Raises Failed over the limits of time and memory."""
        while True:
            now = time.monotonic()
            if now > end:
                raise Failed("no answer within {:g} s", self._limits.seconds)
            if now > self._looked + TICK:
                self._looked = now
                self._measure()
            if ready := select.select(watched, [], [], TICK)[0]:
                return ready

    def _measure(self) -> None:
        """Raise Failed over the limit on memory. A forked answer begins as a copy of the program."""
        need, most = 2 * self._program, self._limits.memory_mb
        # The shares need a walk through all pages, 40 ms for a process, and are no more than the plain sum.
        if self._used(memory_of) > most + need and (used := self._used(shares_of) - need) > most:
            raise Failed("it used {:,.0f} MB; at most {:,}", used, most)

    def _start(self) -> None:
        """Start the program unless it runs. Raises RunError with the last line of its errors where it cannot start."""
        if self._process and self._process.poll() is None:
            return
        self.close()
        self._before = frozenset(descendants())
        self._control, theirs = socket.socketpair()
        with tempfile.TemporaryFile() as words, theirs:
            try:
                self._process = subprocess.Popen(
                    self._tier.command(self._limits),
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=words,
                    env=environment(),
                    cwd="/",
                    start_new_session=True,
                )
            except OSError as error:
                self._control.close()
                raise RunError(f"{error.filename}: {error.strerror}") from None
            theirs.close()
            if not _says_ready(self._control):
                self.close()
                words.seek(0)
                said = words.read(20_000).decode(errors="replace").strip().split("\n")[-1]
                raise RunError(f"the sandbox does not start: {said or 'it printed no reason'}")
        self._spared = frozenset(descendants())
        self._program = self._used(memory_of)

    def _used(self, measured: Callable[[int], int]) -> float:
        """Memory of all processes of the sandbox, in MB; `measured` gives the bytes of one process."""
        processes = [pid for pid in descendants() if pid not in self._before]
        kept = sum(mappings_of(pid) for pid in processes) * (MAPPING + LINK * len(processes))
        return (sum(measured(pid) for pid in processes) + kept) / MIB


def _says_ready(control: socket.socket) -> bool:
    control.settimeout(START)
    said = b""
    with suppress(OSError):  # the time is over, or the program ended
        while not said.endswith(b"\n") and (chunk := control.recv(len(READY))):
            said += chunk
    control.settimeout(None)
    return said == READY


def _read(replies: bytes, over: Any, count: int) -> list[Given]:
    """The values of a complete set of replies. Raises NotYet unless number and order are exactly as expected."""
    *lines, rest = replies.split(b"\n")
    read = [_data(line) for line in lines] if not rest else []
    if len(read) == 2 and "refused" in read[0]:
        raise NotYet(_said(read[0]["refused"]))
    numbers = [reply.get("number") for reply in read[:-1]]
    if not read or read[-1].get("end") != count or numbers != list(range(count)):
        raise NotYet("it ended before it had answered ({})", _ending(over))
    return [_given(reply) for reply in read[:-1]]


def _data(line: bytes) -> dict[str, Any]:
    with suppress(ValueError, RecursionError):
        if isinstance(reply := json.loads(line), dict):
            return reply
    raise NotYet(Sentence("it sent a line that is not data"))


def _given(reply: Mapping[str, Any]) -> Given:
    if "error" in reply:
        return Given(error=_said(reply["error"]) or Sentence("an error without a message"))
    if not isinstance(value := reply.get("value"), str):
        return Given(error=Sentence("neither a value nor an error"))
    try:
        return Given(wire.unpack(value))
    except NotPlain as refused:
        return Given(error=str(refused))


def _said(parts: Any, depth: int = 0) -> str:
    """A text of the reply: data of the answer, or template and values of a sentence, within the limits of an error."""
    if isinstance(parts, str):
        return _words(parts)
    with suppress(ValueError, IndexError):  # the places of the template and the values do not agree
        match parts:
            case [str(template), list(values)] if depth < DEPTH and len(values) <= VALUES:
                sentence = Sentence(_words(template), *(_said(each, depth + 1) for each in values))
                if len(sentence) <= LONGEST:
                    return sentence
    raise NotYet(Sentence("it sent a line that is not data"))


def _words(text: str) -> str:
    """The beginning of a text, without lone surrogates, which no report could hold."""
    return text[:LONGEST].encode(errors="replace").decode()


def _ending(over: Any) -> str:
    """The exit status in words, for messages only: a status proves nothing."""
    with suppress(ValueError, TypeError):
        return signal.Signals(-over).name
    known = isinstance(over, int) and 0 <= over < 256
    return Sentence("exit code {}", over) if known else Sentence("unknown exit status")
