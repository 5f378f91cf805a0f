"""The program of the child process: JSON lines in (orders, then commands), JSON lines out (events).

Its standard output holds events alone. It ends when its parent does, and when a run loses the CUDA context; the parent
lives on. `child.Child` is the parent's side.
"""

import faulthandler
import json
import os
import queue
import sys
import threading
from contextlib import closing, suppress
from pathlib import Path
from typing import IO, Any

from grpo_lab.config.schema import Config
from grpo_lab.errors import GrpoLabError
from grpo_lab.events import Ended, to_json
from grpo_lab.runs.child import GRACE, OVER, READY
from grpo_lab.runs.commands import CommandQueue, signals


class WatchedCommands(CommandQueue):
    """Commands of a run whose process ends where it tells no event for so many `minutes`; a pause does not count.

    The timer is that of `faulthandler`, a thread in C: it also ends a process that hangs in C code and holds the lock
    of the interpreter, and it first writes to standard error where each thread is.
    """

    minutes: float | None = None

    def begin_to_wait(self) -> None:
        """Wait anew for an event."""
        if self.minutes is not None:
            faulthandler.dump_traceback_later(60 * self.minutes, exit=True)

    def __call__(self, step: int) -> list[str]:
        """See CommandQueue."""
        faulthandler.cancel_dump_traceback_later()
        changes = super().__call__(step)
        self.begin_to_wait()
        return changes


Order = tuple[dict[str, Any], WatchedCommands]
"""A run that the parent wants, as it was sent, and the commands that reach it while it goes on."""


def main() -> int:
    """Train one run for each order until the input ends; returns the exit code of the last run."""
    stream = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # from here on every print, Python's or C's, goes to standard error
    faulthandler.enable()
    lines = open(0, "rb", buffering=0, closefd=False)  # noqa: SIM115, unbuffered: a lock held in a read blocks exit
    # cuBLAS reads this once; deterministic runs need it, and torch's own choice on an H100 is a workspace of this size.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # Imported here, so that nothing can print among the events; GPT-2, or the first run would wait for it.
    import transformers.models.gpt2.modeling_gpt2  # noqa: F401

    import grpo_lab.runs.session  # noqa: F401

    orders: queue.SimpleQueue[Order | None] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(lines, orders), daemon=True).start()
    _print(stream, READY)
    code = 0
    while order := orders.get():
        over = {OVER: "", "message": ""}
        try:
            code = _train(*order, stream)
        except GrpoLabError as error:
            print(error, file=sys.stderr)
            code, over = error.exit_code, {OVER: type(error).__name__, "message": str(error)}
        _print(stream, json.dumps(over))
    return code


def _train(message: dict[str, Any], commands: WatchedCommands, stream: IO[str]) -> int:
    """Train what was ordered and print the events; returns 1 after a crash, else 0. Raises as `Execution.run` does."""
    from grpo_lab.runs import run_folder
    from grpo_lab.runs.crashes import Resume
    from grpo_lab.runs.session import AT_ONCE, Execution

    os.chdir(message["cwd"])
    config, directory = Config.from_dict(message["config"]), Path(message["directory"])
    resume = Resume(**message["resume"]) if message["resume"] else None
    execution = Execution(config, directory, commands, resume, message["save_model"], leave=_leave)
    commands.minutes = config.run.hang_minutes
    commands.begin_to_wait()
    event = None
    with signals(commands.stopping.set, commands.stopping):
        try:
            with closing(execution.run()) as events:
                for event in events:
                    _print(stream, to_json(event))
                    commands.begin_to_wait()
        except KeyboardInterrupt:
            run_folder.write_last(directory, Ended("stopped", AT_ONCE))
            raise
        finally:
            faulthandler.cancel_dump_traceback_later()
    return int(isinstance(event, Ended) and event.crash is not None)


def _leave(message: str) -> None:
    """End the process after the loss of its CUDA context, without `Ended`.

    The parent classifies the crash: only standard error, where the kernel wrote, names the assertion.
    """
    sys.stdout.flush()
    print(f"\n{message}", file=sys.stderr, flush=True)
    os._exit(1)  # an orderly exit calls CUDA again, which may hang


def _print(stream: IO[str], line: str) -> None:
    with suppress(BrokenPipeError):  # the parent is dead; the run still ends in its folder
        stream.write(line + "\n")
        stream.flush()


def _listen(lines: IO[bytes], orders: queue.SimpleQueue[Order | None]) -> None:
    """Pass on each order, and the commands that follow it to its run."""
    commands = WatchedCommands()
    for line in lines:
        message = json.loads(line)
        if "command" in message:
            commands.command(message["command"], message["overrides"])
        else:
            commands = WatchedCommands()
            orders.put((message, commands))
    # End of input: the parent is dead or has closed the pipe. The step may end; a hang is cut off.
    orders.put(None)
    last_resort = threading.Timer(GRACE, os._exit, args=(1,))
    last_resort.daemon = True
    last_resort.start()
    commands.command("stop")


if __name__ == "__main__":
    sys.exit(main())
