"""The kernel's cap on memory, where this process may make a cgroup: it holds without any measurement."""

from dataclasses import replace

import pytest

from grpo_lab.errors import NotYet
from grpo_lab.grading.sandbox import box, cgroups
from grpo_lab.grading.sandbox.box import Failed, Sandbox
from grpo_lab.grading.sandbox.confinement import MIB, Limits

LIMITS = Limits(seconds=30.0, memory_mb=256, processes=32, output_kb=256)
BURST = """
import os, time

def answer():
    for _ in range(16):
        if not os.fork():
            kept = bytearray(100 << 20)
            time.sleep(20)
            os._exit(0)
    time.sleep({wait})
    return 1
"""
FITS = "def answer():\n    return len(bytearray(200 << 20))\n"
PEAKS = ("memory.max_usage_in_bytes", "memory.peak")


@pytest.fixture
def group():
    """A group of this process; tests skip where none can be made."""
    made = cgroups.MemoryGroup()
    if not made.folder:
        pytest.skip("this process may make no memory cgroup here")
    yield made
    made.close()


@pytest.fixture(params=[0, 2])
def sandbox(request, group, contained, monkeypatch):
    """A sandbox whose memory is never measured."""
    monkeypatch.setattr(Sandbox, "_used", lambda self, measured: 0.0)
    one = Sandbox(contained(request.param), LIMITS)
    yield one
    one.close()


def ask(sandbox, source):
    return sandbox.calls(source, "answer.py", "answer", "call", [{}])


def peak(sandbox):
    """The most bytes that the group has held."""
    return next(
        int((sandbox._group.folder / name).read_text()) for name in PEAKS if (sandbox._group.folder / name).exists()
    )


@pytest.mark.slow
def test_the_cap_holds_without_a_measurement(sandbox, monkeypatch):
    assert ask(sandbox, FITS)[0].value == 200 << 20
    folder, most = sandbox._group.folder, []
    closed = sandbox.close
    monkeypatch.setattr(sandbox, "close", lambda: (most.append(peak(sandbox)), closed()))
    with pytest.raises(Failed, match=r"it used [\d,]+ MB; at most 256"):
        ask(sandbox, BURST.format(wait=20))
    assert most[0] <= (LIMITS.memory_mb + box.SPARE_MB) * MIB
    assert not folder.exists()
    monkeypatch.undo()
    assert ask(sandbox, FITS)[0].value == 200 << 20, "the next answer has a sandbox and a group of its own"


def test_an_answer_that_hides_the_end_of_its_children_fails_too(sandbox):
    with pytest.raises(Failed, match="at most 256"):
        ask(sandbox, BURST.format(wait=2))


@pytest.mark.slow
def test_where_no_group_can_be_made_memory_is_measured(contained, monkeypatch):
    monkeypatch.setattr(cgroups, "_places", lambda: iter(()))
    one = Sandbox(contained(2), replace(LIMITS, seconds=20.0))
    try:
        with pytest.raises(NotYet, match="at most 256"):
            ask(one, BURST.format(wait=20))
        assert one._group is None or one._group.folder is None
    finally:
        one.close()


def test_what_a_killed_grader_left_is_deleted(group):
    left = group.folder.with_name(f"{cgroups.PREFIX}{2**22 + 7}-0")
    left.mkdir()
    other = cgroups.MemoryGroup()
    assert other.folder and other.folder != group.folder and not left.exists() and group.folder.exists()
    other.close()
    assert other.folder is None


def test_a_folder_that_is_no_group_is_not_used(tmp_path, monkeypatch):
    monkeypatch.setattr(cgroups, "_places", lambda: iter([tmp_path, tmp_path / "missing"]))
    assert cgroups.MemoryGroup().folder is None
    assert list(tmp_path.iterdir()) == []
