"""Calls of reward functions as TRL makes them; of slow or remote ones several at once, with a time limit and retries.

One event loop, in a daemon thread, counts the seconds of all calls. Each call runs in a daemon thread of its own, and
an awaitable that it returns is awaited in the loop. A call that hangs is left behind in its thread, so that it holds up
neither the step nor the end of the process; its thread stays until it returns.
"""

import asyncio
import concurrent.futures
import functools
import inspect
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from inspect import isawaitable
from numbers import Real
from typing import Any, NamedTuple

import torch

from grpo_lab.config.sections import JudgeConfig
from grpo_lab.config.user_code import brief
from grpo_lab.errors import Sentence, joined
from grpo_lab.metrics import METRICS, of_run

LONGEST_WAIT = 60.0
"""Seconds before a retry at most, whatever a server asks for."""


@dataclass(frozen=True)
class TrainerState:
    """The progress of training, under the names of transformers' TrainerState."""

    global_step: int = 0
    """Steps of GRPO before this one."""
    max_steps: int = 0
    """Steps of GRPO that the run is going to make."""
    epoch: float = 0.0
    """Passes over the training prompts before this step."""


class Log:
    """The numbers and columns that reward functions log while one batch is judged, in several threads perhaps."""

    def __init__(self) -> None:
        self._metrics: dict[str, list[float]] = {}
        self._extras: dict[str, dict[int, Any]] = {}

    def metric(self, name: str, value: Any) -> None:
        """Log a number; several of one name become their mean. Raises ValueError for a name or value that is none."""
        if not isinstance(name, str) or not name or of_run(name) in METRICS:
            raise ValueError(f"log_metric({name!r}, …): the trainer has a metric of this name, or it is no name")
        if (found := number(value)) is None:
            raise ValueError(f"log_metric({name!r}, None): None is no number; log a number")
        self._metrics.setdefault(name, []).append(found)

    def extra(self, column: str, values: Sequence[Any], rows: Sequence[int]) -> None:
        """Log one value for each of these completions. Raises ValueError for another number of values."""
        if len(values := listed(values) or []) != len(rows):
            raise ValueError(f"log_extra({column!r}, …): {len(values)} values for {len(rows)} completions")
        self._extras.setdefault(column, {}).update(zip(rows, values, strict=True))

    @property
    def metrics(self) -> dict[str, float]:
        """The mean of each number; sorted first, so that the order of the calls does not change its last bits."""
        found = {name: torch.tensor(values, dtype=torch.float64) for name, values in self._metrics.copy().items()}
        return {name: values.sort().values.mean().item() for name, values in found.items()}

    def extras(self, rows: Sequence[int]) -> dict[str, tuple[Any, ...]]:
        """The logged values of these completions by column, None where there is none."""
        plain = (str, int, float, bool, type(None))
        columns = {name: [values.get(row) for row in rows] for name, values in self._extras.copy().items()}
        return {
            name: tuple(each if isinstance(each, plain) else str(each) for each in found)
            for name, found in columns.items()
        }


@dataclass(frozen=True)
class Arguments:
    """The arguments of all reward functions for one batch, with one element of each list for each completion."""

    prompts: Sequence[Any]
    completions: Sequence[Any]
    columns: Mapping[str, Sequence[Any]]
    completion_ids: Sequence[Sequence[int]] = ()
    """Empty where nothing was sampled."""
    trainer_state: TrainerState = TrainerState()
    log: Log = field(default_factory=Log)

    def to(self, function: Callable[..., Any], rows: Sequence[int] | None = None) -> dict[str, Any]:
        """The arguments of a call for these completions, or for all.

        A function receives the columns and, as far as it names them or takes `**kwargs`, those of OFFERED.
        """
        chosen = range(len(self.completions)) if rows is None else rows
        lists = {"prompts": self.prompts, "completions": self.completions, **self.columns}
        if self.completion_ids:
            lists["completion_ids"] = self.completion_ids
        offered = {
            "trainer_state": self.trainer_state,
            "log_metric": self.log.metric,
            "log_extra": partial(self.log.extra, rows=chosen),
        }
        given = {name: [values[row] for row in chosen] for name, values in lists.items()} | offered
        refused = OFFERED - _taken(function)
        return {name: value for name, value in given.items() if name not in refused}


OFFERED = frozenset({"completion_ids", "trainer_state", "log_metric", "log_extra"})
"""Arguments that a function need not take."""


def _taken(function: Callable[..., Any]) -> frozenset[str]:
    """The arguments of OFFERED that a function takes; none of a function whose signature Python does not know."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return frozenset()
    takes_all = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    return OFFERED if takes_all else OFFERED & parameters.keys()


def listed(answer: Any) -> list[Any] | None:
    """The elements of a list, a tuple, a NumPy array, a tensor or a pandas Series; None for anything else.

    >>> listed((1, None)), listed("no"), listed(2.0)
    ([1, None], None, None)
    """
    if isinstance(answer, list | tuple):
        return list(answer)
    found = answer.tolist() if hasattr(answer, "tolist") else None
    return found if isinstance(found, list) else None


def number(value: Any) -> float | None:
    """None or a float: of a number or bool of Python or NumPy, or of an array or tensor with one element.

    Raises TypeError for anything else, and OverflowError for a whole number that is too large.

    >>> number(True), number(None), number(3)
    (1.0, None, 3.0)
    """
    if value is None:
        return None
    if not isinstance(value, Real) and hasattr(value, "item"):
        try:
            value = value.item()
        except (ValueError, RuntimeError):
            raise TypeError("not one number") from None
    if not isinstance(value, Real):
        raise TypeError(f"of type {type(value).__name__}")
    return float(value)


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
            answer = await _in_thread(partial(function, **arguments))
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
