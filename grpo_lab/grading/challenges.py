"""Seeds of the challenges: derived from a secret and the submission, so that only the grader can know them.

The same submission gets the same seeds whenever it is graded.
"""

import hashlib
import hmac
import json
import os
import secrets
import shlex
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from grpo_lab.errors import ConfigError

LEAST, MOST = 32, 65_536
"""Limits on a secret, in bytes."""
_SEEDS = 2**31 - 1
"""The largest seed; the smallest is 1. Torch uses the low 32 bits of a seed, so that 2**32 would equal the public 0.
The remaining bit is for checks that add a few hundred."""


def secret(path: Path, made: Callable[[Path], object] | None = None) -> bytes:
    """The secret in a file; a missing file is made, and then `made` is called with its path.

    Raises ConfigError for a file that cannot be read, that other users can open, or that holds too little or too much.
    """
    named = f"secret = {str(path)!r}"
    try:
        with suppress(FileExistsError):
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(descriptor, "w", encoding="ascii") as file:
                file.write(secrets.token_hex(LEAST) + "\n")
            if made:
                made(path)
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:  # a pipe must not block
            status, key = os.fstat(file.fileno()), file.read(MOST + 1).strip()
    except OSError as error:
        way_out = "name a file that can be read, or one that can be written"
        raise ConfigError(f"{named}: {error.strerror}; {way_out}") from error
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError(f"{named}: not a regular file; name one, or a file to be made")
    if others := stat.S_IMODE(status.st_mode) & 0o077:
        way_out = f"chmod 600 {shlex.quote(str(path))}"
        raise ConfigError(f"{named}: others have access to it (mode bits {others:03o}); {way_out}")
    if not LEAST <= len(key) <= MOST:
        held = f"{len(key)} bytes" if len(key) <= MOST else "more bytes"
        raise ConfigError(f"{named} holds {held}; a secret has {LEAST} to {MOST:,}. Delete it to have a new one made")
    return key


def fingerprint(key: bytes) -> str:
    """A short text that identifies a secret in a report without revealing it.

    >>> fingerprint(b"a secret"), fingerprint(b"another secret")
    ('e50de4def549', 'cd7bc823cd56')
    """
    return _digest(key, "fingerprint").hex()[:12]


def seed(key: bytes, digest: str, lab: str, exercise: str, round: int, attempt: int) -> int:
    """The seed of one round of one exercise's check; it differs for each submission, check, round and attempt.

    >>> first = seed(b"a secret", "00ff", "05_kl", "k3", round=1, attempt=1)
    >>> first == seed(b"a secret", "00ff", "05_kl", "k3", round=1, attempt=1)
    True
    >>> first == seed(b"a secret", "00ff", "05_kl", "k3", round=2, attempt=1)
    False
    """
    drawn = _digest(key, "seed", digest, lab, exercise, round, attempt)
    return int.from_bytes(drawn[:8], "big") % _SEEDS + 1


def _digest(key: bytes, *fields: str | int) -> bytes:
    """HMAC-SHA256 of the fields as a JSON list, which is unambiguous."""
    return hmac.new(key, json.dumps(fields, separators=(",", ":")).encode(), hashlib.sha256).digest()
