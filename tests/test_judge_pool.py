"""Calls in the pool: in their order, several at once, with limit and retries; a failed one is None and is never 0."""

import asyncio
import subprocess
import sys
import threading

import pytest

import grpo_lab as gl
from grpo_lab.config.sections import JudgeConfig
from grpo_lab.core.hooks import Verdict
from grpo_lab.errors import ConfigError, RewardError
from grpo_lab.events import Ended, Stepped
from grpo_lab.metrics import METRICS
from grpo_lab.tasks import judge_pool, rewards
from grpo_lab.tasks.judge_pool import CallFailed
from grpo_lab.tasks.tasks import Problem

ONCE = JudgeConfig(workers=4, retries=0)
LONG = 10.0
"""Seconds after which a test that waits for an event gives up."""


def judged(function, completions, settings=ONCE, more=()):
    """The result for completions whose prompt is their number."""
    problems = [Problem(str(row), {"answer": text}) for row, text in enumerate(completions)]
    return rewards.begin([*more, function], problems, completions, settings)()


def reasons(function, settings=ONCE):
    """Why the one call of a function failed; its completion is not scorable."""
    found = judged(function, ["x"], settings)
    assert not found.scorable.any() and found.calls is not None and found.calls.rewards == [[None]]
    return [why for _, why in found.calls.failures]


def test_a_call_gets_lists_of_one_and_the_order_is_kept():
    last = threading.Event()

    def backwards(prompts, completions, answer):
        if completions == ["4"]:
            last.set()
        assert last.wait(LONG)
        assert len(prompts) == len(completions) == len(answer) == 1 and answer == completions
        return [float(prompts[0]) + float(completions[0])]

    found = judged(backwards, ["1", "2", "3", "4"])
    assert found.values.tolist() == [1, 3, 5, 7] and found.scorable.all()


def test_as_many_calls_run_at_once_as_there_are_workers_and_no_more():
    before, arrived, go = set(threading.enumerate()), threading.Semaphore(0), threading.Event()

    def waits(prompts, completions, **columns):
        arrived.release()
        assert go.wait(LONG)
        return [1.0]

    begun = rewards.begin([waits], [Problem("?", {})] * 9, ["x"] * 9, JudgeConfig(workers=3, retries=0))
    assert all(arrived.acquire(timeout=LONG) for _ in range(3))
    judge_pool.awaited([asyncio.sleep(0)])  # by now the loop has begun every call that it may
    assert len([thread for thread in set(threading.enumerate()) - before if thread.name == "judge"]) == 3
    go.set()
    assert begun().scorable.all()


def raises(error):
    def function(prompts, completions, **columns):
        raise error

    return function


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (raises(KeyError("x")), "raised KeyError: 'x'"),
        (raises(SystemExit(3)), "raised SystemExit: 3"),
        (raises(TimeoutError()), "timed out after 30 s"),
        (raises(CallFailed("no seat is free")), "no seat is free"),
        (lambda **_: ["I think so"], "answered 'I think so', no number"),
        (lambda **_: [1.0, 2.0], "answered [1.0, 2.0], not a list of one number"),
        (lambda **_: [10**400], "answered a whole number beyond 1e308"),
        (raises(ValueError("long " * 100)), f"raised ValueError: {'long ' * 12} ..."),
    ],
)
def test_a_failed_call_is_none_and_says_why(function, why):
    assert reasons(function) == [why]


def test_none_of_the_functions_own_is_no_failure():
    found = judged(lambda **_: [None], ["x"])
    assert found.scorable.tolist() == [False] and found.calls is not None and found.calls.failures == ()


def test_what_other_functions_say_does_not_turn_a_failed_call_into_a_0():
    def judge(prompts, completions, **columns):
        if completions == ["b"]:
            raise ValueError
        return [None if completions == ["c"] else -1.0]

    values, scorable, *_ = judged(judge, ["a", "b", "c"], more=[rewards.exact_match])
    assert scorable.tolist() == [True, False, True]
    assert values[scorable].tolist() == [0.0, 1.0]


def test_a_call_that_hangs_is_left_behind():
    released = threading.Event()

    def hangs(prompts, completions, **columns):
        if completions == ["slow"]:
            released.wait(LONG)
        return [1.0]

    found = judged(hangs, ["slow", "fast"], JudgeConfig(workers=1, retries=0, timeout_s=0.2))
    released.set()
    assert found.scorable.tolist() == [False, True]
    assert found.calls is not None and found.calls.in_words() == "1 of 2 calls failed: 1 timed out after 0.2 s"
    assert found.calls.failed == 0.5


