"""A child process that trains, as its parent sees it: orders and commands go in, events come out.

It takes the commands that `runs.commands` lists, and acts on them at the top of the next step. One child at most waits,
with all imports done, for the next run of a notebook.
"""

import atexit
import collections
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, cast

from grpo_lab import errors
from grpo_lab.config.schema import Config
from grpo_lab.errors import GrpoLabError, RunError
from grpo_lab.events import Event, encodable, from_json
from grpo_lab.runs.crashes import Resume

STDERR_LINES = 200
GRACE = 60.0
"""Seconds in which a child has to finish its step after `stop`; a step of a large model may take that long."""
GRACE_AT_ONCE = 5.0
"""Seconds to wait for the last words of a dead child."""
READY = '{"ready": true}'
"""The first line of a child's output: it has loaded all that a run needs."""
OVER = "over"
"""First key of the line that ends a run; its value is the class of a GrpoLabError, or empty."""


class Child:
    """A process that trains one run after another: `begin` a run, take its `events`, begin the next, `close`.

    It starts at construction and loads all that a run needs, so that a child that is ready begins within milliseconds.
    A crash of the child ends one run; the next run needs a new child.
    """

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-m", "grpo_lab.runs.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,  # Ctrl-C reaches the parent alone
        )
        pipes = (self.process.stdin, self.process.stdout, self.process.stderr)
        self._orders, self._told, self._errors = cast(tuple[IO[str], IO[str], IO[str]], pipes)
        self._stderr: collections.deque[str] = collections.deque(maxlen=STDERR_LINES)
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        self._writing = threading.Lock()
        self._over = threading.Event()
        self._last = self._ready = False

    def ready(self) -> bool:
        """Wait until the child has loaded all that a run needs, and say whether it did; `begin` needs no wait."""
        self._ready = self._ready or self._told.readline().rstrip() == READY
        return self._ready

    def begin(
        self,
        config: Config,
        directory: Path,
        save_model: bool = False,
        last: bool = False,
        resume: Resume | None = None,
    ) -> None:
        """Order a run, or to go on with one; the run before must be over. After the `last` run the child ends.

        Raises RunError when the child is dead.
        """
        if not self.alive:
            raise RunError(f"no run can begin: {self.last_words}; start another child")
        self._last = last
        self._over = threading.Event()
        self._stderr.clear()  # `stderr` holds the output of this run alone
        place = {"cwd": os.getcwd(), "directory": str(directory)}  # a warm child may have been started elsewhere
        order = {"config": config.to_dict(), **place, "save_model": save_model}
        self._write(order | {"resume": resume._asdict() if resume else None})

    def events(self) -> Iterator[Event]:
        """The run's events, until it is over or the child is dead. Raises the GrpoLabError that ended the run."""
        self.ready()
        for line in self._told:
            if line.startswith(f'{{"{OVER}": '):
                self._over.set()
                if self._last:
                    self.close()
                tree = json.loads(line)
                if tree[OVER]:
                    raise getattr(errors, tree[OVER], GrpoLabError)(tree["message"])
                return
            if line.endswith("\n"):  # else the child died while it wrote the line
                yield from_json(line)
        self.wait()

    @property
    def alive(self) -> bool:
        """Whether the child can take another run."""
        return self.process.poll() is None

    def close(self) -> None:
        """Tell the child to end after its step, and wait for that."""
        with self._writing, suppress(BrokenPipeError):
            self._orders.close()
        self.wait()

    def wait(self) -> None:
        """Wait until the child is dead and its standard error is read."""
        self.process.wait()
        self._over.set()
        self._listener.join(GRACE_AT_ONCE)  # a process that the child started may hold its standard error open
        with self._writing, suppress(BrokenPipeError):
            for pipe in (self._orders, self._told):
                pipe.close()

    @property
    def stderr(self) -> str:
        """The last lines of the child's standard error."""
        return "".join(self._stderr)

    @property
    def signal(self) -> str:
        """The name of the signal that ended the child, or ""."""
        code = self.process.returncode
        return signal.Signals(-code).name if code is not None and code < 0 else ""

    @property
    def last_words(self) -> str:
        """The end of the child in a sentence, with the last line of its standard error."""
        if self.signal:
            return f"the child was ended by {self.signal}{' (out of memory?)' * (self.signal == 'SIGKILL')}"
        last = self.stderr.strip().splitlines()[-1:] or ["it said nothing"]
        return f"the child exited with code {self.process.returncode}: {last[0]}"

    def command(self, name: str, overrides: Sequence[str] = ()) -> None:
        """Send the child a command for the top of its next step."""
        self._write({"command": name, "overrides": list(overrides)})

    def stop(self, at_once: bool = False) -> None:
        """Ask the child to end its run after the step; kill it if it does not within GRACE, or `at_once`."""
        self.command("stop")
        threading.Thread(target=self._insist, args=(self._over, 0.0 if at_once else GRACE), daemon=True).start()

    def _insist(self, over: threading.Event, patience: float) -> None:
        if not over.wait(patience):
            self.process.kill()  # SIGTERM would only ask again

    def _listen(self) -> None:
        with self._errors as lines:
            self._stderr.extend(lines)

    def _write(self, message: dict[str, Any]) -> None:
        try:
            with self._writing:
                self._orders.write(json.dumps(encodable(message), allow_nan=False) + "\n")
                self._orders.flush()
        except (BrokenPipeError, ValueError):
            return  # the child is dead, and `events` ends


_idle: list[Child] = []
"""At most one."""
_lock = threading.Lock()


def warm_up() -> None:
    """Start a child, unless one waits already, so that the next run begins within milliseconds."""
    with _lock:
        if not any(child.alive for child in _idle):
            _idle[:] = [Child()]


def take() -> Child:
    """A child for one run: one that waits, or a new one. Hand it to `give_back` afterwards."""
    with _lock:
        while _idle:
            child = _idle.pop()
            if child.alive:
                return child
            child.close()  # its pipes
    return Child()


def give_back(child: Child) -> None:
    """Keep a child for the next run after its own is over. A dead child is replaced, a superfluous one is ended."""
    with _lock:
        if child.alive and not _idle:
            _idle.append(child)
            return
    child.close()
    warm_up()


@contextmanager
def warm_child() -> Iterator[Child]:
    """A child for one run: `with warm_child() as child: Session(config, child=child).run()`."""
    child = take()
    try:
        yield child
    finally:
        give_back(child)


@atexit.register
def _close_all() -> None:
    with _lock:
        for child in _idle:
            child.close()
        _idle.clear()
