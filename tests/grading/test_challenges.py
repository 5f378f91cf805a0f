"""Seeds that a submission, a check, a round and an attempt decide together with a secret."""

import os
import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_lab.errors import ConfigError
from grpo_lab.grading import challenges

KEY = b"0123456789abcdef0123456789abcdef"
texts = st.text('a",[]\\ 01', max_size=6)
fields = st.tuples(texts, texts, texts, st.integers(0, 12), st.integers(0, 12))


def test_known_values():
    """As openssl computes them: printf '["seed","00ff","05_kl","k3",1,1]' | openssl dgst -sha256 -hmac <key>."""
    first_eight_bytes = 0x799AE7DE4A171935
    assert challenges.seed(KEY, "00ff", "05_kl", "k3", 1, 1) == first_eight_bytes % (2**31 - 1) + 1
    assert challenges.fingerprint(KEY) == "4a6e3c352245"


@given(fields, fields)
def test_fields_cannot_be_shifted_into_each_other(one, other):
    assert (challenges.seed(KEY, *one) == challenges.seed(KEY, *other)) == (one == other)


@given(st.binary(min_size=8, max_size=8))
def test_no_seed_is_the_learners_nor_too_large_for_torch(drawn):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(challenges, "_digest", lambda *fields: drawn)
        assert 1 <= challenges.seed(KEY, "", "", "", 1, 1) < 2**31


def test_a_secret_is_made_once_and_for_its_owner_alone(tmp_path):
    told = []
    before = os.umask(0)
    try:
        first = challenges.secret(tmp_path / "secret", told.append)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600
    assert challenges.secret(tmp_path / "secret", told.append) == first and told == [tmp_path / "secret"]
    assert len(first) >= 32 and first != challenges.secret(tmp_path / "other")


def test_white_space_that_an_editor_adds_does_not_count(tmp_path):
    (tmp_path / "secret").write_bytes(KEY + b"\r\n")
    (tmp_path / "secret").chmod(0o600)
    assert challenges.secret(tmp_path / "secret") == KEY


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o610, 0o602])
def test_what_others_can_open_is_no_secret(tmp_path, mode):
    path = tmp_path / "the secret"
    challenges.secret(path)
    path.chmod(mode)
    with pytest.raises(ConfigError, match=rf"others have access .* chmod 600 '{path}'"):
        challenges.secret(path)


@pytest.mark.parametrize(("size", "held"), [(0, "0 bytes"), (31, "31 bytes"), (100_000, "more bytes")])
def test_too_little_or_too_much_is_refused(tmp_path, size, held):
    (tmp_path / "secret").write_bytes(b"x" * size)
    (tmp_path / "secret").chmod(0o600)
    with pytest.raises(ConfigError, match=rf"holds {held}; a secret has 32 to"):
        challenges.secret(tmp_path / "secret")


@pytest.mark.parametrize(
    ("name", "fault"),
    [("pipe", "not a regular file"), ("", "Is a directory"), ("nowhere/secret", "No such file or directory")],
)
def test_what_is_no_file_is_refused(tmp_path, name, fault):
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(ConfigError, match=fault):
        challenges.secret(tmp_path / name)
