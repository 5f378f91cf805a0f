"""An attacker's possible knowledge of the grading machine, and the places of its traces."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from grpo_lab.grading.sandbox.confinement import PACKAGE

UNIX, INET, STREAM, DATAGRAM = socket.AF_UNIX, socket.AF_INET, socket.SOCK_STREAM, socket.SOCK_DGRAM


class World:
    """A folder of decoys, sockets that listen, and a process that does nothing: for answers to reach for."""

    def __init__(self) -> None:
        self.token = f"grpo-lab-{secrets.token_hex(8)}"
        self.home = Path(tempfile.mkdtemp(prefix="grpo-lab-"))
        self.home.chmod(0o755)  # open to users without any rights
        self.decoys, self.secret = self.home / "decoys", self.home / "secret"
        self.decoys.mkdir()
        self.decoys.chmod(0o777)
        self.decoy = self.decoys / "points.json"
        self.decoy.write_text('{"points": 0.0}')
        self.decoy.chmod(0o666)
        self.secret.write_text(self.token)
        self.secret.chmod(0o600)
        self._before = self._state()
        self._tcp, self._udp = self._listening(INET, STREAM), self._listening(INET, DATAGRAM)
        self._in_file = self._listening(UNIX, STREAM, str(self.home / "stream"))
        self._datagrams = self._listening(UNIX, DATAGRAM, str(self.home / "datagrams"))
        self._abstract = self._listening(UNIX, STREAM, f"\0{self.token}")
        environment = {**os.environ, "GRADERS_OWN": self.token}
        null = subprocess.DEVNULL
        self.victim = subprocess.Popen(["sleep", "900"], stdin=null, stdout=null, stderr=null, env=environment)

    def known(self, *files: Path) -> dict[str, Any]:
        """As attacks get it. `files` are more that they have no business with."""
        places = [self.decoys, PACKAGE, PACKAGE / "grading", *map(Path, self._packages()), "/tmp", "/dev/shm", "/dev"]
        return {
            "token": self.token,
            "files": [str(file) for file in (self.decoy, self.secret, *files)],
            "folders": [str(self.home), str(self.decoys), str(PACKAGE.parent / "labs")],
            "places": [str(place) for place in (*places, "/", Path.home(), Path.cwd())],
            "tcp": self._tcp.getsockname()[1],
            "udp": self._udp.getsockname()[1],
            "socket": self._in_file.getsockname(),
            "datagrams": self._datagrams.getsockname(),
            "processes": [self.victim.pid, os.getpid()],
        }

    def traces(self) -> list[str]:
        """All traces of attacks: files, data on a socket, a process that was killed or stopped."""
        found = [str(file) for file, state in self._state().items() if self._before.get(file) != state]
        found += [str(file) for file in self._before if not file.exists()]
        places = {Path(place) for place in self.known()["places"]} - {self.decoys}
        found += [str(file) for place in places if place.is_dir() for file in place.glob(f"{self.token}*")]
        sockets = (self._tcp, self._udp, self._in_file, self._datagrams, self._abstract)
        found += [f"a connection to {each.getsockname()}" for each in sockets if _reached(each)]
        state = Path(f"/proc/{self.victim.pid}/stat").read_text().rpartition(")")[2].split()[0]
        return found + [f"a process in state {state}"] * (state != "S")

    def close(self) -> None:
        """Take it all away, traces included."""
        for place in map(Path, self.known()["places"]):
            for file in place.glob(f"{self.token}*") if place.is_dir() else ():
                file.rmdir() if file.is_dir() and not file.is_symlink() else file.unlink()
        for each in (self._tcp, self._udp, self._in_file, self._datagrams, self._abstract):
            each.close()
        self.victim.kill()
        self.victim.wait()
        shutil.rmtree(self.home)

    def _state(self) -> dict[Path, tuple[Any, ...]]:
        """Of every file below the decoys, and of the secret, all that can be changed about it."""
        files = (self.decoys, self.secret, *self.decoys.rglob("*"))
        return {file: (_status(file), file.read_bytes() if file.is_file() else b"") for file in files}

    @staticmethod
    def _packages() -> set[str]:
        return {sysconfig.get_path("stdlib"), sysconfig.get_path("purelib")}

    @staticmethod
    def _listening(family: int, kind: int, address: str = "") -> socket.socket:
        made = socket.socket(family, kind)
        made.bind(address or ("127.0.0.1", 0))
        if address.startswith("/"):
            os.chmod(address, 0o777)
        if kind == STREAM:
            made.listen()
        made.setblocking(False)
        return made


def _status(file: Path) -> tuple[int, ...]:
    status = file.lstat()
    return status.st_mode, status.st_uid, status.st_nlink, status.st_size, status.st_mtime_ns, status.st_ino


def _reached(listening: socket.socket) -> bool:
    """Whether a connection or data arrived."""
    try:
        listening.recv(1) if listening.type == DATAGRAM else listening.accept()
    except BlockingIOError:
        return False
    return True
