"""The grader's end of a sandbox: send requests, enforce limits, validate replies, and kill every process at the end.

A tier is probed with a hostile answer before use.
"""

import json
import os
import select
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from io import FileIO
from pathlib import Path
from typing import Any

from grpo_lab.course.answers import Given, NotPlain
from grpo_lab.errors import ConfigError, NotYet, RunError, Sentence
from grpo_lab.grading import wire
from grpo_lab.grading.sandbox.answering import ASK, LONGEST, READY
from grpo_lab.grading.sandbox.confinement import (
    MIB,
    PACKAGE,
    PR_SET_CHILD_SUBREAPER,
    Limits,
    descendants,
    end_descendants,
    mappings_of,
    memory_of,
    prctl,
    readable,
    shares_of,
)
from grpo_lab.paths import data_directory, data_tables, labs_directory

PROGRAM = ("-B", "-P", "-s", "-m", "grpo_lab.grading.sandbox.answering")
SAID = data_tables("sandbox")
FIRST_USER = 1_800_000_000
"""The first of the user ids that no account has; if the grader is root, each sandbox takes one of its own."""


@dataclass(frozen=True)
class Tier:
    """A way to run answers."""

    number: int
    name: str
    contained: str
    """The limits beyond those of every answer, and the remaining risks, for reports."""
    mend: str
    """The way out where the tier does not work."""
    wrap: Callable[[], list[str]]
    """The command that starts the sandbox's program."""

    @property
    def exposed(self) -> bool:
        """Whether an answer would run as the grader's own user, with that user's files and processes in reach."""
        return not self.number and os.getuid() != 0

    @property
    def trust(self) -> Sentence:
        """The statement for reports: the limits of the tier and the remaining risks."""
        said = (
            "{}. An answer runs in a process of its own with caps on time, memory, processes and output. It can open "
            "no socket and make, change or delete no file. It receives only inputs; scoring happens outside. {} Not "
            "contained in any tier: flaws of the kernel, timing side channels, and the source of this package, which "
            "students have anyway."
        )
        return Sentence(said, Sentence(f"{self.name[0].upper()}{self.name[1:]}"), Sentence(self.contained))

    def command(self, limits: Limits) -> list[str]:
        """The sandbox's whole command line."""
        user = str(FIRST_USER + os.getpid()) if os.getuid() == 0 else ""
        arguments = [json.dumps(asdict(limits)), user, os.readlink("/proc/self/ns/pid")]
        return [*self.wrap(), sys.executable, *PROGRAM, *arguments]


def environment() -> dict[str, str]:
    """The sandbox's environment variables, none of which comes from the grader's environment."""
    quiet = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "HOME": "/nonexistent", "LANG": "C.UTF-8"}
    draws = {"MPLBACKEND": "agg"}  # the only backend of matplotlib that needs no screen
    return {**quiet, **draws, "PATH": "/usr/bin:/bin", "PYTHONPATH": str(PACKAGE.parent)}


