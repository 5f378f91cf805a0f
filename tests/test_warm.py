"""One child serves run after run, a second one only beside it, and none outlives its use."""

import pytest

from grpo_lab import warm
from grpo_lab.scenarios import preset
from grpo_lab.session import Session

CONFIG = preset("smoke").with_("run.threads=1", "run.num_steps=2")


@pytest.fixture(autouse=True)
def none_left():
    """What a test warmed, it ends."""
    warm._close_all()
    yield
    warm._close_all()


def test_the_same_child_serves_again(tmp_path):
    pids = []
    for name in ("a", "b"):
        with warm.warm_child() as child:
            assert Session(CONFIG, tmp_path / name, child=child).run().status == "done"
            pids.append(child.pid)
    assert pids[0] == pids[1]
    first, second = warm.take(), warm.take()
    assert first.pid == pids[0]
    assert second.pid != first.pid
    warm.give_back(first)
    warm.give_back(second)
    assert first.alive
    assert not second.alive


def test_a_dead_child_serves_nobody(tmp_path):
    warm.warm_up()
    warm.warm_up()
    (dead,) = warm._idle
    dead._process.kill()
    dead.wait()
    with warm.warm_child() as child:
        assert child.pid != dead.pid
        child._process.kill()
        child.wait()
    (fresh,) = warm._idle
    assert fresh.alive and fresh.pid != dead.pid


@pytest.mark.parametrize(("asked", "steps"), [("1", 12), ("0", 50), ("", 50)])
def test_runs_are_cut_only_when_asked(monkeypatch, asked, steps):
    monkeypatch.setenv("GRPO_LAB_FAST", asked)
    assert warm.shortened(CONFIG.with_("run.num_steps=50")).run.num_steps == steps
    assert warm.shortened(CONFIG).run.num_steps == 2


def test_headless_without_a_kernel(monkeypatch):
    monkeypatch.delenv("GRPO_LAB_HEADLESS", raising=False)
    monkeypatch.delenv("NBGRADER_EXECUTION", raising=False)
    assert warm.headless()
