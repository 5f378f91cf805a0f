"""Reward functions in TRL's signature, `f(prompts, completions, **columns) -> list[float | None]`, and their sum."""

import inspect
import re
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any, NamedTuple

import torch

from grpo_lab.config import user_code
from grpo_lab.config.sections import JudgeConfig
from grpo_lab.errors import GrpoLabError, RewardError
from grpo_lab.tasks import judge_pool
from grpo_lab.tasks.http_judge import HttpJudge
from grpo_lab.tasks.tasks import Problem

Reward = Callable[..., Any]


def exact_match(
    prompts: Sequence[str], completions: Sequence[str], answer: Sequence[Any], **columns: Any
) -> list[float | None]:
    """1 for a completion that is the answer, else 0; surrounding space does not count. None where the answer is None.

    >>> exact_match(["1+1=", "1+2="], ["2", "4"], answer=["2", "3"])
    [1.0, 0.0]
    """
    pairs = zip(completions, answer, strict=True)
    return [None if wanted is None else float(text.strip() == str(wanted).strip()) for text, wanted in pairs]


def brief_answer(
    prompts: Sequence[str], completions: Sequence[str], answer: Sequence[Any], **columns: Any
) -> list[float | None]:
    """1 / number of words for a completion that has the answer among its words, else 0: each further word costs.

    Case and punctuation do not count. None where the answer is None.

    >>> brief_answer(["Sky?"] * 4, ["Blue.", "It is blue", "blue or red", "red"], answer=["blue"] * 4)
    [1.0, 0.3333333333333333, 0.3333333333333333, 0.0]
    """
    words = [re.findall(r"\w+", completion.casefold()) for completion in completions]
    shares = [
        1 / len(found) if str(wanted).casefold() in found else 0.0 for found, wanted in zip(words, answer, strict=True)
    ]
    return [None if wanted is None else share for share, wanted in zip(shares, answer, strict=True)]


def honest_answer(
    prompts: Sequence[str], completions: Sequence[str], answer: Sequence[Any], **columns: Any
) -> list[float | None]:
    """1 for a completion that is the answer, 0 for `?`, and -1 for everything else, which is made up.

    None where the answer is None.

    >>> honest_answer(["1+1?"] * 3, ["2", "?", "3"], answer=["2"] * 3)
    [1.0, 0.0, -1.0]
    """
    right = exact_match(prompts, completions, answer)
    left_open = [completion.strip() == "?" for completion in completions]
    return [None if r is None else 0.0 if is_open else 2 * r - 1 for r, is_open in zip(right, left_open, strict=True)]


class CountingJudge:
    """Takes one point off for a wrong answer, after counting up to the number that is given, 100 a second.

    The time is not waited for: a call that would last longer than `judge.timeout_s` raises TimeoutError at once, so
    that a judge that is slow for some completions costs no time, and runs repeat.
    """

    SPEED = 100

    def __init__(self, settings: JudgeConfig) -> None:
        self._limit = settings.timeout_s

    def __call__(
        self, prompts: Sequence[str], completions: Sequence[str], answer: Sequence[Any], **columns: Any
    ) -> list[float]:
        """0 for a completion that is the answer, else -1. Raises TimeoutError for a number that is too high."""
        given = [completion.strip() for completion in completions]
        if any(int(text) > self._limit * self.SPEED for text in given if re.fullmatch("[0-9]+", text)):
            raise TimeoutError
        return [float(text == str(wanted).strip()) - 1 for text, wanted in zip(given, answer, strict=True)]


INSTANT: dict[str, Reward] = {
    "exact_match": exact_match,
    "brief_answer": brief_answer,
    "honest_answer": honest_answer,
}
"""Reward functions that answer at once; they are called directly even where there is a pool."""
REWARDS: dict[str, Reward] = {**INSTANT, "counting_judge": CountingJudge, "http_judge": HttpJudge}


def load(name: str, settings: JudgeConfig | None = None) -> Reward:
    """The reward function of that name, or the one at "path/to/file.py:function".

    A class is called with the settings of `judge` first; the object that it makes is the reward function.

    >>> load("exact_match").__name__
    'exact_match'

    Raises RewardError for a name that does not exist, and for a file or a class that does not run.
    """
    found = user_code.named("reward", name, REWARDS, RewardError)  # `score` checks its results
    return _made(name, found, settings or JudgeConfig()) if inspect.isclass(found) else found


def _made(name: str, cls: Callable[..., Any], settings: JudgeConfig) -> Reward:
    """The object of a class. Raises RewardError for a class that does not run."""
    try:
        return cls(settings)
    except GrpoLabError:
        raise
    except Exception as error:
        raise RewardError(f"reward {name}: {user_code.said(error, '')}; it is made with one argument") from error


