"""Seeds that only the grader can know: drawn from a secret and from what was handed in, alike whenever it is graded."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import shlex
import stat
from collections.abc import Callable
from pathlib import Path

from grpo_lab.errors import ConfigError

LEAST, MOST = 32, 65_536
"""Bytes of a secret."""
_SEEDS = 2**31 - 1
"""Seeds go from 1 to this. Torch's generator looks at the low 32 bits of a seed alone, so that 2**32 would draw what
learners see, who get 0. The bit that is left is for checks that add a few hundred to a seed."""


def secret(path: Path, made: Callable[[Path], object] | None = None) -> bytes:
    """The secret that a file holds; where there is no file, one is written, and `made` is told.

    Raises ConfigError for a file that cannot be read, that others than its owner can read, or that holds too little.
    """
    try:
        if _write(path) and made:
            made(path)
        return _read(path)
    except OSError as error:
        raise ConfigError(
            f"secret = {str(path)!r}: {error.strerror}; name a file that can be read, or one that can be written"
        ) from error


def fingerprint(key: bytes) -> str:
    """Tells secrets apart in a report, and does not give them away.

    >>> fingerprint(b"a secret"), fingerprint(b"another secret")
    ('e50de4def549', 'cd7bc823cd56')
    """
    return _digest(key, "fingerprint").hex()[:12]


def seed(key: bytes, digest: str, lab: str, exercise: str, round: int, attempt: int) -> int:
    """The seed of one round of one exercise's check: another one for another submission, check, round or attempt.

    >>> first = seed(b"a secret", "00ff", "05_kl", "k3", round=1, attempt=1)
    >>> first == seed(b"a secret", "00ff", "05_kl", "k3", round=1, attempt=1)
    True
    >>> first == seed(b"a secret", "00ff", "05_kl", "k3", round=2, attempt=1)
    False
    """
    drawn = _digest(key, "seed", digest, lab, exercise, round, attempt)
    return int.from_bytes(drawn[:8], "big") % _SEEDS + 1


def _digest(key: bytes, *fields: str | int) -> bytes:
    """HMAC-SHA256 of a JSON list, in which no two lists of fields look alike."""
    return hmac.new(key, json.dumps(fields, separators=(",", ":")).encode(), hashlib.sha256).digest()


def _write(path: Path) -> bool:
    """Make a new secret, unless the file exists."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return False
    with open(descriptor, "w", encoding="ascii") as file:
        file.write(secrets.token_hex(LEAST) + "\n")
    return True


def _read(path: Path) -> bytes:
    """The file's bytes. White space round them does not count, because editors add some."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:  # a pipe must not keep us waiting
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise ConfigError(f"secret = {str(path)!r}: no regular file; name one, or one that is still to be made")
        if others := stat.S_IMODE(status.st_mode) & 0o077:
            way_out = f"chmod 600 {shlex.quote(str(path))}"
            raise ConfigError(f"secret = {str(path)!r}: others have access to it (mode bits {others:03o}); {way_out}")
        key = file.read(MOST + 1).strip()
    if not LEAST <= len(key) <= MOST:
        held = f"{len(key)} bytes" if len(key) <= MOST else "more bytes"
        raise ConfigError(
            f"secret = {str(path)!r} holds {held}; a secret has {LEAST} to {MOST:,}. Delete it, and a new one is made"
        )
    return key