def _bubblewrapped() -> list[str]:
    # Root needs no user namespace, and inside one it could not change to another user's id.
    user = ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    mine = user if os.getuid() == 0 else ["--unshare-user"]
    spaces = ["--unshare-net", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    paths = list(readable())
    # Made explicitly, since bubblewrap would make them readable for its own user only.
    labs = labs_directory()  # their checks know the right answers
    above = sorted({str(parent) for path in (*paths, labs) for parent in path.parents} - {"/"})
    folders = [word for path in above for word in ("--dir", path)]
    binds = [word for path in map(str, paths) for word in ("--ro-bind", path, path)]
    # Importing torch needs a folder for temporary files; after confinement nothing can be written into it.
    own = ["--proc", "/proc", "--dev", "/dev", "--size", str(MIB), "--tmpfs", "/tmp"]
    # The order matters: a needed path may lie below /tmp, and the hidden folder may lie below a needed path.
    hidden = ["--tmpfs", str(labs), "--remount-ro", str(labs)]
    ends = ["--remount-ro", "/", "--chdir", "/", "--new-session", "--die-with-parent", "--"]
    # The bare name where it is not installed, so that the error of the start names it.
    return [shutil.which("bwrap") or "bwrap", *mine, *spaces, *own, *folders, *binds, *hidden, *ends]


_USER = SAID["own_user" if sys.platform == "linux" and os.getuid() == 0 else "your_user"]
PROCESS = Tier(0, **SAID["tier_0"], wrap=list)
PROCESS = replace(PROCESS, contained=Sentence(PROCESS.contained, Sentence(_USER)))
BUBBLEWRAP = Tier(2, **SAID["tier_2"], wrap=_bubblewrapped)


def at_least(required: int) -> Tier:
    """The tier for a required number: the plain process for 0, bubblewrap for 1 and 2."""
    return BUBBLEWRAP if required else PROCESS


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
        except BaseException:  # an interrupt too: what is left of this answer must not reply to the next request
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


LOOK = (data_directory() / "sandbox_look.py").read_text(encoding="utf-8")
"""Tries in the sandbox whatever an answer must not be able to do."""
NEVER = ("write a file", "run as the grader's root user", "reach the network")
PROMISED = {0: NEVER, 2: (*NEVER, "read a world-readable file", "see the grader's processes", "read the checks")}
"""The attempts that must fail, by tier."""
RARE = ("sched", "tabnanny")
"""Modules of Python that the sandbox's program does not load, so that an answer has to find their files."""
USED = (*RARE, "numpy", "matplotlib.pyplot", "pandas")
"""The modules that an answer must be able to import."""


def working(required: int, limits: Limits, no_isolation: bool) -> Tier:
    """The required tier, after a successful probe; no other tier replaces it.

    Raises ConfigError where the probe fails, where answers cannot import what they need, and where answers would run as
    the grader's user without `no_isolation`.
    """
    tier = at_least(required)
    if tier.exposed and not no_isolation:
        raise ConfigError(
            f"tier {tier.number} ({tier.name}) is refused for user {os.getuid()}: answers would run as you, so they "
            "could read the grader's secret and your other files, and end your processes. Install bubblewrap and leave "
            "out --require-tier 0, or grade as root in a container that is itself the sandbox. To grade without "
            "isolation all the same, pass --no-isolation, or set no_isolation = true in the rules"
        )
    if why := unusable(tier, limits):
        raise ConfigError(f"tier {tier.number} ({tier.name}) does not work here: {why}. {tier.mend}")
    return tier


def unusable(tier: Tier, limits: Limits) -> str:
    """The reason why a tier cannot be used here, or an empty text.

    Raises ConfigError where the tier contains answers, and they cannot import the modules that they need.
    """
    sandbox = Sandbox(tier, limits)
    try:
        with _bait() as bait:
            given = sandbox.calls(LOOK, "look.py", "look", "call", [bait])[0]
    except (RunError, NotYet) as error:
        return str(error)
    finally:
        sandbox.close()
    if not isinstance(given.value, dict):
        return given.error or "the probe returned no data"
    got = [attempt for attempt in PROMISED[tier.number] if given.value.get(attempt) is not False]
    if got:
        return f"an answer could {', '.join(got)}"
    if missing := given.value.get("missing"):
        raise _cannot_import(tier, missing)
    return ""


def _cannot_import(tier: Tier, missing: Sequence[str]) -> ConfigError:
    """The error about modules that answers lack, with the folder that is closed to them, and the way out."""
    why = "they are not where the sandbox looks for modules"
    way_out = "Install this package and what it depends on into one environment"
    if os.getuid() == 0 and (folder := closed_folder()):  # answers of any other user run as that user
        why = f"the sandbox's user may not enter {folder}"
        way_out = (
            f"Open that folder (chmod o+x {folder}), or use a Python and a copy of this package in folders that every "
            "user may enter, such as /opt"
        )
    return ConfigError(
        f"tier {tier.number} ({tier.name}) does not work here: an answer cannot import {', '.join(missing)}: {why}. "
        f"{way_out}"
    )


def closed_folder() -> Path | None:
    """The topmost folder on the way to Python and its packages that the sandbox's user may not enter, or None."""
    for path in map(Path.resolve, readable()):
        for folder in [*reversed(path.parents), path]:
            if folder.is_dir() and not folder.stat().st_mode & stat.S_IXOTH:
                return folder
    return None


@contextmanager
def _bait() -> Iterator[dict[str, Any]]:
    """The hostile answer's arguments: a file, a port that listens, this process's view of others."""
    with tempfile.TemporaryDirectory(prefix="grpo-lab-") as folder, socket.create_server(("127.0.0.1", 0)) as server:
        Path(folder).chmod(0o755)
        canary = Path(folder) / "canary"
        canary.write_text("not for you")
        yield {
            "canary": str(canary),
            "port": server.getsockname()[1],
            "spaces": os.readlink("/proc/self/ns/pid"),
            "checks": str(labs_directory()),
            "user": os.getuid(),
            "modules": list(USED),
        }