def score(
    functions: Sequence[Reward], prompts: Sequence[str], completions: Sequence[str], columns: dict[str, list[Any]]
) -> tuple[torch.Tensor, torch.Tensor]:
    """The sum of the functions' rewards, (B,) float32, and whether any of them judged each completion, (B,) bool.

    None means that a function does not judge a completion, and adds nothing. A completion that no function judges is
    not scorable, and its 0.0 means nothing. NaN and inf pass: guards stop them. Raises RewardError for other results.

    >>> score([exact_match, lambda completions, **_: [0.5, None]], ["1+1=", "1+2="], ["2", "4"], {"answer": ["2", "3"]})
    (tensor([1.5000, 0.0000]), tensor([True, True]))
    """
    if len(prompts) != len(completions):
        raise RewardError(f"{len(prompts)} prompts but {len(completions)} completions; give one prompt a completion")
    totals = [0.0] * len(completions)
    scorable = [False] * len(completions)
    answers = judge_pool.awaited([_called(function, prompts, completions, columns) for function in functions])
    for function, answer in zip(functions, answers, strict=True):
        for row, reward in enumerate(_rewards(function, answer, len(completions))):
            if reward is not None:
                totals[row] += reward
                scorable[row] = True
    return torch.tensor(totals, dtype=torch.float32), torch.tensor(scorable, dtype=torch.bool)


def _called(function: Reward, prompts: Sequence[str], completions: Sequence[str], columns: dict[str, list[Any]]) -> Any:
    """The function's answer, which may be awaitable, or the exception that it raised."""
    try:
        return function(prompts=prompts, completions=completions, **columns)
    except Exception as error:
        return error


def _rewards(function: Reward, answer: Any, wanted: int) -> list[float | None]:
    """The reward for each completion in one function's answer, checked. Raises RewardError for anything else."""
    name = getattr(function, "__name__", type(function).__name__)
    if isinstance(answer, BaseException):
        said = f"{type(answer).__name__}: {answer}"
        raise RewardError(f"reward {name} raised {said}; mend it or return None") from answer
    if not isinstance(answer, list | tuple):
        raise RewardError(f"reward {name} returned {type(answer).__name__}; return a list of float or None")
    if len(answer) != wanted:
        raise RewardError(f"reward {name} returned {len(answer)} values for {wanted} completions; return one each")
    return [_number(value, f"reward {name}, completion {row}") for row, value in enumerate(answer)]


def _number(value: Any, where: str) -> float | None:
    """None or a float, from bool and NumPy's numbers too. Raises RewardError for any other type."""
    if value is None:
        return None
    if not isinstance(value, Real):
        raise RewardError(f"{where}: {value!r} is of type {type(value).__name__}; return float or None")
    try:
        return float(value)
    except OverflowError as error:
        raise RewardError(f"{where}: a whole number beyond 1e308; return float or None") from error


class Judged(NamedTuple):
    """The rewards of one batch."""

    values: torch.Tensor
    """(B,) float32; 0.0 means nothing where a completion is not scorable."""
    scorable: torch.Tensor
    """(B,) bool."""
    calls: judge_pool.Calls | None
    """The calls in the pool; None where none is used."""


class Judging:
    """A batch whose completions are being judged; `result` waits for the calls in the pool."""

    def __init__(self, values: torch.Tensor, scorable: torch.Tensor, pending: judge_pool.Pending | None) -> None:
        self._direct = values, scorable
        self._pending = pending

    def result(self) -> Judged:
        """The sum of all rewards. A completion with a failed call is not scorable, whatever other functions say."""
        if self._pending is None:
            return Judged(*self._direct, None)
        calls = self._pending.result()
        values, scorable = self._direct
        for rewards in calls.rewards:
            values = values + torch.tensor([reward or 0.0 for reward in rewards])
            scorable = scorable | torch.tensor([reward is not None for reward in rewards], dtype=torch.bool)
        scorable[[row for row, _ in calls.failures]] = False
        return Judged(values, scorable, calls)


def begin(
    functions: Sequence[Reward],
    problems: Sequence[Problem],
    completions: Sequence[str],
    settings: JudgeConfig | None = None,
) -> Judging:
    """Begin to judge one completion a problem; the functions receive the problems' columns.

    Functions that answer at once are called now, and all of them without a pool (`judge.workers = 0`).
    Raises RewardError for a wrong answer of theirs.
    """
    settings = settings or JudgeConfig()
    columns = {name: [problem.columns[name] for problem in problems] for name in problems[0].columns}
    prompts = [problem.prompt for problem in problems]
    pooled = [each for each in functions if settings.workers and each not in INSTANT.values()]
    pending = judge_pool.begin(pooled, prompts, completions, columns, settings) if pooled else None
    direct = [each for each in functions if each not in pooled]
    return Judging(*score(direct, prompts, completions, columns), pending)


def judge(
    functions: Sequence[Reward],
    problems: Sequence[Problem],
    completions: Sequence[str],
    settings: JudgeConfig | None = None,
) -> Judged:
    """`begin`, and wait for the result."""
    return begin(functions, problems, completions, settings).result()
