"""The two ways to contain an answer: bubblewrap, and a plain process inside a container that is the sandbox."""

import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

from grpo_lab.errors import Sentence
from grpo_lab.grading.sandbox.confinement import MIB, PACKAGE, Limits, readable
from grpo_lab.paths import data_tables, labs_directory

PROGRAM = ("-B", "-P", "-s", "-m", "grpo_lab.grading.sandbox.answering")
SAID = data_tables("sandbox")
FIRST_USER = 1_800_000_000
"""The first of the user ids that no account has; if the grader is root, each sandbox takes one of its own."""


@dataclass(frozen=True)
class Tier:
    """A way to run answers."""

    number: int
    name: str
    contained: str
    """The limits beyond those of every answer, and the remaining risks, for reports."""
    mend: str
    """The way out where the tier does not work."""
    wrap: Callable[[], list[str]]
    """The command that starts the sandbox's program."""

    @property
    def exposed(self) -> bool:
        """Whether an answer would run as the grader's own user, with that user's files and processes in reach."""
        return not self.number and os.getuid() != 0

    @property
    def trust(self) -> Sentence:
        """The statement for reports: the limits of the tier and the remaining risks."""
        said = (
            "{}. An answer runs in a process of its own with caps on time, memory, processes and output. It can open "
            "no socket and make, change or delete no file. It receives only inputs; scoring happens outside. {} Not "
            "contained in any tier: flaws of the kernel, timing side channels, and the source of this package, which "
            "students have anyway."
        )
        return Sentence(said, Sentence(f"{self.name[0].upper()}{self.name[1:]}"), Sentence(self.contained))

    def command(self, limits: Limits) -> list[str]:
        """The sandbox's whole command line."""
        user = str(FIRST_USER + os.getpid()) if os.getuid() == 0 else ""
        arguments = [json.dumps(asdict(limits)), user, os.readlink("/proc/self/ns/pid")]
        return [*self.wrap(), sys.executable, *PROGRAM, *arguments]


def environment() -> dict[str, str]:
    """The sandbox's environment variables, none of which comes from the grader's environment."""
    quiet = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "HOME": "/nonexistent", "LANG": "C.UTF-8"}
    draws = {"MPLBACKEND": "agg"}  # the only backend of matplotlib that needs no screen
    return {**quiet, **draws, "PATH": "/usr/bin:/bin", "PYTHONPATH": str(PACKAGE.parent)}


def _bubblewrapped() -> list[str]:
    # Root needs no user namespace, and inside one it could not change to another user's id.
    user = ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    mine = user if os.getuid() == 0 else ["--unshare-user"]
    spaces = ["--unshare-net", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    paths = list(readable())
    # Made explicitly, since bubblewrap would make them readable for its own user only.
    labs = labs_directory()  # their checks know the right answers
    above = sorted({str(parent) for path in (*paths, labs) for parent in path.parents} - {"/"})
    folders = [word for path in above for word in ("--dir", path)]
    binds = [word for path in map(str, paths) for word in ("--ro-bind", path, path)]
    # Importing torch needs a folder for temporary files; after confinement nothing can be written into it.
    own = ["--proc", "/proc", "--dev", "/dev", "--size", str(MIB), "--tmpfs", "/tmp"]
    # The order matters: a needed path may lie below /tmp, and the hidden folder may lie below a needed path.
    hidden = ["--tmpfs", str(labs), "--remount-ro", str(labs)]
    ends = ["--remount-ro", "/", "--chdir", "/", "--new-session", "--die-with-parent", "--"]
    # The bare name where it is not installed, so that the error of the start names it.
    return [shutil.which("bwrap") or "bwrap", *mine, *spaces, *own, *folders, *binds, *hidden, *ends]


_USER = SAID["own_user" if sys.platform == "linux" and os.getuid() == 0 else "your_user"]
PROCESS = Tier(0, **SAID["tier_0"], wrap=list)
PROCESS = replace(PROCESS, contained=Sentence(PROCESS.contained, Sentence(_USER)))
BUBBLEWRAP = Tier(2, **SAID["tier_2"], wrap=_bubblewrapped)
TIERS = {tier.number: tier for tier in (PROCESS, BUBBLEWRAP)}


def at_least(required: int) -> Tier:
    """The tier for a required number: the plain process for 0, bubblewrap for 1 and 2."""
    return BUBBLEWRAP if required else PROCESS
