"""Probes a tier with a hostile answer before use."""

import os
import socket
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from grpo_lab.errors import ConfigError, NotYet, RunError
from grpo_lab.grading.sandbox.box import Sandbox
from grpo_lab.grading.sandbox.confinement import Limits, readable
from grpo_lab.grading.sandbox.tiers import Tier, at_least
from grpo_lab.paths import labs_directory

LOOK = """
import importlib, os, socket

def gets(act):
    try:
        act()
    except OSError:
        return False
    return True

def imports(name):
    try:
        importlib.import_module(name)
    except Exception:
        return False
    return True

def look(canary, port, spaces, checks, user, modules):
    return {
        "missing": [name for name in modules if not imports(name)],
        "write a file": gets(lambda: os.write(os.open(canary + ".new", os.O_CREAT | os.O_WRONLY), b"x")),
        "run as the grader's root user": user == 0 and os.getuid() == 0,
        "read a world-readable file": gets(lambda: open(canary).close()),
        "reach the network": gets(lambda: socket.socket().connect(("127.0.0.1", port))),
        "see the grader's processes": os.readlink("/proc/self/ns/pid") == spaces,
        "read the checks": gets(lambda: os.listdir(checks)) and bool(os.listdir(checks)),
    }
"""
NEVER = ("write a file", "run as the grader's root user", "reach the network")
PROMISED = {0: NEVER, 2: (*NEVER, "read a world-readable file", "see the grader's processes", "read the checks")}
"""The attempts that must fail, by tier."""
RARE = ("sched", "tabnanny")
"""Modules of Python that the sandbox's program does not load, so that an answer has to find their files."""
USED = (*RARE, "numpy", "matplotlib.pyplot", "pandas")
"""The modules that an answer must be able to import."""


def working(required: int, limits: Limits, no_isolation: bool) -> Tier:
    """The required tier, after a successful probe; no other tier replaces it.

    Raises ConfigError where the probe fails, where answers cannot import what they need, and where answers would run as
    the grader's user without `no_isolation`.
    """
    tier = at_least(required)
    if tier.exposed and not no_isolation:
        raise ConfigError(
            f"tier {tier.number} ({tier.name}) is refused for user {os.getuid()}: answers would run as you, so they "
            "could read the grader's secret and your other files, and end your processes. Install bubblewrap and leave "
            "out --require-tier 0, or grade as root in a container that is itself the sandbox. To grade without "
            "isolation all the same, pass --no-isolation, or set no_isolation = true in the rules"
        )
    if why := unusable(tier, limits):
        raise ConfigError(f"tier {tier.number} ({tier.name}) does not work here: {why}. {tier.mend}")
    return tier


def unusable(tier: Tier, limits: Limits) -> str:
    """The reason why a tier cannot be used here, or an empty text.

    Raises ConfigError where the tier contains answers, and they cannot import the modules that they need.
    """
    sandbox = Sandbox(tier, limits)
    try:
        with _bait() as bait:
            given = sandbox.calls(LOOK, "look.py", "look", "call", [bait])[0]
    except (RunError, NotYet) as error:
        return str(error)
    finally:
        sandbox.close()
    if not isinstance(given.value, dict):
        return given.error or "the probe returned no data"
    got = [attempt for attempt in PROMISED[tier.number] if given.value.get(attempt) is not False]
    if got:
        return f"an answer could {', '.join(got)}"
    if missing := given.value.get("missing"):
        raise _cannot_import(tier, missing)
    return ""


def _cannot_import(tier: Tier, missing: Sequence[str]) -> ConfigError:
    """The error about modules that answers lack, with the folder that is closed to them, and the way out."""
    why = "they are not where the sandbox looks for modules"
    way_out = "Install this package and what it depends on into one environment"
    if os.getuid() == 0 and (folder := closed_folder()):  # answers of any other user run as that user
        why = f"the sandbox's user may not enter {folder}"
        way_out = (
            f"Open that folder (chmod o+x {folder}), or use a Python and a copy of this package in folders that every "
            "user may enter, such as /opt"
        )
    return ConfigError(
        f"tier {tier.number} ({tier.name}) does not work here: an answer cannot import {', '.join(missing)}: {why}. "
        f"{way_out}"
    )


def closed_folder() -> Path | None:
    """The topmost folder on the way to Python and its packages that the sandbox's user may not enter, or None."""
    for path in map(Path.resolve, readable()):
        for folder in [*reversed(path.parents), path]:
            if folder.is_dir() and not folder.stat().st_mode & stat.S_IXOTH:
                return folder
    return None


@contextmanager
def _bait() -> Iterator[dict[str, Any]]:
    """The hostile answer's arguments: a file, a port that listens, this process's view of others."""
    with tempfile.TemporaryDirectory(prefix="grpo-lab-") as folder, socket.create_server(("127.0.0.1", 0)) as server:
        Path(folder).chmod(0o755)
        canary = Path(folder) / "canary"
        canary.write_text("not for you")
        yield {
            "canary": str(canary),
            "port": server.getsockname()[1],
            "spaces": os.readlink("/proc/self/ns/pid"),
            "checks": str(labs_directory()),
            "user": os.getuid(),
            "modules": list(USED),
        }
