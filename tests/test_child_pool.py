"""One child serves run after run, a second one only beside it, and none outlives its use."""

import pytest

from grpo_lab.config.catalog import preset
from grpo_lab.runs import child as child_pool
from grpo_lab.ui import notebook_mode

CONFIG = preset("smoke").with_("run.threads=1", "run.num_steps=2")


class Idle:
    """A child as the pool sees it, without a process. Runs in a real one: test_worker.py and test_labs.py."""

    def __init__(self):
        self.alive = True

    def close(self):
        self.alive = False


@pytest.fixture(autouse=True)
def none_left(monkeypatch):
    """What a test warmed, it ends."""
    child_pool._close_all()
    monkeypatch.setattr(child_pool, "Child", Idle)
    yield
    child_pool._close_all()


def test_the_same_child_serves_again():
    with child_pool.warm_child() as child:
        pass
    with child_pool.warm_child() as again:
        assert again is child
    first, second = child_pool.take(), child_pool.take()
    assert first is child is not second
    child_pool.give_back(first)
    child_pool.give_back(second)
    assert first.alive and not second.alive


def test_a_dead_child_serves_no_run_and_is_replaced():
    child_pool.warm_up()
    child_pool.warm_up()
    (dead,) = child_pool._idle
    dead.close()
    with child_pool.warm_child() as child:
        assert child is not dead
        child.close()
    (fresh,) = child_pool._idle
    assert fresh.alive and fresh is not child


@pytest.mark.parametrize(("asked", "length"), [("1", (12, 16)), ("0", (50, 200)), ("", (50, 200))])
def test_runs_are_cut_only_when_asked(monkeypatch, asked, length):
    monkeypatch.setenv("GRPO_LAB_FAST", asked)
    run = notebook_mode.shortened(CONFIG.with_("run.num_steps=50", "run.num_eval=200")).run
    assert (run.num_steps, run.num_eval) == length
    assert notebook_mode.shortened(CONFIG).run.num_steps == 2
