"""The child: a run in a process of its own, JSON lines in (its order, then commands), JSON lines out (events).

It keeps its standard output for events alone, ends when its parent does, and may die of a CUDA assert without taking
the parent along. `controls.Child` is the parent's end of it.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import threading
from typing import IO, Any

from grpo_lab.config import Config
from grpo_lab.controls import FAILED, GRACE
from grpo_lab.errors import GrpoLabError
from grpo_lab.events import Event, to_json


def main() -> int:
    """The child: train the config of the first line, obey the lines after it."""
    stream = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # from here on every print, Python's or C's, goes to standard error
    faulthandler.enable()
    orders = open(0, "rb", buffering=0, closefd=False)  # noqa: SIM115, unbuffered: a lock held in a read blocks exit
    order = json.loads(orders.readline())
    from grpo_lab.session import Session  # here, so that nothing it imports can print among the events

    try:
        session = Session(Config.from_dict(order["config"]), order["directory"], save_model=order["save_model"])
        session.views.append(_Stream(stream))
        threading.Thread(target=_obey, args=(session, orders), daemon=True).start()
        session.run()
    except GrpoLabError as error:
        print(error, file=sys.stderr)
        stream.write(json.dumps({FAILED: type(error).__name__, "message": str(error)}) + "\n")
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
    # End of input: the parent is gone, so there is nobody to train for. The step may end, a hang may not last.
    last_resort = threading.Timer(GRACE, os._exit, args=(1,))
    last_resort.daemon = True
    last_resort.start()
    session.stop()


if __name__ == "__main__":
    sys.exit(main())
