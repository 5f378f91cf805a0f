"""The process that grades one notebook after another: JSON lines in (what to grade), JSON lines out (marks).

Judging trains models, and a stranger's settings decide how: what becomes of it must cost no more than this process.
It also keeps the sandbox's leavings in one place, below it. `proctor` has the other end.
"""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from grpo_lab.course import mysteries
from grpo_lab.course.registry import lab_page
from grpo_lab.grading import notebooks
from grpo_lab.grading.grader import Course, Grader
from grpo_lab.grading.rules import Rules
from grpo_lab.grading.sandbox.box import end_descendants
from grpo_lab.grading.sandbox.confinement import MIB
from grpo_lab.grading.sandbox.linux import PR_SET_PDEATHSIG, prctl
from grpo_lab.grading.submissions import Found

READY = {"ready": True}
ADDRESSES_MB = 16_384
"""Address space of this process: what settings may ask for before they ask too much."""


def main() -> int:
    """Serve until there is nothing more to grade."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what judging prints is no reply
    signal.signal(signal.SIGTERM, _leave)
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    if most == resource.RLIM_INFINITY or most > ADDRESSES_MB * MIB:
        resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES_MB * MIB, most))
    order = json.loads(sys.stdin.readline())
    rules = Rules(**order["rules"])
    grader = Grader(Course(rules, bytes.fromhex(order["secret"])))
    _send(replies, READY)
    with mysteries.of_seed(rules.mysteries):
        for line in sys.stdin:
            request = json.loads(line)
            found = Found(request["student"], Path(request["file"]), Path(request["root"]), request["problem"])
            for reply in _graded(grader, rules, found, request["marked"]):
                _send(replies, reply)
    return 0


def _send(replies: IO[str], reply: dict[str, Any]) -> None:
    replies.write(json.dumps(reply) + "\n")
    replies.flush()


def _graded(grader: Grader, rules: Rules, found: Found, marked: list[str]) -> Iterator[dict[str, Any]]:
    """What a notebook is, then each exercise that is not marked yet before and after it is, then that it is over."""
    submission = notebooks.read(found, rules.notebook_mb * MIB)
    problem = submission.problem
    if not problem and rules.labs and submission.lab not in rules.labs:
        problem = f"the lab {submission.lab}, which is not graded here: {', '.join(rules.labs)}"
    yield {"lab": submission.lab, "file": submission.file, "digest": submission.digest, "problem": problem}
    if not problem:
        for exercise in lab_page(submission.lab).exercises.values():
            if exercise.name not in marked:
                yield {"exercise": exercise.name}
                yield {"mark": dataclasses.asdict(grader.mark(submission, exercise))}
    grader.close()
    yield {"over": True}


def _leave(*_: Any) -> None:
    """Ended by whoever started this: nothing stays behind."""
    end_descendants(frozenset())
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
