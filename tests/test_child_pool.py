"""One child serves run after run, a second one only beside it, and none outlives its use."""

import pytest

from grpo_lab.config.catalog import preset
from grpo_lab.runs import child_pool, notebook_mode
from grpo_lab.runs.session import Session

CONFIG = preset("smoke").with_("run.threads=1", "run.num_steps=2")


@pytest.fixture(autouse=True)
def none_left():
    """What a test warmed, it ends."""
    child_pool._close_all()
    yield
    child_pool._close_all()


def test_the_same_child_serves_again(tmp_path):
    pids = []
    for name in ("a", "b"):
        with child_pool.warm_child() as child:
            assert Session(CONFIG, tmp_path / name, child=child).run().status == "done"
            pids.append(child.pid)
    assert pids[0] == pids[1]
    first, second = child_pool.take(), child_pool.take()
    assert first.pid == pids[0]
    assert second.pid != first.pid
    child_pool.give_back(first)
    child_pool.give_back(second)
    assert first.alive
    assert not second.alive


def test_a_dead_child_serves_nobody(tmp_path):
    child_pool.warm_up()
    child_pool.warm_up()
    (dead,) = child_pool._idle
    dead._process.kill()
    dead.wait()
    with child_pool.warm_child() as child:
        assert child.pid != dead.pid
        child._process.kill()
        child.wait()
    (fresh,) = child_pool._idle
    assert fresh.alive and fresh.pid != dead.pid


@pytest.mark.parametrize(("asked", "steps"), [("1", 12), ("0", 50), ("", 50)])
def test_runs_are_cut_only_when_asked(monkeypatch, asked, steps):
    monkeypatch.setenv("GRPO_LAB_FAST", asked)
    assert notebook_mode.shortened(CONFIG.with_("run.num_steps=50")).run.num_steps == steps
    assert notebook_mode.shortened(CONFIG).run.num_steps == 2


def test_headless_without_a_kernel(monkeypatch):
    monkeypatch.delenv("GRPO_LAB_HEADLESS", raising=False)
    monkeypatch.delenv("NBGRADER_EXECUTION", raising=False)
    assert notebook_mode.headless()
