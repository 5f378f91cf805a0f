"""What the names in a log mean: exact ones of data/metrics.toml first, then the words of data/diagnosis/names.toml."""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import NamedTuple

from grpo_lab.errors import LogError, unknown
from grpo_lab.metrics import METRICS, OTHER_NAMES, of_objective
from grpo_lab.paths import data_directory, read_toml

_NAMES = read_toml(data_directory() / "diagnosis" / "names.toml")
STEP_NAMES, PREFIXES = tuple(_NAMES["step"]), tuple(_NAMES["prefixes"])
_ONLY = {source: re.compile(pattern) for source, pattern in _NAMES["only"].items()}
TRAINERS = ("trl", "ms-swift")
"""Frameworks built on Hugging Face's Trainer, which replaces a loss of NaN in its log by a finite number."""
CUMULATIVE = "num_tokens"
"""Hugging Face's Trainer counts these from the start of the run; here they are counted for each step."""
HELD_OUT = "eval/reward"
_WITHOUT = frozenset(_NAMES["words"]["without"].split())
_NOT_BEFORE = frozenset(_NAMES["words"]["not_before_a_slash"].split())
_HELD_OUT = frozenset(_NAMES["words"]["held_out"].split())
_SPELT = {old: new.split() for new, others in _NAMES["words"]["spelt"].items() for old in others.split()}
_WORD = re.compile(r"[^\W_]+(?:@\d*)?")
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")
_MEANS = [(metric, re.compile(words)) for metric, patterns in _NAMES["means"].items() for words in patterns]
_EXACT = {
    name: (metric, rank) for metric in METRICS for rank, name in enumerate((metric, *OTHER_NAMES.get(metric, ())))
}
_FUNCTION = re.compile(r"rewards/(?P<name>.+?)(?P<mean>/mean)?$")
_IS = {part: re.compile(_NAMES[part]["is"]) for part in ("held_out", "functions")}
_IS_NOT = {part: re.compile(_NAMES[part]["not"]) for part in ("held_out", "functions")}
_USELESS = re.compile(_NAMES["unread"]["useless"])
_NEAR = {metric: re.compile(words) for metric, words in _NAMES["near"].items()}
MEASURED = frozenset((*_NAMES["near"], "reward_std", HELD_OUT))
"""Measures of a step; settings as learning_rate and beta are printed elsewhere too."""
_GIVEN: ContextVar[tuple[Mapping[str, str], set[str]]] = ContextVar("given", default=({}, set()))
"""The names that are given for metrics, and those of them that the log has."""


class Meaning(NamedTuple):
    """The metric that a name stands for; of two names of one metric the one of the smaller rank counts."""

    metric: str
    rank: int


@contextmanager
def given(names: Mapping[str, str]) -> Iterator[set[str]]:
    """Read the log's names that are given for metrics; of these the log has those yielded. LogError for no metric."""
    for metric in names:
        if metric not in METRICS:
            raise unknown("metric", metric, METRICS, LogError)
    there: set[str] = set()
    token = _GIVEN.set((names, there))
    try:
        yield there
    finally:
        _GIVEN.reset(token)


def bare(name: str) -> str:
    """The name without a callback's prefix, and without the blanks and words of a notebook's table.

    >>> bare("train/kl"), bare("rewards / right / mean"), bare("Training Loss")
    ('kl', 'rewards/right/mean', 'loss')
    """
    name = name.replace(" / ", "/") if name != "Training Loss" else "loss"
    return next((name.removeprefix(prefix) for prefix in PREFIXES if name.startswith(prefix)), name)


@lru_cache(10_000)
def words_of(name: str) -> tuple[str, bool]:
    """The words of a name, each in one spelling, and whether it is of problems that are not trained.

    >>> words_of("Avg Response Len"), words_of("val/meanReward")
    (('response length', False), ('reward', True))
    """
    found = [word for part in _CAMEL.split(name) for word in _WORD.findall(part.lower())]
    held_out = not _HELD_OUT.isdisjoint(found)
    every = [each for word in found if word not in _HELD_OUT for each in _SPELT.get(word, [word])]
    once = [word for word, before in zip(every, [None, *every], strict=False) if word != before]
    return " ".join([word for word in once if word not in _WITHOUT] or once), held_out


@lru_cache(10_000)
def meaning(name: str) -> Meaning | None:
    """The metric that a name of one of the run's numbers means, or None.

    >>> meaning("Avg Response Len").metric, meaning("eval_acc").metric, meaning("actor/ppo_kl"), meaning("reward_min")
    ('completions/mean_length', 'eval/reward', None, None)
    """
    if exact := _EXACT.get(bare(name)):
        return Meaning(*exact)
    words, held_out = words_of(name)
    first, _, rest = name.partition("/")
    if held_out:
        fits = _IS["held_out"].search(words) and not _IS_NOT["held_out"].search(words)
        return Meaning(HELD_OUT, 100) if fits else None
    found = next((Meaning(metric, 100 + at) for at, (metric, is_) in enumerate(_MEANS) if is_.fullmatch(words)), None)
    if found or len(rest) < 2 or not _NOT_BEFORE.isdisjoint(_WORD.findall(first.lower())):
        return found
    inner = meaning(rest)
    return inner and inner._replace(rank=inner.rank + 1000)


