"""Tasks side by side: never more than asked for, and Ctrl-C, a failure or an early end leave none behind."""

import os
import signal
import threading
import time
from contextlib import closing

import pytest

from grpo_lab.runs.clusters import side_by_side


def never():
    raise AssertionError("nothing had to be ended")


@pytest.mark.parametrize("jobs", [1, 3])
def test_every_task_gives_its_result_and_no_more_run_than_asked_for(jobs):
    running, most, lock = set(), [], threading.Lock()

    def run(task):
        with lock:
            running.add(task)
            most.append(len(running))
        time.sleep(0.02)
        with lock:
            running.discard(task)
        return task or None  # a result may be None

    assert sorted(side_by_side(range(9), run, jobs, never), key=str) == [*range(1, 9), None]
    assert max(most) == jobs
    assert list(side_by_side([], run, jobs, never)) == []


@pytest.mark.parametrize("end_it", ["a failure", "an early end", "a second Ctrl-C"])
def test_what_runs_is_ended_at_once_and_nothing_else_begins(end_it):
    begun, released, threads = [], threading.Event(), threading.active_count()

    def run(task):
        begun.append(task)
        if task == 0:
            if end_it == "a failure":
                raise ValueError("task 0")
            return task
        assert released.wait(30), "was not ended"
        return task

    with (
        pytest.raises((ValueError, KeyboardInterrupt, StopIteration)) as caught,
        closing(side_by_side(range(9), run, 2, released.set)) as results,
    ):
        assert next(results) == 0
        if end_it == "an early end":
            raise StopIteration
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
    assert isinstance(caught.value, ValueError) == (end_it == "a failure")
    assert released.is_set() and len(begun) <= 4 and threading.active_count() <= threads


def test_after_ctrl_c_the_running_tasks_end_and_no_other_begins():
    before, begun = signal.getsignal(signal.SIGINT), []

    def run(task):
        begun.append(task)
        if task == 1:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.2)
        return task

    done = list(side_by_side(range(9), run, 2, never))
    assert sorted(done) == sorted(begun) and 1 in done and len(done) < 9
    assert signal.getsignal(signal.SIGINT) is before
