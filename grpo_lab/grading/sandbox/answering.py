"""The program in the sandbox: load the modules that answers need, confine this process, fork a child for each answer.

The process stays warm for many answers, of many students. So that nothing of one answer reaches the next, it neither
runs nor reads any of them: with each request the grader sends two new files over a socket. The child reads the request
from the one and writes its reply into the other, a pipe: one line for each value, then an end marker with their count.
This process then kills and reaps all that the answer started, and tells the grader that the answer is over. Requests
hold no expected values. A child can write anything into the reply, so the grader reads it as untrusted data.
"""

import importlib
import json
import os
import select
import signal
import socket
import statistics  # noqa: F401, answers may import it, and after confinement that may fail
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import torch.nn.functional

from grpo_lab.config import user_code
from grpo_lab.course import answers, probes
from grpo_lab.course.answers import NotPlain
from grpo_lab.course.exercises import Function, Values
from grpo_lab.errors import GrpoLabError, NotYet, Sentence
from grpo_lab.grading import wire
from grpo_lab.grading.sandbox.confinement import (
    PR_SET_CHILD_SUBREAPER,
    PR_SET_PDEATHSIG,
    Limits,
    bound_cpu,
    confine,
    prctl,
    reap,
)

READY = b"ready\n"
ASK = b"?"
"""The message that carries the two files of a request."""
LONGEST = 1_000
"""Limit on the text of an error, in characters."""
PROCESSES = "/proc/self/ns/pid"
"""The link that names this process's PID namespace."""


def main() -> int:
    """Serve requests until the socket on standard input is closed; return the exit code."""
    _load()
    capped, user, outside = sys.argv[1:]
    limits = Limits(**json.loads(capped))
    control, nowhere = socket.socket(fileno=os.dup(0)), os.open(os.devnull, os.O_RDWR)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # an answer's signal ends this process now, never in a later answer
    prctl(PR_SET_CHILD_SUBREAPER, 1)  # orphans come to this process
    confine(limits, int(user) if user else None)
    alone = bool(user) or os.readlink(PROCESSES) != outside
    for number in range(3):
        os.dup2(nowhere, number)  # text that an answer prints is dropped
    control.sendall(READY)
    while files := socket.recv_fds(control, len(ASK), 2)[1]:
        if not _serve(files, control, limits, alone):
            return 1
    return 0


def _load() -> None:
    """Import the rest of torch, and matplotlib, which writes a list of fonts: confinement allows neither.

    Autograd is avoided, because it forbids forks, and so is pandas, whose pyarrow starts a thread: answers import it.
    """
    weight = torch.nn.Parameter(torch.zeros(2))
    weight.grad = torch.nn.functional.relu(weight.detach())
    torch.optim.AdamW([weight]).step()
    with tempfile.TemporaryDirectory(prefix="grpo-lab-fonts-") as folder:
        os.environ["MPLCONFIGDIR"] = folder
        importlib.import_module("matplotlib.pyplot").switch_backend("agg")
    del os.environ["MPLCONFIGDIR"]  # the folder is gone


def _serve(files: list[int], control: socket.socket, limits: Limits, alone: bool) -> bool:
    """Run one answer in a child process; return whether the grader still waits for another.

    `alone` means that every process this one can signal was started here. Then all of them are killed at once: from
    outside, a process that forks and ends quickly could escape the search.
    """
    reap()
    child = os.fork()
    if not child:
        control.close()
        _answer(files[0], files[1], limits)
    for file in files:
        os.close(file)
    ended = os.pidfd_open(child)
    # The grader sends nothing while a child runs, so readable input means that the grader has closed its end.
    abandoned = ended not in select.select([ended, control], [], [])[0]
    os.close(ended)
    if abandoned:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    _bury(alone)
    with suppress(BrokenPipeError):  # the grader has ended
        control.sendall(json.dumps({"over": os.waitstatus_to_exitcode(status)}).encode() + b"\n")
    return not abandoned


def _bury(alone: bool) -> None:
    """Kill all that an answer has left, and wait until nothing of it counts against the limit on processes."""
    if not alone:
        reap()
        return
    with suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)  # this process is spared
    with suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)


def _answer(request: int, replies: int, limits: Limits) -> NoReturn:
    try:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        bound_cpu(limits)
        with os.fdopen(request, "rb") as file:
            asked = json.loads(file.read())
        count = 0
        for count, line in enumerate(_lines(asked), start=1):
            _send(replies, {"number": count - 1, **line})
        _send(replies, {"end": count})
    finally:
        os._exit(0)  # never return into the loop above, even after an exception


def _lines(request: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The values that the answer gives, or one line of the reason why it gives none."""
    try:
        module = user_code.execute(Path(request["file"]), NotYet, True, request["source"])
        if "function" in request:
            check = Function(request["function"], _not_here, getattr(probes, request["probe"]))
            given = answers.calls(check, module, [wire.unpack(inputs) for inputs in request["inputs"]])
        else:
            given = answers.values(Values(tuple(request["names"]), _not_here), module).values()
    except GrpoLabError as error:
        yield {"refused": _parts(str(error))}
        return
    for each in given:
        try:
            yield {"error": _parts(each.error)} if each.error else {"value": wire.pack(each.value)}
        except NotPlain as error:
            yield {"error": _parts(str(error))}


def _parts(text: str) -> Any:
    """A text for JSON, with its parts if it is a sentence of ours that is not too long."""
    return text.parts() if isinstance(text, Sentence) and len(text) <= LONGEST else text[:LONGEST]


def _not_here(*_: Any) -> NoReturn:
    raise AssertionError("the sandbox knows no right answers")


def _send(replies: int, message: Mapping[str, Any]) -> None:
    line = memoryview((json.dumps(message) + "\n").encode())
    while line:
        line = line[os.write(replies, line) :]


if __name__ == "__main__":
    sys.exit(main())
