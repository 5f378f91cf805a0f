"""A memory cgroup around a sandbox, where this process may make one: a cap that the kernel keeps at every moment.

Linux counts in it what no measurement from outside sees in time, such as a burst between two looks, or memory that the
kernel keeps for a process. Version 1 of cgroups and version 2 are known. A group is made below the one of this process,
or, in version 2, beside it, where a parent hands the controller on (systemd's `Delegate=` with `DelegateSubgroup=`).
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

PREFIX = "grpo_lab-"
V1 = ("memory.limit_in_bytes", "memory.oom_control")
V2 = ("memory.max", "memory.events")
"""The files of the cap and of the number of processes that the kernel killed for it."""


class MemoryGroup:
    """A cgroup with a cap on memory; one without a folder caps nothing.

    Memory that a process had before it came in is counted elsewhere. Raises OSError where the kernel takes back what it
    allowed.
    """

    def __init__(self) -> None:
        self.folder = next(_made(), None)

    @property
    def _files(self) -> tuple[str, str]:
        return V2 if self.folder and (self.folder / V2[0]).exists() else V1

    def hold(self, processes: Iterable[int], most: int) -> None:
        """Take these processes and all that they start in, and let them take so many bytes more."""
        if not self.folder:
            return
        (self.folder / self._files[0]).write_text(str(most))
        for process in processes:
            with suppress(ProcessLookupError):  # it has ended
                (self.folder / "cgroup.procs").write_text(str(process))

    @property
    def killed(self) -> int:
        """The number of processes that the kernel killed because of the cap."""
        if not self.folder:
            return 0
        lines = (line.split() for line in (self.folder / self._files[1]).read_text().splitlines())
        return next((int(words[1]) for words in lines if words[0] == "oom_kill"), 0)

    def close(self) -> None:
        """Delete the group, whose processes have ended."""
        if self.folder:
            with suppress(OSError):  # the kernel still buries a process; a later group deletes it
                self.folder.rmdir()
        self.folder = None


def _made() -> Iterator[Path]:
    """New groups, each in another place, where this process may make them."""
    for parent in _places():
        for left in parent.glob(f"{PREFIX}*"):  # of a grader that was killed
            if not Path(f"/proc/{left.name.removeprefix(PREFIX).partition('-')[0]}").exists():
                with suppress(OSError):
                    left.rmdir()
        folder = parent / f"{PREFIX}{os.getpid()}-{os.urandom(4).hex()}"
        with suppress(OSError):  # a file system or a group that is not ours
            folder.mkdir()
            if any((folder / name).exists() and os.access(folder / name, os.W_OK) for name in (V1[0], V2[0])):
                yield folder
            else:
                folder.rmdir()


def _places() -> Iterator[Path]:
    """The groups in which one of this process's own could be made."""
    with suppress(OSError):
        lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
        mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
        for _, controllers, path in lines:
            for _, place, kind, options, *_ in mounts:
                first = kind == "cgroup" and "memory" in options.split(",") and "memory" in controllers.split(",")
                second = kind == "cgroup2" and not controllers
                own = Path(place) / path.lstrip("/")
                if first and own.is_dir():
                    yield own
                for parent in (own, own.parent) if second else ():
                    with suppress(OSError):
                        if "memory" in (parent / "cgroup.subtree_control").read_text().split():
                            yield parent
