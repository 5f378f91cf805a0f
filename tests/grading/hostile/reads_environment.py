"""Searches the grader's environment and command lines for secrets.

Place: 01_grpo_by_hand/advantages
Said: 'nothing'
"""

import os
import sys
from typing import Any

WORLD: dict[str, Any] = {}


def attack(*_, **__):
    known = {**os.environ, "arguments": " ".join(sys.argv)}
    for process in filter(str.isdigit, os.listdir("/proc")):
        for name in ("environ", "cmdline"):
            try:
                with open(f"/proc/{process}/{name}", encoding="utf-8", errors="replace") as file:
                    known[f"{name} of {process}"] = file.read()
            except OSError:
                continue
    return [name for name, value in known.items() if WORLD["token"] in value] or "nothing"
