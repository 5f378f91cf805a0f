"""The process that grades one notebook after another: JSON lines in (submissions), JSON lines out (results so far).

Judging an answer may train a model with a student's settings; a crash or a memory limit then costs this process alone.
All processes of its sandbox are its descendants. `worker_client` holds the other end.
"""

import json
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any

from grpo_lab.course import mysteries
from grpo_lab.course.registry import lab_names, lab_page
from grpo_lab.grading.grader import Course, Grader
from grpo_lab.grading.results import Result
from grpo_lab.grading.rules import Rules
from grpo_lab.grading.sandbox.confinement import MIB
from grpo_lab.grading.sandbox.linux import PR_SET_PDEATHSIG, prctl
from grpo_lab.grading.sandbox.processes import end_descendants
from grpo_lab.grading.submissions import Found

READY = "ready"
ADDRESSES_MB = 16_384
"""Limit on the address space of this process, so that a student's settings cannot use up the machine's memory."""


def main() -> int:
    """Grade the submissions on standard input until it is closed; return the exit code."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # text that judging prints must not be read as a reply
    signal.signal(signal.SIGTERM, _end)
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    if most == resource.RLIM_INFINITY or most > ADDRESSES_MB * MIB:
        resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES_MB * MIB, most))
    order = json.loads(sys.stdin.readline())
    course = Course(Rules(**order["rules"]), bytes.fromhex(order["secret"]))
    grader = Grader(course)
    for lab in lab_names():
        lab_page(lab)  # slow imports must not count against the first notebook's time
    print(READY, file=replies, flush=True)
    with mysteries.of_seed(course.rules.mysteries):
        for line in sys.stdin:
            student, file, root, problem, member, before = json.loads(line)
            found = Found(student, Path(file), Path(root), problem, member)
            for result in grader.results(found, Result.from_json(before) if before else None):
                print(result.to_json(), file=replies, flush=True)
    return 0


def _end(*_: Any) -> None:
    """Handle SIGTERM: kill the sandbox's processes, then exit."""
    end_descendants(frozenset())
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
