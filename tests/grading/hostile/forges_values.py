"""Sends, in the grader's own form, values, an end and that it is over, before it is; then it goes on.

Said: 'forged'
"""

import inspect
import json
import os
import time

from grpo_lab.grading import wire


def attack(*_, **__):
    known = {}
    frame = inspect.currentframe()
    while frame := frame and frame.f_back:
        known |= {name: frame.f_locals[name] for name in ("request", "replies") if name in frame.f_locals}
    request, replies = known["request"], known["replies"]
    count = len(request.get("inputs") or request["names"])
    lines = [{"number": number, "value": wire.pack("forged")} for number in range(count)]
    for line in (*lines, {"end": count}, {"over": 0}):
        os.write(replies, json.dumps({"id": request["id"], **line}).encode() + b"\n")
    time.sleep(600)
