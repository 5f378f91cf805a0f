"""Calls of slow or remote reward functions: several at once, each with a time limit and retries, in their order.

One event loop, in a daemon thread, counts the seconds of all calls. Each call runs in a daemon thread of its own, and
an awaitable that it returns is awaited in the loop. A call that hangs is left behind in its thread, so that it holds up
neither the step nor the end of the process; its thread stays until it returns.
"""

import asyncio
import concurrent.futures
import functools
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from inspect import isawaitable
from typing import Any, NamedTuple

from grpo_lab.config.sections import JudgeConfig
from grpo_lab.messages import Sentence, joined
from grpo_lab.tasks.reward_calls import Arguments, listed, number

LONGEST_WAIT = 60.0
"""Seconds before a retry at most, whatever a server asks for."""
LONGEST_TEXT = 60
"""Characters of an answer or of an error's message that are shown."""


class CallFailed(Exception):
    """A call that gave no reward; a reward function may raise it, to say whether and when to call again."""

    def __init__(self, why: str, again: bool = True, after: float = 0.0) -> None:
        super().__init__(why)
        self.why = why
        self.again = again
        self.after = after
        """Seconds before the next call at least."""


class Calls(NamedTuple):
    """What the calls in the pool answered."""

    rewards: list[list[float | None]]
    """Of each function, for each completion; a failed call has None."""
    failures: tuple[tuple[int, str], ...]
    """The completion and the reason of each failed call."""
    total: int
    waited: float
    """Seconds that the step waited for the last of them."""

    @property
    def failed(self) -> float:
        """The share of the calls that failed."""
        return len(self.failures) / self.total if self.total else 0.0

    def in_words(self) -> str:
        """How many calls failed, and the most frequent reasons.

        >>> Calls([[1.0, None, None]], ((1, "timed out after 10 s"), (2, "raised KeyError: 'x'")), 3, 10.1).in_words()
        "2 of 3 calls failed: 1 timed out after 10 s, 1 raised KeyError: 'x'"
        """
        reasons = Counter(why for _, why in self.failures).most_common(3)
        named = joined(", ", [Sentence("{} {}", count, why) for why, count in reasons])
        return Sentence("{} of {} calls failed: {}", len(self.failures), self.total, named)


def begin(functions: Sequence[Callable[..., Any]], given: Arguments, settings: JudgeConfig) -> Callable[[], Calls]:
    """Begin to call each function for each completion, with lists of one; what is returned waits for the last call."""
    rows = range(len(given.completions))
    calls = [_reward(function, given.to(function, [row]), settings) for function in functions for row in rows]
    future = asyncio.run_coroutine_threadsafe(_all(calls), _loop())

    def result() -> Calls:
        started, size = time.perf_counter(), len(rows)
        answers = _wait(future)
        failures = tuple((place % size, e.why) for place, e in enumerate(answers) if isinstance(e, CallFailed))
        rewards = [None if isinstance(answer, CallFailed) else answer for answer in answers]
        of_each = [rewards[first : first + size] for first in range(0, len(rewards), size)]
        return Calls(of_each, failures, len(answers), time.perf_counter() - started)

    return result


def awaited(answers: Sequence[Any]) -> list[Any]:
    """The answers, of which those that are awaitable are awaited, all at once; one that raises is its exception."""
    waiting = [_caught(answer) for answer in answers if isawaitable(answer)]
    if not waiting:
        return list(answers)
    found = iter(_wait(asyncio.run_coroutine_threadsafe(_all(waiting), _loop())))
    return [next(found) if isawaitable(answer) else answer for answer in answers]


def _wait(future: concurrent.futures.Future[list[Any]]) -> list[Any]:
    """The future's result. An interruption, as by Ctrl-C, cancels the calls that have not begun."""
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    """The event loop of all calls, begun with the first one."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="judge-loop", daemon=True).start()
    return loop


@functools.cache
def _slots(settings: JudgeConfig) -> asyncio.Semaphore:
    """The limit of calls at once, which judgings with the same settings share."""
    return asyncio.Semaphore(settings.workers)


async def _all(calls: Sequence[Awaitable[Any]]) -> list[Any]:
    return await asyncio.gather(*calls)


async def _reward(
    function: Callable[..., Any], arguments: dict[str, Any], settings: JudgeConfig
) -> float | CallFailed | None:
    """The reward of one completion, or the failure of the last retry."""
    failed = CallFailed("was not made")
    for attempt in range(settings.retries + 1):
        try:
            async with _slots(settings):
                return await _once(function, arguments, settings.timeout_s)
        except CallFailed as error:
            failed = error
        if not failed.again or attempt == settings.retries:
            break
        await asyncio.sleep(min(max(settings.backoff * 2 ** min(attempt, 30), failed.after), LONGEST_WAIT))
    return failed


async def _once(function: Callable[..., Any], arguments: dict[str, Any], timeout: float) -> float | None:
    """The reward of one call. Raises CallFailed for one that raised, gave no number or took more than `timeout` s."""
    try:
        async with asyncio.timeout(timeout):
            answer = await _in_thread(functools.partial(function, **arguments))
            answer = await _caught(answer) if isawaitable(answer) else answer
            if isinstance(answer, BaseException):
                raise answer
            return number_of(answer)
    except CallFailed:
        raise
    except TimeoutError as error:  # of the limit above, or of the function itself
        own = Sentence("timed out: {}", brief(error)) if str(error) else Sentence("timed out after {:g} s", timeout)
        raise CallFailed(own) from error
    except (Exception, SystemExit) as error:
        raise CallFailed(Sentence("raised {}: {}", type(error).__name__, brief(error))) from error


async def _in_thread(call: Callable[[], Any]) -> Any:
    """The answer of a call in a daemon thread of its own, or the exception that it raised."""
    future: concurrent.futures.Future[Any] = concurrent.futures.Future()

    def run() -> None:
        if future.set_running_or_notify_cancel():
            try:
                answer = call()
            except (Exception, SystemExit) as error:
                answer = error
            future.set_result(answer)

    threading.Thread(target=run, name="judge", daemon=True).start()
    return await asyncio.wrap_future(future)


async def _caught(awaitable: Awaitable[Any]) -> Any:
    """The result, or the exception that was raised: a SystemExit would end the loop."""
    try:
        return await awaitable
    except (Exception, SystemExit) as error:
        return error


def number_of(answer: Any) -> float | None:
    """The one reward in an answer. Raises CallFailed, which is not tried again, for anything but a list of one."""
    values = listed(answer)
    if values is None or len(values) != 1:
        raise CallFailed(Sentence("answered {}, not a list of one number", brief(repr(answer))), again=False)
    try:
        return number(values[0])
    except TypeError:
        raise CallFailed(Sentence("answered {}, no number", brief(repr(values[0]))), again=False) from None
    except OverflowError:
        raise CallFailed(Sentence("answered a whole number beyond 1e308"), again=False) from None


def brief(text: object) -> str:
    """A text in one line of at most LONGEST_TEXT characters."""
    words = " ".join(str(text).split())
    return words if len(words) <= LONGEST_TEXT else f"{words[:LONGEST_TEXT]} ..."
