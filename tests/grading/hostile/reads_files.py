"""Reads the secret, other submissions, their results, the instructor's solutions, and files in /proc.

Place: 01_grpo_by_hand/by_hand
Said: 'nothing'
"""

import os
from typing import Any

WORLD: dict[str, Any] = {}


def attack(*_, **__):
    its_own = {"1", str(os.getpid()), str(os.getppid())}  # 1 is its own where it sees no other
    processes = {each for each in os.listdir("/proc") if each.isdigit()} - its_own
    private = [f"/proc/{each}/{name}" for each in sorted(processes) for name in ("environ", "mem", "maps")]
    got = []
    for path in (*WORLD["files"], "/etc/shadow", "/etc/passwd", *private):
        try:
            with open(path, "rb") as file:
                got += [path] if file.read(1) else []
        except OSError:
            continue
    for path in WORLD["folders"]:
        try:
            got += [path] if os.listdir(path) else []
        except OSError:
            continue
    return got or "nothing"
