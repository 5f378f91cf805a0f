"""A run commanded from elsewhere: by another thread (`Door`), or in a process of its own (`Child`).

The child gets JSON lines (its order, then commands) and answers with JSON lines (events). It keeps its standard output
for events alone, ends when its parent does, and may die of a CUDA assert without taking the parent along.
`python -m grpo_lab.worker` is the child; `Child` is the parent's end of it.
"""

from __future__ import annotations

import collections
import faulthandler
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from grpo_lab import errors
from grpo_lab.config import Config
from grpo_lab.errors import GrpoLabError
from grpo_lab.events import Event, encodable, from_json, to_json

STDERR_LINES = 200
GRACE = 60.0
"""Seconds a child has to finish its step when asked to stop; as a step of a large model may take."""
GRACE_AT_ONCE = 5.0
"""Seconds a child has to terminate before it is killed."""
_FAILED = '{"failed": '
"""How the line begins that hands an error of the user's to the parent."""


class Stopped(Exception):
    """Raised by a `Door` at the top of a step that is not wanted any more."""


class Door:
    """The trainer's `controls`: where another thread's wishes wait for the top of the next step."""

    def __init__(self) -> None:
        self.stopping = threading.Event()
        self._running = threading.Event()
        self._running.set()
        self._single = threading.Semaphore(0)
        self._overrides: queue.SimpleQueue[Sequence[str]] = queue.SimpleQueue()

    def command(self, name: str, overrides: Sequence[str] = ()) -> None:
        """Take one of `pause`, `resume`, `step`, `set`, `stop`."""
        actions = {
            "pause": self._running.clear,
            "resume": self._running.set,
            "step": self._single.release,
            "stop": self.stopping.set,
            "set": lambda: self._overrides.put(overrides),
        }
        if name not in actions:
            raise errors.unknown("command", name, actions)
        actions[name]()

    def __call__(self, step: int) -> list[str]:
        while not (self._running.is_set() or self.stopping.is_set() or self._single.acquire(timeout=0.05)):
            pass
        if self.stopping.is_set():
            raise Stopped
        changes: list[str] = []
        while not self._overrides.empty():
            changes.extend(self._overrides.get())
        return changes


class Child:
    """A child process that trains one config and tells its events."""

    def __init__(self, config: Config, directory: Path, save_model: bool) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-u", "-m", "grpo_lab.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,  # Ctrl-C is the parent's to hear
        )
        self._stderr: collections.deque[str] = collections.deque(maxlen=STDERR_LINES)
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        self._writing = threading.Lock()
        self._write({"config": config.to_dict(), "directory": str(directory), "save_model": save_model})

    def events(self) -> Iterator[Event]:
        """The child's events until it is gone. Raises what the child raised for a mistake of the user's."""
        assert self._process.stdout is not None
        failure = ""
        for line in self._process.stdout:
            if line.startswith(_FAILED):
                failure = line
            elif line.endswith("\n"):  # a line without its end was cut off by death
                yield from_json(line)
        self.wait()
        if failure:
            tree = json.loads(failure)
            raise getattr(errors, tree["failed"], GrpoLabError)(tree["message"])

    def wait(self) -> None:
        """Until the child is gone and has said its last words."""
        self._process.wait()
        self._listener.join()

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._process.pid

    @property
    def stderr(self) -> str:
        """The child's last words on standard error."""
        return "".join(self._stderr)

    @property
    def signal(self) -> str:
        """The name of the signal that ended the child, or nothing."""
        code = self._process.returncode
        return signal.Signals(-code).name if code is not None and code < 0 else ""

    @property
    def last_words(self) -> str:
        """How the child ended, in a sentence."""
        if self.signal:
            return f"the child was ended by {self.signal}"
        last = self.stderr.strip().splitlines()[-1:] or ["it said nothing"]
        return f"the child exited with code {self._process.returncode}: {last[0]}"

    def command(self, name: str, overrides: Sequence[str] = ()) -> None:
        """Hand the child a command for the top of its next step."""
        self._write({"command": name, "overrides": list(overrides)})

    def stop(self, at_once: bool = False) -> None:
        """Ask the child to end after its step, or `at_once`; terminate, then kill it if it does not."""
        self.command("stop")
        threading.Thread(target=self._insist, args=(0.0 if at_once else GRACE,), daemon=True).start()

    def _insist(self, patience: float) -> None:
        for grace, force in ((patience, self._process.terminate), (GRACE_AT_ONCE, self._process.kill)):
            try:
                self._process.wait(grace)
                return
            except subprocess.TimeoutExpired:
                force()

    def _listen(self) -> None:
        assert self._process.stderr is not None
        self._stderr.extend(self._process.stderr)

    def _write(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            with self._writing:
                self._process.stdin.write(json.dumps(encodable(message), allow_nan=False) + "\n")
                self._process.stdin.flush()
        except (BrokenPipeError, ValueError):
            return  # the child is gone, and `events` will say how


def main() -> int:
    """The child: train the config of the first line, obey the lines after it."""
    stream = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # from here on every print, Python's or C's, goes to standard error
    faulthandler.enable()
    orders = open(0, "rb", buffering=0, closefd=False)  # noqa: SIM115, unbuffered: a lock held in a read blocks exit
    order = json.loads(orders.readline())
    from grpo_lab.session import Session

    try:
        session = Session(Config.from_dict(order["config"]), order["directory"], save_model=order["save_model"])
        session.views.append(_Stream(stream))
        threading.Thread(target=_obey, args=(session, orders), daemon=True).start()
        session.run()
    except GrpoLabError as error:
        print(error, file=sys.stderr)
        tree = {"failed": type(error).__name__, "message": str(error)}
        stream.write(json.dumps(tree) + "\n")
        stream.flush()
        return error.exit_code
    return 1 if session.crash else 0


class _Stream:
    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def show(self, event: Event) -> None:
        self._stream.write(to_json(event) + "\n")
        self._stream.flush()


def _obey(session: Any, orders: IO[bytes]) -> None:
    for line in orders:
        message = json.loads(line)
        session.command(message["command"], message["overrides"])
    # End of input: the parent is gone, so there is nobody to train for.
    last_resort = threading.Timer(GRACE_AT_ONCE, os._exit, args=(1,))
    last_resort.daemon = True
    last_resort.start()
    session.stop()


if __name__ == "__main__":
    sys.exit(main())