@pytest.mark.slow
def test_a_call_that_hangs_does_not_keep_the_process():
    code = """
import threading
from grpo_lab.config.sections import JudgeConfig
from grpo_lab.tasks import judge_pool
from grpo_lab.tasks.judge_pool import Arguments
hang, given = lambda **_: threading.Event().wait(), Arguments(["?"], ["x"], {})
print(judge_pool.begin([hang], given, JudgeConfig(workers=1, retries=0, timeout_s=0.03))().failures)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (0, "((0, 'timed out after 0.03 s'),)\n", "")


def recorded_waits(monkeypatch):
    """The seconds that retries would have waited, in place of the waiting."""
    waits = []

    async def sleep(seconds):
        waits.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    return waits


def test_a_failed_call_is_made_again_after_a_wait_that_doubles(monkeypatch):
    waits, calls = recorded_waits(monkeypatch), []

    def third_time(prompts, completions, **columns):
        calls.append(1)
        if len(calls) < 4:
            raise ConnectionError
        return [1.0]

    found = judged(third_time, ["x"], JudgeConfig(workers=1, retries=3, backoff=0.25))
    assert found.values.tolist() == [1.0] and found.calls is not None and found.calls.failures == ()
    assert waits == [0.25, 0.5, 1.0]


def test_the_last_retry_decides_and_some_failures_are_not_tried_again(monkeypatch):
    waits, settings = recorded_waits(monkeypatch), JudgeConfig(workers=1, retries=2, backoff=0.25)
    assert reasons(raises(CallFailed("busy", after=0.3)), settings) == ["busy"]
    assert waits == [0.3, 0.5], "the server's wait where it is longer than the backoff"
    waits.clear()
    assert reasons(raises(CallFailed("asleep", after=3600)), settings) == ["asleep"]
    assert waits == [judge_pool.LONGEST_WAIT] * 2
    waits.clear()
    assert reasons(raises(CallFailed("forbidden", again=False)), settings) == ["forbidden"]
    assert reasons(lambda **_: ["prose"], settings) == ["answered 'prose', no number"]
    assert waits == []


@pytest.mark.parametrize("workers", [0, 2])
def test_async_calls_run_at_once(workers):
    arrived = []
    both = asyncio.Event()

    async def waits(prompts, completions, **columns):
        arrived.append(completions)
        if len(arrived) == 2:
            both.set()
        await asyncio.wait_for(both.wait(), LONG)
        return [1.0] * len(completions)

    functions = [waits, waits] if not workers else [waits]
    problems = [Problem("?", {})] * (1 if not workers else 2)
    found = rewards.begin(functions, problems, ["x"] * len(problems), JudgeConfig(workers=workers))()
    assert found.scorable.all() and len(arrived) == 2


def test_a_class_is_made_with_the_settings_of_the_judge(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("class Mine:\n    def __init__(self, settings):\n        self.worth = settings.timeout_s\n"
                    "    def __call__(self, completions, **columns):\n        return [self.worth] * len(completions)\n"
                    "class Other: ...\n")  # fmt: skip
    assert rewards.load(f"{path}:Mine", JudgeConfig(timeout_s=4))(completions=["x"]) == [4.0]
    with pytest.raises(RewardError, match=r"Other: TypeError: .*takes no arguments; it is made with one argument"):
        rewards.load(f"{path}:Other")


# --- a run with a judge ----------------------------------------------------------------------------------------------

SMALL = gl.preset("plain").with_("run.threads=1", "run.device=cpu", "data.num_prompts=2", "run.num_steps=3")
POOL = ("judge.workers=4", "judge.retries=0")


def longer(prompts, completions, **columns):
    return [float(len(text)) for text in completions]


def steps_of(config, function, status="done"):
    events = list(gl.train(config, rewards=[function]))
    assert isinstance(events[-1], Ended) and events[-1].status == status
    return [event for event in events if isinstance(event, Stepped)]


def test_a_pool_changes_no_number():
    direct, pooled = steps_of(SMALL, longer), steps_of(SMALL.with_(*POOL), longer)
    for one, other in zip(direct, pooled, strict=True):
        assert one.links == other.links and one.metrics["loss"] == other.metrics["loss"]
        assert set(other.metrics) - set(one.metrics) == {"judge/failed", "judge/time"} <= set(METRICS)
        assert other.metrics["judge/failed"] == 0 and other.metrics["judge/time"] >= 0 and other.actions == one.actions


def fails_on(chosen):
    """A judge that fails for the chosen calls, counted from 0, and gives 7 else."""
    count = iter(range(10**6))

    def judge(prompts, completions, **columns):
        if chosen(next(count)):
            raise ConnectionError("gone")
        return [7.0]

    return judge


def test_failed_calls_are_left_out_and_the_step_says_so():
    step = steps_of(SMALL.with_(*POOL, "run.num_steps=1"), fails_on(lambda call: call < 3))[0]
    assert step.metrics["reward"] == 7.0, "a failed call that counted as 0 would lower the mean"
    assert step.metrics["judge/failed"] == pytest.approx(3 / 16)
    said = [(a.name, a.kind, a.stage, a.verdict, a.reason) for a in step.actions if a.name == "judge"]
    assert said == [
        ("judge", "trainer", "rewards", Verdict.KEEP, "3 of 16 calls failed: 3 raised ConnectionError: gone")
    ]


def test_a_step_with_too_many_failed_calls_is_refused_and_the_run_goes_on():
    steps = steps_of(SMALL.with_(*POOL, "judge.max_failed=0.25"), fails_on(lambda call: 16 <= call < 22))
    assert [step.verdict for step in steps] == [Verdict.KEEP, Verdict.SKIP_STEP, Verdict.KEEP]
    assert [step.updates for step in steps] == [1, 0, 1]
    assert steps[1].actions[-1].reason == ("share 0.375 > 0.25; 6 of 16 calls failed: 6 raised ConnectionError: gone")
    assert steps[1].metrics["judge/failed"] == 0.375 and "reward" not in steps[1].metrics


def test_the_counting_judge_times_out_where_counting_takes_too_long():
    judge = rewards.load("counting_judge", JudgeConfig(timeout_s=2))
    assert judge(["?"] * 3, ["200", " 3", "x"], answer=["200", "4", "x"]) == [0.0, -1.0, 0.0]
    with pytest.raises(TimeoutError):
        judge(["?"], ["201"], answer=["201"])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("judge.max_failed=1.5", r"judge.max_failed = 1.5: must be at least 0 and at most 1"),
        ("judge.url=http://localhost:8000/v1", "judge.url = 'http://localhost:8000/v1' .* docs/examples/http_judge.py"),
    ],
)
def test_a_mistake_in_the_settings_is_named(override, message):
    with pytest.raises(ConfigError, match=message):
        gl.Config().with_(override)
