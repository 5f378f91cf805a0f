"""Sends values and an end in the grader's own form, before it is asked for them; then it ends.

Place: 05_kl/k3
Said: 'forged'
"""

import inspect
import json
import os

from grpo_lab.grading import wire


def attack(*_, **__):
    known = {}
    frame = inspect.currentframe()
    while frame := frame and frame.f_back:
        known |= {name: frame.f_locals[name] for name in ("asked", "replies") if name in frame.f_locals}
    request, replies = known["asked"], known["replies"]
    count = len(request.get("inputs") or request["names"])
    lines = [{"number": number, "value": wire.pack("forged")} for number in range(count)]
    for line in (*lines, {"end": count}):
        os.write(replies, json.dumps(line).encode() + b"\n")
    os._exit(0)
