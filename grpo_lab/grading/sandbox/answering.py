"""The program in the sandbox: load the modules that answers need, confine this process, fork a child for each answer.

A line of JSON on standard input is a request. The reply is one line for each value, an end marker with their count, and
a line from this process that the child has ended. Requests hold no expected values. A child can write anything into the
reply, so the grader reads it as untrusted data.
"""

import json
import os
import select
import signal
import statistics  # noqa: F401, answers may import it, and after confinement that may fail
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import torch.nn.functional

from grpo_lab.config import user_code
from grpo_lab.course import answers, probes
from grpo_lab.course.answers import Given, NotPlain
from grpo_lab.course.exercises import Function, Values
from grpo_lab.errors import GrpoLabError, NotYet
from grpo_lab.grading import wire
from grpo_lab.grading.sandbox.confinement import Limits, confine
from grpo_lab.grading.sandbox.linux import PR_SET_PDEATHSIG, prctl, reap

READY = {"ready": True}
LONGEST = 1_000
"""Limit on the text of an error, in characters."""
PROCESSES = "/proc/self/ns/pid"
"""The link that names this process's PID namespace."""


def main() -> int:
    """Serve requests until standard input is closed; return the exit code."""
    _load()
    limits, user, outside = sys.argv[1:]
    requests, replies, nowhere = os.dup(0), os.dup(1), os.open(os.devnull, os.O_RDWR)
    confine(Limits(**json.loads(limits)), int(user) if user else None)
    alone = bool(user) or os.readlink(PROCESSES) != outside
    _send(replies, READY)
    for number in range(3):
        os.dup2(nowhere, number)  # text that an answer prints is dropped
    with os.fdopen(requests, "rb") as lines:
        for line in lines:
            if not _serve(json.loads(line), lines, replies, alone):
                return 1
    return 0


def _load() -> None:
    """Make torch import everything now, since it cannot after confinement. Autograd is avoided: it forbids forks."""
    weight = torch.nn.Parameter(torch.zeros(2))
    weight.grad = torch.nn.functional.relu(weight.detach())
    torch.optim.AdamW([weight]).step()


def _serve(request: Mapping[str, Any], lines: BinaryIO, replies: int, alone: bool) -> bool:
    """Run one answer in a child process; return whether the grader still waits for another.

    `alone` means that every process this one can signal was started here. Then all of them are killed at once: from
    outside, a process that forks and ends quickly could escape the search.
    """
    child = os.fork()
    if not child:
        os.close(lines.fileno())
        _answer(request, replies)
    ended = os.pidfd_open(child)
    try:
        # The grader sends nothing while a child runs, so readable input means that the grader has closed its end.
        abandoned = ended not in select.select([ended, lines], [], [])[0]
    finally:
        os.close(ended)
    if abandoned:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if alone:
        with suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)  # this process is spared
    reap()  # orphans come to this process where it is the first of its namespace
    _send(replies, {"id": request["id"], "over": os.waitstatus_to_exitcode(status)})
    return not abandoned


def _answer(request: Mapping[str, Any], replies: int) -> NoReturn:
    """Run the answer in the child, send its values, and exit."""
    try:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        count = 0
        for count, line in enumerate(_lines(request), start=1):
            _send(replies, {"id": request["id"], "number": count - 1, **line})
        _send(replies, {"id": request["id"], "end": count})
    finally:
        os._exit(0)  # never return into the loop above, even after an exception


def _lines(request: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    try:
        module = user_code.executed(request["source"], Path(request["file"]), NotYet)
        if "function" in request:
            check = Function(request["function"], _not_here, getattr(probes, request["probe"]))
            given = answers.calls(check, module, [wire.unpack(inputs) for inputs in request["inputs"]])
        else:
            given = answers.values(Values(tuple(request["names"]), _not_here), module).values()
    except GrpoLabError as error:
        yield {"refused": str(error)[:LONGEST]}
        return
    for each in given:
        yield _line(each)


def _line(given: Given) -> dict[str, str]:
    try:
        return {"error": given.error[:LONGEST]} if given.error else {"value": wire.pack(given.value)}
    except NotPlain as error:
        return {"error": str(error)}


def _not_here(*_: Any) -> NoReturn:
    raise AssertionError("the sandbox knows no right answers")


def _send(replies: int, message: Mapping[str, Any]) -> None:
    line = memoryview((json.dumps(message) + "\n").encode())
    while line:
        line = line[os.write(replies, line) :]


if __name__ == "__main__":
    sys.exit(main())