def measured(names: Iterable[str]) -> set[str]:
    """The measures of a step among the metrics that names mean."""
    return {metric for metric in choose(names) if metric in MEASURED}


def choose(names: Iterable[str], source: str = "") -> dict[str, str]:
    """For each metric that was logged, of the run or of one objective, its name in the log of a source, if it is known.

    >>> choose(["train/kl", "critic/score/mean", "critic/rewards/mean", "perf/mfu/actor"])
    {'reward': 'critic/rewards/mean', 'kl': 'train/kl'}
    """
    logged = {bare(name): name for name in reversed(list(names))}
    cumulative = (source or source_of(logged.values())) in TRAINERS
    best: dict[str, tuple[int, str]] = {}
    for name in reversed(logged.values()):
        found = meaning(name)
        if found and not (cumulative and found.metric == CUMULATIVE):
            known = best.get(found.metric)
            best[found.metric] = known if known and known[0] <= found.rank else (found.rank, name)
    wanted, there = _GIVEN.get()
    asked = {metric: name for metric, name in wanted.items() if name in logged.values()}
    there.update(asked.values())
    chosen = {metric: name for metric, (_, name) in best.items() if name not in asked.values()} | asked
    # TRL's names are as long, as in reward/std; an objective of ours has a KL and a reward.
    objectives = [name.removeprefix("kl/") for name in logged if name.startswith("kl/") and name not in METRICS]
    each = [of_objective(metric, one) for one in objectives if f"reward/{one}" in logged for metric in METRICS]
    ordered = {metric: chosen[metric] for metric in METRICS if metric in chosen}
    return ordered | {name: logged[name] for name in each if name in logged}


def source_of(names: Iterable[str]) -> str:
    """The framework that gives metrics these names; empty if they tell none.

    >>> source_of(["actor/grad_norm", "step"]), source_of(["train/kl", "train/epoch"]), source_of(["kl"])
    ('verl', 'trl', '')
    """
    written = {each for name in names for each in (name, bare(name))}
    return next((source for source, only in _ONLY.items() if any(map(only.match, written))), "")


def reward_functions(names: Iterable[str], chosen: Iterable[str] = ()) -> dict[str, str]:
    """For each reward function its name in the log: rewards/<name>/mean, rewards/<name> of older TRL, or in a log
    without such, a name of the words "format reward", which is not among those chosen for a metric.

    >>> reward_functions(["train/rewards/right/mean", "rewards/right/std", "rewards/short"])
    {'right': 'train/rewards/right/mean', 'short': 'rewards/short'}
    >>> reward_functions(["reward", "format_reward_avg", "reward_std"], ["reward", "reward_std"])
    {'format': 'format_reward_avg'}
    """
    every = list(names)
    found = [(match, name) for name in every if (match := _FUNCTION.match(bare(name)))]
    means = {match["name"]: name for match, name in found if match["mean"]}
    own = {match["name"]: name for match, name in found if not match["mean"]}
    if found or not any(meaning(name) == Meaning("reward", 0) or "reward" in name.lower() for name in chosen):
        return means | {each: name for each, name in own.items() if each.removesuffix("/std") not in means}
    others = {}
    for name in every:
        words, held_out = words_of(name.rpartition("/")[2])[0], words_of(name)[1]
        match = _IS["functions"].fullmatch(words) or _IS["functions"].fullmatch(words := words_of(name)[0])
        if match and not held_out and name not in chosen and not _IS_NOT["functions"].search(words):
            others[match["before"] or match["after"] or words] = name
    return others


def counters(names: Iterable[str]) -> list[str]:
    """The names that count steps, those of whole updates first."""
    logged = list(names)
    exact = [name for name in STEP_NAMES if name in logged]
    words = {words_of(name.rpartition("/")[2])[0]: name for name in reversed(logged) if not words_of(name)[1]}
    return exact + [words[each] for each in _NAMES["step_words"] if each in words and words[each] not in exact]


def unread(names: Iterable[str], read: Iterable[str]) -> tuple[str, ...]:
    """The names that stand for nothing that was read, without steps and what tells nothing of a training."""
    every = list(names)
    known = {bare(name) for name in (*read, *counters(every))}
    left = [name for name in every if bare(name) not in known and meaning(name) is None and name]
    return tuple(name for name in left if not _USELESS.fullmatch(words_of(name)[0]) and not words_of(name)[1])


def near(names: Iterable[str], metrics: Iterable[str]) -> dict[str, str]:
    """For each metric that a log lacks, the unread name that may be its."""
    lacking = [metric for metric in _NEAR if metric not in metrics]
    every = [(words_of(name)[0], name) for name in names]
    found = {metric: next((name for words, name in every if _NEAR[metric].fullmatch(words)), "") for metric in lacking}
    return {metric: name for metric, name in found.items() if name}
