"""Reward functions in TRL's signature, `f(prompts, completions, **columns) -> list[float | None]`, and their sum."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from grpo_lab.config import user_code
from grpo_lab.config.sections import JudgeConfig
from grpo_lab.errors import ConfigError, GrpoLabError, RewardError
from grpo_lab.tasks import judge_pool
from grpo_lab.tasks.conversations import Prompt, text_of
from grpo_lab.tasks.judge_pool import Arguments, Log, TrainerState, listed, number
from grpo_lab.tasks.tasks import Problem

Reward = Callable[..., Any]
Texts = Sequence[Prompt]
"""Prompts or completions: texts, or conversations."""
Rows = list[float | None]
"""One reward for each completion; None where the function does not judge it."""


def exact_match(prompts: Texts, completions: Texts, answer: Sequence[Any], **columns: Any) -> Rows:
    """1 for a completion that is the answer, else 0; surrounding space does not count. None where the answer is None.

    >>> exact_match(["1+1=", "1+2="], ["2", "4"], answer=["2", "3"])
    [1.0, 0.0]
    """
    pairs = zip(completions, answer, strict=True)
    return [None if wanted is None else float(text_of(text).strip() == str(wanted).strip()) for text, wanted in pairs]


def true_sum(prompts: Texts, completions: Texts, **columns: Any) -> Rows:
    """1 for a completion that makes a true sum of its prompt, else 0.

    >>> true_sum(["1", "1", "1"], ["2+34=46", "2+34=45", "46"])
    [1.0, 0.0, 0.0]
    """
    texts = [text_of(prompt) + text_of(text) for prompt, text in zip(prompts, completions, strict=True)]
    sums = [re.fullmatch(r"(\d+)\+(\d+)=(\d+)", text, re.ASCII) for text in texts]
    return [float(bool(each) and int(each[1]) + int(each[2]) == int(each[3])) for each in sums]


def brief_answer(prompts: Texts, completions: Texts, answer: Sequence[Any], **columns: Any) -> Rows:
    """1 / number of words for a completion that has the answer among its words, else 0: each further word costs.

    Case and punctuation do not count. None where the answer is None.

    >>> brief_answer(["Sky?"] * 4, ["Blue.", "It is blue", "blue or red", "red"], answer=["blue"] * 4)
    [1.0, 0.3333333333333333, 0.3333333333333333, 0.0]
    """
    words = [re.findall(r"\w+", text_of(completion).casefold()) for completion in completions]
    shares = [
        1 / len(found) if str(wanted).casefold() in found else 0.0 for found, wanted in zip(words, answer, strict=True)
    ]
    return [None if wanted is None else share for share, wanted in zip(shares, answer, strict=True)]


def honest_answer(prompts: Texts, completions: Texts, answer: Sequence[Any], **columns: Any) -> Rows:
    """1 for a completion that is the answer, 0 for `?`, and -1 for everything else, which is made up.

    None where the answer is None.

    >>> honest_answer(["1+1?"] * 3, ["2", "?", "3"], answer=["2"] * 3)
    [1.0, 0.0, -1.0]
    """
    right = exact_match(prompts, completions, answer)
    left_open = [text_of(completion).strip() == "?" for completion in completions]
    return [None if r is None else 0.0 if is_open else 2 * r - 1 for r, is_open in zip(right, left_open, strict=True)]


def two_digit_format(prompts: Texts, completions: Texts, **columns: Any) -> list[float]:
    """1 for a completion of two digits and nothing else, right or wrong, else 0.

    Half of the answers of `addition` have this format, so that where it pays as much as `exact_match`, it wins.

    >>> two_digit_format(["50+49=", "50+50=", "50+50="], ["98", "100", "99."])
    [1.0, 0.0, 0.0]
    """
    return [float(re.fullmatch("[0-9]{2}", text_of(completion)) is not None) for completion in completions]


class CountingJudge:
    """Takes one point off for a wrong answer, after counting up to the number that is given, 100 a second.

    The time is not waited for: a call that would last longer than `judge.timeout_s` raises TimeoutError at once, so
    that a judge that is slow for some completions costs no time, and runs repeat.
    """

    SPEED = 100

    def __init__(self, settings: JudgeConfig) -> None:
        self._limit = settings.timeout_s

    def __call__(self, prompts: Texts, completions: Texts, answer: Sequence[Any], **columns: Any) -> list[float]:
        """0 for a completion that is the answer, else -1. Raises TimeoutError for a number that is too high."""
        given = [text_of(completion).strip() for completion in completions]
        if any(int(text) > self._limit * self.SPEED for text in given if re.fullmatch("[0-9]+", text)):
            raise TimeoutError
        return [float(text == str(wanted).strip()) - 1 for text, wanted in zip(given, answer, strict=True)]


INSTANT: dict[str, Reward] = {
    reward.__name__: reward for reward in (exact_match, true_sum, brief_answer, honest_answer, two_digit_format)
}
"""Reward functions that answer at once; they are called directly even where there is a pool."""
REWARDS: dict[str, Reward] = {**INSTANT, "counting_judge": CountingJudge}


def load(name: str, settings: JudgeConfig | None = None) -> Reward:
    """The reward function of that name, or the one at "path/to/file.py:function".

    A class is called with the settings of `judge` first; the object that it makes is the reward function.

    >>> load("exact_match").__name__
    'exact_match'

    Raises RewardError for a name that does not exist, and for a file or a class that does not run.
    """
    found: Any = user_code.named("reward", name, REWARDS, RewardError)
    if not isinstance(found, type):
        return found
    try:
        return found(settings or JudgeConfig())
    except GrpoLabError:
        raise
    except Exception as error:
        raise RewardError(f"reward {name}: {user_code.said(error, '')}; it is made with one argument") from error


class Judged(NamedTuple):
    """The rewards of one batch."""

    values: torch.Tensor
    """(B,) float32; 0.0 means nothing where a completion is not scorable."""
    scorable: torch.Tensor
    """(B,) bool."""
    calls: judge_pool.Calls | None
    """The calls in the pool; None where none is used."""
    metrics: Mapping[str, float]
    """Mean and deviation of each function, unless a built-in one is alone, and the numbers that were logged."""
    log: Log


def begin(
    functions: Sequence[Reward],
    problems: Sequence[Problem],
    completions: Sequence[str],
    settings: JudgeConfig | None = None,
    weights: Sequence[float] = (),
    completion_ids: Sequence[Sequence[int]] = (),
    state: TrainerState | None = None,
) -> Callable[[], Judged]:
    """Begin to judge one completion a problem; what is returned waits for the calls in the pool, and adds up rewards.

    The functions receive the problems' columns, and what TRL passes.

    Functions that answer at once are called now, and all of them without a pool (`judge.workers = 0`).
    Raises RewardError for a wrong answer of theirs, and ConfigError for another number of weights than functions.
    """
    settings, weights = settings or JudgeConfig(), weights_of(weights, functions)
    columns = {name: [problem.columns[name] for problem in problems] for name in problems[0].columns}
    answers = [problem.answered(text) for problem, text in zip(problems, completions, strict=True)]
    prompts = [problem.prompt for problem in problems]
    given = Arguments(prompts, answers, columns, completion_ids, state or TrainerState())
    pooled = [each for each in functions if settings.workers and each not in INSTANT.values()]
    pending = judge_pool.begin(pooled, given, settings) if pooled else None
    direct = {place: each for place, each in enumerate(functions) if each not in pooled}
    said = judge_pool.awaited([_called(function, given) for function in direct.values()])
    rows = [_rewards(function, answer, len(answers)) for function, answer in zip(direct.values(), said, strict=True)]
    at_once = dict(zip(direct, rows, strict=True))

    def result() -> Judged:
        calls = pending() if pending else None
        answered = iter(calls.rewards if calls else ())
        rewards = [at_once[place] if place in at_once else next(answered) for place in range(len(functions))]
        return _judged(functions, rewards, weights, calls, given.log)

    return result


def _judged(
    functions: Sequence[Reward],
    rows: Sequence[Rows],
    weights: Sequence[float],
    calls: judge_pool.Calls | None,
    log: Log,
) -> Judged:
    """The weighted sum of all rewards, of which None, for not judged, adds nothing.

    A completion that no function judges is not scorable, nor is one with a failed call, whatever others say. NaN and
    inf pass: guards stop them.
    """
    totals, judged = [0.0] * len(rows[0]), [False] * len(rows[0])
    for rewards, weight in zip(rows, weights, strict=True):
        for row, reward in enumerate(rewards):
            if reward is not None:
                totals[row] += weight * reward
                judged[row] = True
    values, scorable = torch.tensor(totals, dtype=torch.float32), torch.tensor(judged, dtype=torch.bool)
    if calls:
        scorable[[row for row, _ in calls.failures]] = False
    metrics: dict[str, float] = {}
    first = functions[0]
    if len(rows) > 1 or not any(known in (first, type(first)) for known in REWARDS.values()):
        for name, rewards in zip(named(functions), rows, strict=True):
            metrics |= metrics_of(name, rewards)
    return Judged(values, scorable, calls, metrics | log.metrics, log)


def metrics_of(name: str, rewards: Rows) -> dict[str, float]:
    """Mean and standard deviation of the completions that a function judged, by metric, with TRL's names.

    The deviation has Bessel's correction, as in TRL, and is left out where there are fewer than two.

    >>> metrics_of("f", [1.0, None, 3.0])
    {'rewards/f/mean': 2.0, 'rewards/f/std': 1.4142135623730951}
    """
    judged = torch.tensor([reward for reward in rewards if reward is not None], dtype=torch.float64)
    mean = {f"rewards/{name}/mean": judged.mean().item()} if len(judged) else {}
    return mean | ({f"rewards/{name}/std": judged.std().item()} if len(judged) > 1 else {})


def named(functions: Sequence[Callable[..., Any]]) -> list[str]:
    """The name of each function in metrics, as in TRL; the second of one name is `name-2`.

    >>> named([max, min, max])
    ['max', 'min', 'max-2']
    """
    names = [getattr(function, "__name__", type(function).__name__) for function in functions]
    earlier = [names[:place].count(name) for place, name in enumerate(names)]
    return [f"{name}-{count + 1}" if count else name for name, count in zip(names, earlier, strict=True)]


def weights_of(weights: Sequence[float], functions: Sequence[Reward]) -> Sequence[float]:
    """One weight for each function, 1 where none is given. Raises ConfigError for another number of weights."""
    if weights and len(weights) != len(functions):
        raise ConfigError(
            f"data.reward_weights has {len(weights)} weights for {len(functions)} reward functions; give one each"
        )
    return weights or [1.0] * len(functions)


def _called(function: Reward, given: Arguments) -> Any:
    """The function's answer, which may be awaitable, or the exception that it raised."""
    try:
        return function(**given.to(function))
    except Exception as error:
        return error


def _rewards(function: Reward, answer: Any, wanted: int) -> Rows:
    """The reward for each completion in one function's answer. Raises RewardError for anything else."""
    (name,), values = named([function]), listed(answer)
    if isinstance(answer, BaseException):
        said = f"{type(answer).__name__}: {answer}"
        raise RewardError(f"reward {name} raised {said}; mend it or return None") from answer
    if values is None:
        raise RewardError(f"reward {name} returned {type(answer).__name__}; return a list of float or None")
    if len(values) != wanted:
        raise RewardError(f"reward {name} returned {len(values)} values for {wanted} completions; return one each")
    found: Rows = []
    for row, value in enumerate(values):
        try:
            found.append(number(value))
        except (TypeError, OverflowError) as error:
            told = f"{value!r} is {error}" if isinstance(error, TypeError) else "a whole number beyond 1e308"
            raise RewardError(f"reward {name}, completion {row}: {told}; return float or None") from error
    return found
