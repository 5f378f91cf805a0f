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
from contextlib import nullcontext
from types import SimpleNamespace
from typing import IO, Any

from grpo_lab.config.schema import Config
from grpo_lab.errors import GrpoLabError
from grpo_lab.events import to_json
from grpo_lab.runs.child import GRACE, OVER, READY
from grpo_lab.runs.resume import Resume
from grpo_lab.runs.watchdog import watched


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

    from grpo_lab.runs.session import Session

    ordered: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(Session, lines, ordered), daemon=True).start()
    _print(stream, READY)
    code = 0
    while (session := ordered.get()) is not None:
        error = _train(session, stream)
        code = error.exit_code if error else int(bool(session.crash))
        over = {OVER: type(error).__name__ if error else "", "message": str(error or "")}
        _print(stream, json.dumps(over))
    return code


def _train(session: Any, stream: IO[str]) -> GrpoLabError | None:
    """Run a session and print its events; returns the GrpoLabError that ended it, if one did."""
    try:
        if isinstance(session, GrpoLabError):
            raise session
        session.leave = _leave
        session.views.append(SimpleNamespace(show=lambda event: _print(stream, to_json(event))))
        minutes = session.config.run.hang_minutes
        with nullcontext() if minutes is None else watched(session, minutes):
            session.run()
    except GrpoLabError as error:
        print(error, file=sys.stderr)
        return error
    return None


def _leave(message: str) -> None:
    """End the process after the loss of its CUDA context, without `Ended`.

    The parent classifies the crash: only standard error, where the kernel wrote, names the assertion.
    """
    sys.stdout.flush()
    print(f"\n{message}", file=sys.stderr, flush=True)
    os._exit(1)  # an orderly exit calls CUDA again, which may hang


def _print(stream: IO[str], line: str) -> None:
    stream.write(line + "\n")
    stream.flush()


def _listen(make: Any, lines: IO[bytes], ordered: queue.SimpleQueue[Any]) -> None:
    """Turn each order into a session, and give it the commands that follow."""
    session: Any = None
    for line in lines:
        message = json.loads(line)
        if "command" in message:
            session.command(message["command"], message["overrides"])
            continue
        try:
            os.chdir(message["cwd"])
            config = Config.from_dict(message["config"])
            session = make(config, message["directory"], child=False, save_model=message["save_model"])
            session.restarts_left = 0  # the parent restarts a run, in this process or in another one
            if resume := message.get("resume"):
                session.go_on_from(Resume(**resume | {"overrides": tuple(resume["overrides"])}))
            ordered.put(session)
        except GrpoLabError as error:
            ordered.put(error)
    # End of input: the parent is dead or has closed the pipe. The step may end; a hang is cut off.
    ordered.put(None)
    last_resort = threading.Timer(GRACE, os._exit, args=(1,))
    last_resort.daemon = True
    last_resort.start()
    if session:
        session.stop()


if __name__ == "__main__":
    sys.exit(main())
