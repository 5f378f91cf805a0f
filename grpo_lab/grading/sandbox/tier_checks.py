"""Tries the tiers by running in them: what a tier promises, an answer that pries and meddles must not get."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from grpo_lab.errors import NotYet, RunError
from grpo_lab.grading.sandbox.box import Sandbox
from grpo_lab.grading.sandbox.confinement import HIDDEN, Limits
from grpo_lab.grading.sandbox.tiers import TIERS, Tier

LOOK = """
import os, socket

def gets(act):
    try:
        act()
    except OSError:
        return False
    return True

def look(canary, port, spaces, checks, user):
    return {
        "write a file": gets(lambda: os.write(os.open(canary + ".new", os.O_CREAT | os.O_WRONLY), b"x")),
        "run as the grader, who is root": user == 0 and os.getuid() == 0,
        "read a file that all may read": gets(lambda: open(canary).close()),
        "reach the network": gets(lambda: socket.socket().connect(("127.0.0.1", port))),
        "see the grader's processes": os.readlink("/proc/self/ns/pid") == spaces,
        "read what is right": gets(lambda: os.listdir(checks)) and bool(os.listdir(checks)),
    }
"""
NEVER = ("write a file", "run as the grader, who is root", "reach the network")
APART = (*NEVER, "read a file that all may read", "see the grader's processes")
PROMISED = {0: NEVER, 1: APART, 2: (*APART, "read what is right")}
"""What an answer must not get, by tier."""


def strongest(limits: Limits, required: int = 0) -> tuple[Tier, dict[int, str]]:
    """The strongest tier that works here, and why each stronger one does not.

    Raises RunError where none does, or none as strong as is required.
    """
    missing: dict[int, str] = {}
    for tier in reversed(TIERS):
        if not (why := unusable(tier, limits)):
            break
        missing[tier.number] = why
    else:
        raise RunError(f"no answer can be run here: {_told(missing)}")
    if tier.number < required:
        raise RunError(
            f"tier {required} is required and only tier {tier.number} works here: {_told(missing)}. "
            f"Mend that, or ask for --require-tier {tier.number}"
        )
    return tier, missing


def unusable(tier: Tier, limits: Limits) -> str:
    """Why a tier cannot be used here, or nothing."""
    sandbox = Sandbox(tier, limits)
    try:
        with _bait() as bait:
            given = sandbox.calls(LOOK, "look.py", "look", "call", [bait])[0]
    except (RunError, NotYet) as error:
        return str(error)
    finally:
        sandbox.close()
    if not isinstance(given.value, dict):
        return f"tier {tier.number}: {given.error or 'an answer of no kind'}"
    got = [what for what in PROMISED[tier.number] if given.value.get(what) is not False]
    return f"tier {tier.number}: an answer could {', '.join(got)}" if got else ""


@contextmanager
def _bait() -> Iterator[dict[str, Any]]:
    """What an answer that pries is told about: a file, a port that listens, this process's view of others."""
    with tempfile.TemporaryDirectory(prefix="grpo-lab-") as folder, socket.create_server(("127.0.0.1", 0)) as server:
        Path(folder).chmod(0o755)
        canary = Path(folder) / "canary"
        canary.write_text("not for you")
        yield {
            "canary": str(canary),
            "port": server.getsockname()[1],
            "spaces": os.readlink("/proc/self/ns/pid"),
            "checks": str(HIDDEN),
            "user": os.getuid(),
        }


def _told(missing: Mapping[int, str]) -> str:
    return "; ".join(missing.values())
