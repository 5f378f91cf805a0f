"""The table of a log: rows of names and values become one log a run, its metrics under their names here.

A reader of a format (`formats.READERS`) gives a `Table`; the rest is the same for every format: `runs_in` finds where
another run begins, and `log_of` the metrics, the step of each row and the framework that wrote them. Of names the exact
ones of data/metrics.toml count first, then the words of data/diagnosis/names.toml.
"""

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from shlex import quote
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from grpo_lab import messages
from grpo_lab.analysis.logs.text import patterns, tables
from grpo_lab.errors import LogError, unknown
from grpo_lab.metrics import METRICS, OF_THE_MACHINE, OTHER_NAMES, of_objective, of_run

_NAMES, _LIMITS = tables("names"), tables("limits")["table"]
STEP_NAMES, PREFIXES = tuple(_NAMES["step"]), tuple(_NAMES["prefixes"])
_ONLY = {source: re.compile(pattern) for source, pattern in _NAMES["only"].items()}
TRAINERS = ("trl", "ms-swift")
"""Frameworks built on Hugging Face's Trainer, which replaces a loss of NaN in its log by a finite number."""
CUMULATIVE = "num_tokens"
"""Hugging Face's Trainer counts these from the start of the run; here they are counted for each step."""
HELD_OUT = "eval/reward"
_WORDS = {kind: frozenset(words.split()) for kind, words in _NAMES["words"].items() if kind != "spelt"}
_SPELT = {old: new.split() for new, others in _NAMES["words"]["spelt"].items() for old in others.split()}
_PARTS = "|".join(sorted((*_SPELT, *_NAMES["words"]["spelt"], *itertools.chain(*_WORDS.values())), key=len)[::-1])
_COMPOUND = re.compile(rf"(?=.*[^\x00-\x7f])(?:{_PARTS})+")
_PATTERNS = patterns("table")
_MEANS = [(metric, re.compile(words)) for metric, patterns in _NAMES["means"].items() for words in patterns]
_EXACT = {
    name: (metric, rank) for metric in METRICS for rank, name in enumerate((metric, *OTHER_NAMES.get(metric, ())))
}
_IS = {part: re.compile(_NAMES[part]["is"]) for part in ("held_out", "functions")}
_NO_SET = re.compile(_NAMES["held_out"]["no_set"])
_IS_NOT = {part: re.compile(_NAMES[part]["not"]) for part in ("held_out", "functions")}
_TRUTH = {"True": 1.0, "true": 1.0, "False": 0.0, "false": 0.0}
_USELESS = re.compile(f"{_NAMES['unread']['useless']}|{_PATTERNS['mixed'].pattern}")
_FINITE = re.compile(_NAMES["unread"]["finite"])
NEAR = {metric: re.compile(words) for metric, words in _NAMES["near"].items()}
_STANDS_FOR = re.compile(_NAMES["stands_for"]["proxy"])
_SHARES = ("frac_reward_zero_std", "completions/clipped_ratio", "clip_ratio/region_mean")
MEASURED = frozenset((*_NAMES["near"], "reward_std", *_SHARES[:2], HELD_OUT))
"""Measures of a step; settings as learning_rate and beta are printed elsewhere too."""
_GIVEN: ContextVar[tuple[Mapping[str, str], set[str]]] = ContextVar("given", default=({}, set()))
"""The names that are given for metrics, and those of them that the log has."""


class Meaning(NamedTuple):
    """The metric that a name stands for; of two names of one metric the one of the smaller rank counts."""

    metric: str
    rank: int


def given(names: Mapping[str, str], read: Callable[[], list["Log"]]) -> list["Log"]:
    """What `read` finds where a log's names are given for metrics. Raises LogError for no metric or an absent name."""
    for metric in names:
        if metric not in METRICS:
            raise unknown("metric", metric, METRICS, LogError)
    there: set[str] = set()
    token = _GIVEN.set((names, there))
    try:
        found = read()
    finally:
        _GIVEN.reset(token)
    for metric, name in names.items():
        if name not in there:
            left = ", ".join(found[-1].unread) or "none"
            raise LogError(f"the log has no column {name!r} for {metric}; columns that were not read: {left}")
    return found


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
    name = _PATTERNS["and_std"].sub("", name)
    found = [word for part in _PATTERNS["camel"].split(name) for word in _PATTERNS["word"].findall(part.lower())]
    if not name.isascii():  # words may stand together without a blank
        found = [each for word in found for each in (re.findall(_PARTS, word) if _COMPOUND.fullmatch(word) else [word])]
    held_out = not _WORDS["held_out"].isdisjoint(found)
    every = [each for word in found if word not in _WORDS["held_out"] for each in _SPELT.get(word, [word])]
    once = [word for word, before in zip(every, [None, *every], strict=False) if word != before]
    return " ".join([word for word in once if word not in _WORDS["without"]] or once), held_out


@lru_cache(10_000)
def meaning(name: str) -> Meaning | None:
    """The metric that a name of one of the run's numbers means, or None.

    >>> meaning("Avg Response Len").metric, meaning("eval_acc").metric, meaning("actor/ppo_kl"), meaning("reward_min")
    ('completions/mean_length', 'eval/reward', None, None)
    """
    name = bare(name)
    if exact := _EXACT.get(name):
        return Meaning(*exact)
    words, held_out = words_of(name)
    first, _, rest = name.partition("/")
    if held_out:
        rank = 100 if _IS["held_out"].search(words) else 200  # any other name is that of a set of problems, as val/nq
        no_set = rank == 200 and (not words or _NO_SET.search(words) or _USELESS.fullmatch(words))
        return None if no_set or _IS_NOT["held_out"].search(words) else Meaning(HELD_OUT, rank)
    found = next((Meaning(metric, 100 + at) for at, (metric, is_) in enumerate(_MEANS) if is_.fullmatch(words)), None)
    if not found and (remark := _PATTERNS["remark"].fullmatch(name)):  # as "reward (Q3)"
        return meaning(remark["name"])
    if found or len(rest) < 2 or not _WORDS["not_before_a_slash"].isdisjoint(_PATTERNS["word"].findall(first.lower())):
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
    known = [(found, name) for name in logged.values() if (found := meaning(name))]
    ranked = sorted(known, key=lambda each: each[0].rank, reverse=True)
    best = {found.metric: name for found, name in ranked if not (cumulative and found.metric == CUMULATIVE)}
    stands_for = [name for name in logged.values() if _STANDS_FOR.fullmatch(words_of(name)[0])]
    if stands_for and "proxy" in best.get("reward", "").lower():
        best = {HELD_OUT: stands_for[0], **best}
    wanted, there = _GIVEN.get()
    asked = {metric: name for metric, name in wanted.items() if name in logged.values()}
    there.update(asked.values())
    chosen = {metric: name for metric, name in best.items() if name not in asked.values()} | asked
    # TRL's names are as long, as in reward/std; an objective of ours has a KL and a reward.
    objectives = [name.removeprefix("kl/") for name in logged if name.startswith("kl/") and name not in METRICS]
    each = [of_objective(metric, one) for one in objectives if f"reward/{one}" in logged for metric in METRICS]
    ordered = {metric: chosen[metric] for metric in METRICS if metric in chosen}
    return ordered | {name: logged[name] for name in each if name in logged}


def source_of(names: Iterable[str]) -> str:
    """The framework that gives metrics these names; empty if they tell none."""
    written = {each for name in names for each in (name, bare(name))}
    return next((source for source, only in _ONLY.items() if any(map(only.match, written))), "")


def reward_functions(names: Iterable[str], chosen: Iterable[str] = ()) -> dict[str, str]:
    """For each reward function its name in the log: rewards/<name>/mean, rewards/<name> of older TRL, or in a log
    without such, a name of the words "format reward", which is not among those chosen for a metric. Without a name
    of the whole reward, only names with that word are.

    >>> reward_functions(["train/rewards/right/mean", "rewards/right/std", "rewards/short"])
    {'right': 'train/rewards/right/mean', 'short': 'rewards/short'}
    >>> reward_functions(["reward", "format_reward_avg", "reward_std"], ["reward", "reward_std"])
    {'format': 'format_reward_avg'}
    """
    every = list(names)
    found = [(match, name) for name in every if (match := _PATTERNS["function"].match(bare(name)))]
    means = {match["name"]: name for match, name in found if match["mean"]}
    own = {match["name"]: name for match, name in found if not match["mean"]}
    if found:
        return means | {each: name for each, name in own.items() if each.removesuffix("/std") not in means}
    total = any(meaning(name) == Meaning("reward", 0) or "reward" in name.lower() for name in chosen)
    others = {}
    for name in (each for each in every if total or "reward" in each.lower()):
        words, held_out = words_of(name.rpartition("/")[2])[0], words_of(name)[1]
        match = _IS["functions"].fullmatch(words) or _IS["functions"].fullmatch(words := words_of(name)[0])
        own = match and (match["before"] or match["after"] or "")
        if match and not held_out and name not in chosen and not _IS_NOT["functions"].search(own or ""):
            others[own or name.rpartition("/")[2]] = name
    return others


def counters(names: Iterable[str]) -> list[str]:
    """The names that count steps, those of whole updates first."""
    logged = list(names)
    exact = [name for name in STEP_NAMES if name in logged]
    words = {words_of(name.rpartition("/")[2])[0]: name for name in reversed(logged) if not words_of(name)[1]}
    return exact + [words[each] for each in _NAMES["step_words"] if each in words and words[each] not in exact]


def counting(columns: Mapping[str, pd.Series]) -> list[str]:
    """The columns that count steps, the one that grows most often first; a mean such as avg_steps is none."""
    found = [name for name in counters(columns) if name in STEP_NAMES or _is_counter(columns[name])]
    return sorted(found, key=lambda name: -np.count_nonzero(np.diff(columns[name].dropna()) > 0))


def _is_counter(column: pd.Series, most_equal: int = 6) -> bool:
    known = column.dropna()
    whole = bool((known == np.floor(known)).all()) and most_equal * known.nunique() >= len(known)
    whole = whole and (known.nunique() > 1 or len(known) < 2)
    return whole and 3 * int(np.count_nonzero(np.diff(known) < 0)) <= len(known)


def unread(names: Iterable[str], read: Iterable[str]) -> tuple[str, ...]:
    """The names that stand for nothing that was read, without steps and what tells nothing of a training."""
    every = list(names)
    known = {bare(name) for name in (*read, *counters(every))}
    left = [name for name in every if bare(name) not in known and meaning(name) is None and name]
    return tuple(name for name in left if not _USELESS.fullmatch(words_of(name)[0]) and not words_of(name)[1])


Columns = dict[str, pd.Series]
"""For each name its values; the index is the row. NaN was logged as NaN, and what was not logged is absent."""


class Fact(NamedTuple):
    """Something to say about a log: the message log.<key> of data/locale, and its values."""

    key: str
    values: tuple[tuple[str, Any], ...] = ()

    def said(self, language: str = messages.ENGLISH) -> str:
        """The fact in words."""
        return messages.text_in(language, f"log.{self.key}", **dict(self.values))


def fact(key: str, **values: Any) -> Fact:
    """A fact with its values."""
    return Fact(key, tuple(values.items()))


@dataclass(frozen=True)
class Log:
    """The metrics of one run by step. A NaN in a series was logged as NaN; a step that was not logged is absent."""

    metrics: Mapping[str, pd.Series]
    """By their name in `grpo_lab.metrics.METRICS`, or that of an objective, as kl/F; the index is the step."""
    format: str = "table"
    """The format as which the log was read: an id below `log.format` in data/locale."""
    notes: Sequence[Fact] = ()
    """Notes on the lines that were left out, and why."""
    source: str = ""
    """The framework that wrote it: grpo_lab, trl, verl, openrlhf or ms-swift; empty if its names tell none."""
    hides_nan: bool = False
    """Whether the writer may replace a loss of NaN by a finite number, as Hugging Face's Trainer does."""
    updates_a_row: int = 1
    """The most updates in a row, whose metrics are means over them: the first row is not the start."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings found in the log or beside it, flat, under the framework's own names, as model_init_kwargs.dtype."""
    crash: str = ""
    """The last exception of a traceback at the end of a console log; empty if there is none."""
    functions: Mapping[str, pd.Series] = field(default_factory=dict)
    """The mean of each reward function by its name; the index is the step."""
    name: str = ""
    """The name of the run in a file of several runs; empty if it has none."""
    unread: tuple[str, ...] = ()
    """The columns that are no metric known here."""
    begins_late: bool = False
    """Whether the first rows of the run are missing."""

    @cached_property
    def steps(self) -> NDArray[np.int64]:
        """Every step with a metric other than its time, in order, of shape (steps,)."""
        return indices([series for name, series in self.metrics.items() if name not in OF_THE_MACHINE])

    def format_in_words(self, language: str = messages.ENGLISH) -> str:
        """The format as which the log was read, as "CSV"."""
        return messages.text_in(language, f"log.format.{self.format}")

    @property
    def objectives(self) -> list[str]:
        """The names of the objectives that have curves of their own."""
        return [name.removeprefix("kl/") for name in self.metrics if name != "kl" == of_run(name)]

    def of_objective(self, objective: str) -> "Log":
        """The log with an objective's curves in place of the run's."""
        run = {name: curve for name, curve in self.metrics.items() if name == of_run(name)}
        own = {name: self.metrics.get(of_objective(name, objective), curve) for name, curve in run.items()}
        return replace(self, metrics=own)

    def medians(self, metric: str) -> str:
        """The medians of the same curve of each objective, as "F 0.032, H 0"; empty for a curve of the run."""
        own = {name: self.metrics.get(of_objective(of_run(metric), name)) for name in self.objectives}
        known = [f"{name} {curve.median():.3g}" for name, curve in own.items() if curve is not None]
        return ", ".join(known) if metric in self.metrics and metric != of_run(metric) else ""


@dataclass(frozen=True)
class Table(Log):
    """What a reader found: a log whose `metrics` are columns by row, with their names there, of all its runs."""

    crashes: Mapping[int, str] = field(default_factory=dict)
    """The exceptions of a console's tracebacks, by the number of rows before each."""
    starts: Sequence[int] = ()
    """The numbers of rows before each start of a training that a console shows."""
    count_by: int = 0
    """Rows without a step are counted from 0, or from this number in steps of it."""
    one_run: bool = False
    """Whether all rows are of one run, whatever their numbers tell."""

    @property
    def size(self) -> int:
        """The number of rows."""
        last = [int(column.index.to_numpy().max()) for column in self.metrics.values() if len(column)]
        return 1 + max(last, default=-1)

    @property
    def chosen(self) -> dict[str, str]:
        """For each metric its name in the table."""
        return choose(self.metrics, self.source)


def number_in(value: Any) -> float | None:
    """The number that a value is, or its text, as "1,024", "45.2%" or "tensor(0.5, device='cuda:0')"; else None."""
    try:
        return float(value)
    except (ValueError, TypeError, OverflowError):
        found = _PATTERNS["in_text"].fullmatch(value.strip()) if isinstance(value, str) else None
        return float(found[1].replace(",", "")) / (100 if found[2] else 1) if found else None


def columns_of(rows: Iterable[Mapping[str, Any]]) -> Columns:
    """The columns of rows; what is no number, or no text of one such as "nan" or "Infinity", was not logged."""
    found: dict[str, dict[int, float]] = {}
    for place, row in enumerate(rows):
        for name, value in row.items():
            if name == "train_loss" and "train_runtime" in row:  # Trainer's summary at the end, a mean over all steps
                continue
            number = _TRUTH.get(value) if isinstance(value, str) and value in _TRUTH else number_in(value)
            if number is None and isinstance(value, str) and (part := _PATTERNS["of_all"].fullmatch(value)):
                number = None if counters([name]) else float(part[1]) / float(part[2])
            if number is not None:
                found.setdefault(name, {})[place] = number
    return {name: pd.Series(values, dtype=np.float64) for name, values in found.items()}


def columns_of_frame(frame: pd.DataFrame) -> Columns:
    """The columns of a frame. None and pd.NA mean not logged, NaN means logged as NaN; see also `Session.records`.

    Rows that hold no number are left out: `Session.records` has one for a step that a crash cut short.
    """
    if frame.index.name in STEP_NAMES:
        frame = frame.reset_index()
    columns: Columns = {}
    for place, name in enumerate(map(str, frame.columns)):  # a name may be there twice
        values = frame.iloc[:, place]
        if isinstance(values.dtype, np.dtype) and values.dtype.kind in "fiu":
            logged = ~frame.index.isin(frame.attrs.get("not_logged", {}).get(name, ()))
            columns[name] = pd.Series(values.to_numpy(np.float64)).loc[logged]
        elif not pd.api.types.is_bool_dtype(values.dtype):
            known = values.astype(object).where(values.notna(), None)
            columns |= columns_of({name: value} for value in known)
    measures = [columns[name] for metric, name in choose(columns).items() if metric not in OF_THE_MACHINE]
    filled = indices([column.dropna() for column in measures])
    return {name: column.loc[column.index.isin(filled)] for name, column in columns.items()}


def runs_in(tables: Iterable[Table]) -> list[Log]:
    """The runs in tables, in order, each with a note on its place if there are several in its table."""
    found = []
    for table in tables:
        table = replace(table, metrics=_counted_through(table.metrics))
        edges = [0, *([] if table.one_run else _restarts(table)), table.size]
        for number, (low, high) in enumerate(itertools.pairwise(edges), start=1):
            own = {name: each.loc[(low <= each.index) & (each.index < high)] for name, each in table.metrics.items()}
            own = {name: column.set_axis(column.index - low) for name, column in own.items()}
            log = log_of(replace(table, metrics=own, crash=table.crashes.get(high, "")))
            told = [fact("runs", count=len(edges) - 1, number=number)] if len(edges) > 2 else []
            found.append(replace(log, notes=(*log.notes, *told)))
    return found


def log_of(table: Table) -> Log:
    """The log in the rows of one run: metrics by their names here, one value a step; of several values the last.

    Where no source is given, or TRL, the names may tell another one that uses the same Trainer.
    """
    # Of two names of a metric the one with more values counts.
    by_length = sorted(table.metrics.items(), key=lambda each: -len(each[1]))
    columns = {name: column for name, column in by_length if len(column)}
    columns = _as_shares(columns)
    metric_of = {name: found.metric if (found := meaning(name)) else name for name in columns}
    most = {metric_of[name]: len(column) for name, column in reversed(columns.items())}
    least = {name: max(table.size / 4, most[metric_of[name]] / 2) for name in columns}  # a sample now and then has less
    often = {name: column for name, column in columns.items() if len(column) >= least[name]}
    chosen = _by_values(choose(columns, table.source) | choose(often, table.source), columns)
    logged = _steps(columns, chosen)
    counted = pd.Series(np.arange(table.size, dtype=np.float64) * (table.count_by or 1) + table.count_by)
    steps = counted if logged is None else logged
    metrics = {metric: _by_step(columns[name], steps, metric) for metric, name in chosen.items()}
    for metric in ("reward", "kl"):  # a log may hold them for each objective alone
        own = [series for name, series in metrics.items() if name != metric == of_run(name)]
        if own and metric not in metrics:
            broken = {step for series in own for step in series.index[series.isna().to_numpy()]}
            mean = pd.concat(own, axis=1).mean(axis=1)  # of the objectives that a step has: they may take turns
            metrics[metric] = mean.where(~mean.index.isin(broken)).rename(metric)
    for name in (strange := _not_measured(metrics)):
        del metrics[name], chosen[name]
    by_function = reward_functions(often, chosen.values())
    functions = {name: _by_step(columns[column], steps, name) for name, column in by_function.items()}
    told = [fact("not_measured", names=", ".join(strange))]
    if functions and "reward" not in metrics and not any(_PATTERNS["function"].match(bare(name)) for name in columns):
        parts = pd.concat(functions, axis=1)
        metrics["reward"] = parts.sum(axis=1, skipna=False).rename("reward")
        told.append(fact("summed", names=", ".join(by_function.values())))
    again = max((int(series.index.duplicated().sum()) for series in metrics.values()), default=0)
    beside = max((int(np.count_nonzero(np.diff(series.index) == 0)) for series in metrics.values()), default=0)
    source = table.source
    if source in ("", "trl"):  # a Trainer's epochs are no whole numbers
        whole = [name for name, values in columns.items() if name == "epoch" and (values == np.floor(values)).all()]
        source = source_of(columns.keys() - whole) or source
    if table.format == "console" and source == "trl":  # Trainer prints dictionaries alone
        source = ""
    by_callback = table.format in _NAMES["exports"] and any(name.startswith(PREFIXES[0]) for name in columns)
    said = often if table.format == "console" else columns  # a console has lines about other things
    left = unread(said, (*chosen.values(), *by_function.values()))
    others = [name for name in columns if name not in chosen.values() and not words_of(name)[1]]
    broken = [name for name in others if columns[name].isna().mean() > 0.5 and _FINITE.search(words_of(name)[0])]
    broken += [name for name in by_function.values() if columns[name].isna().all()]
    same = [f"{name} = {each.iloc[0]:g}" for name, each in functions.items() if len(each) > 2 and each.nunique() == 1]
    told += [fact("constant", names=", ".join(same)), fact("nan", names=", ".join(broken))]
    notes = [*table.notes, *(each for each in told if dict(each.values)["names"])]
    if again:
        notes.append(fact("averaged", count=f"{again:,}") if beside == again else fact("repeated", count=f"{again:,}"))
    if logged is None:
        logged = columns.get("epoch", pd.Series(dtype=np.float64))
        by = [fact("counted_by", steps=table.count_by)] if table.count_by > 1 else [fact("counted")]
        notes += by if table.count_by else []
    return replace(
        table,
        metrics={name: _one_a_step(series) for name, series in metrics.items()},
        hides_nan=table.hides_nan or source in TRAINERS or by_callback,
        notes=(*notes, *_on_unread(left, chosen, source)),
        source=source,
        functions={name: _one_a_step(series) for name, series in functions.items()},
        unread=left,
        begins_late=_begins_late(np.unique(logged.dropna().to_numpy())),
    )


def _as_shares(columns: Columns) -> Columns:
    """The columns with shares for percents, and the share of groups without a spread where that of the others is."""
    for name, found in ((name, meaning(name)) for name in columns):
        if found and found.metric in _SHARES and _PATTERNS["percent"].search(name) and columns[name].max() > 1:
            columns[name] = columns[name] / 100
    for name in (each for each in columns if _PATTERNS["mixed"].fullmatch(words_of(each)[0]) and not words_of(each)[1]):
        columns = {**columns, "frac_reward_zero_std": 1 - columns[name]}
    return columns


def _by_values(chosen: Mapping[str, str], columns: Columns) -> dict[str, str]:
    """The names of metrics, where values tell what a name leaves open: whose KL, and what is clipped.

    A name that the user gave stays.
    """
    found, own = dict(chosen), {metric: name for metric, name in chosen.items() if metric not in _GIVEN.get()[0]}
    kl, of_reference = columns.get(own.get("kl", "")), columns.get("kl_loss")
    if kl is not None and of_reference is not None and kl.min() < 0 <= of_reference.min():
        found["kl"] = "kl_loss"  # the other is of the old policy to the new one
    if "reward" in own and columns[own["reward"]].nunique() < 2:  # of two as near one is not filled
        alike = [name for name in columns if meaning(name) == meaning(own["reward"])]
        found["reward"] = max(alike, key=lambda name: columns[name].nunique())
    if HELD_OUT in found and _PATTERNS["of_answers"].fullmatch(own.get("reward", "")):
        del found["reward"]  # beside held-out scores it is one of them
    name = own.get("clip_ratio/region_mean", "")
    if _PATTERNS["clip_ratio"].fullmatch(name):
        del found["clip_ratio/region_mean"]
        if "completions/mean_length" in found and columns[name].max() > _LIMITS["clipped"]:
            found = {"completions/clipped_ratio": name, **found}
        elif "ratio" in name.lower():  # "clip" alone may be either
            found["clip_ratio/region_mean"] = name
    return found


def _not_measured(metrics: dict[str, pd.Series]) -> list[str]:
    """The metrics in another unit, rewards of which rounding is left, and an entropy of 0 beside gradients.

    A name that the user gave stays. An entropy that is a loss gets its sign back.
    """
    if "entropy" in metrics and metrics["entropy"].median() < 0:
        metrics["entropy"] = -metrics["entropy"]
    found = [name for name, most in _LIMITS["most"].items() if name in metrics and metrics[name].quantile(0.9) > most]
    entropy, reward = metrics.get("entropy"), metrics.get("reward")
    moves = any(metrics[name].median() > _LIMITS["rounding"] for name in ("grad_norm", "reward_std") if name in metrics)
    if reward is not None and reward.abs().median() > 0 and reward.abs().max() < _LIMITS["rounding"]:
        found.append("reward")
    if entropy is not None and not entropy.any() and moves:
        found.append("entropy")
    return [name for name in found if name not in _GIVEN.get()[0]]


def _begins_late(counts: NDArray[np.float64]) -> bool:
    """Whether rows are missing before the first step; one row alone may be of a log of every 5th step."""
    if len(counts) < 2:
        return any(count > 2 and count % 5 for count in counts)
    pace = float(np.median(np.diff(counts)))
    whole = (counts == np.floor(counts)).all()  # a Trainer's epochs are shares
    return bool(counts[0] > (max(1, pace) if whole else 2 * pace))


def _on_unread(names: Sequence[str], chosen: Mapping[str, str], source: str) -> Iterator[Fact]:
    """A note on the columns that were not read, where a metric may be among them, or no framework is known."""
    most = _LIMITS["most_unread"]
    fits = {metric: [name for name in names if is_.fullmatch(words_of(name)[0])] for metric, is_ in NEAR.items()}
    may_be = {metric: found[0] for metric, found in fits.items() if found and metric not in chosen}
    if names and (may_be or not source):
        said = ", ".join(names[:most]) + " …" * (len(names) > most)
        offered = ", ".join(f"--metric {metric}={quote(name)}" for metric, name in may_be.items())
        yield fact("unread_near", names=said, offered=offered) if offered else fact("unread", names=said)


def _by_step(column: pd.Series, steps: pd.Series, name: str) -> pd.Series:
    """The values of a column by step, in the order of their rows; rows without a step are left out."""
    at = steps.reindex(column.index)
    known = at.abs() < 2**53  # a larger float is no exact number of a step
    index = pd.Index(at.loc[known].astype(np.int64), name="step")
    return pd.Series(column.loc[known].to_numpy(), index=index, name=name)


def _one_a_step(series: pd.Series) -> pd.Series:
    """One value a step: the mean of rows beside each other, as of micro-batches; else the last, as of a resume."""
    first = np.flatnonzero(series.index != series.index.to_series().shift())
    rows = np.diff(np.append(first, len(series)))
    means = pd.Series(np.add.reduceat(series.to_numpy(), first) / rows, series.index[first], name=series.name)
    return means.loc[~means.index.duplicated(keep="last")].sort_index()


def indices(columns: Sequence[pd.Series]) -> NDArray[np.int64]:
    """The rows that hold one of the columns, or the steps of curves, in order."""
    return np.unique(np.concatenate([column.index for column in columns])) if columns else np.array([], dtype=np.int64)


def _steps(columns: Columns, chosen: Mapping[str, str]) -> pd.Series | None:
    """The step of each row, from the first counter that half of the measured rows have, or from whole epochs."""
    measured = indices([columns[name] for name in chosen.values()])
    of_rows = {name: column.loc[column.index.isin(measured)] for name, column in columns.items()}
    epochs = [name for name in columns if bare(name).lower() in ("epoch", "epochs") and _is_counter(of_rows[name], 1)]
    for name in (*counting(columns), *epochs):
        if 2 * np.isin(measured, columns[name].index).sum() >= len(measured):
            return columns[name].loc[np.isfinite(columns[name])]
    return None


def _restarts(table: Table) -> list[int]:
    """The later rows that begin a run: the first counter decides, or else epoch and console together."""
    columns, chosen = table.metrics, table.chosen
    measured, steps = indices([columns[name] for name in chosen.values()]), counting(columns)
    places = {start for start in table.starts if 0 < start < table.size}
    for name in (*steps, CUMULATIVE, "epoch"):
        found = columns.get(name, next((each for other, each in columns.items() if bare(other) == name), None))
        if found is None or name in chosen:
            continue
        column = found.loc[found.index.isin(measured) & np.isfinite(found)]
        if 2 * len(column) >= len(measured) > 0 and column.min() < column.max():
            falls = _falls(column, 1 if name in steps else 2, table.format != "console")
            return sorted({*falls, *places} if name == "epoch" else falls)
    return sorted(places)


def _counted_through(columns: Mapping[str, pd.Series]) -> Mapping[str, pd.Series]:
    """The columns with steps that go on where those in the log begin again with each epoch, or another counter."""
    name, *others = *counting(columns), ""
    for each in (each for each in columns if bare(each).lower() in ("epoch", "epochs") or each in others):
        steps = columns[name].dropna() if name else columns[each]
        outer = columns[each].reindex(steps.index).ffill()
        falls, rises = np.diff(steps) < 0, np.diff(outer) > 0
        if rises.any() and np.array_equal(falls, rises) and (outer == np.floor(outer)).all():
            length = steps.max() + (steps.min() == 0)
            return {**columns, name: steps + (outer - outer.iloc[0]) * length}
    return columns


def _falls(column: pd.Series, slack: int, whole: bool) -> Iterator[int]:
    """Yield the rows at which values that grow start again from about their beginning.

    A run that was resumed goes back a little, and repeats some values; a row out of order is followed by the next.
    Where rows are whole, as in a table, two beginnings are of two runs.
    """
    values, rows, first = column.to_numpy(), column.index.to_numpy(), 0
    falls, again = values[1:] < values[:-1], values[1:] == values[:-1]
    disordered = 3 * falls.sum() > len(values) or falls.sum() > _LIMITS["too_many"]
    if whole and slack == 1 and falls.any() and (values[1:][again] == values.min()).all():
        falls |= again
    for place in () if disordered else np.flatnonzero(falls) + 1:
        before, after = values[first:place], values[place:]
        pace = float(np.median(np.diff(before))) if len(before) > 1 else 0.0
        ahead = after[1] - after[0] if len(after) > 1 else 0.0
        if len(after) == 1:
            alone = before.max() - after[0] < _LIMITS["far"] * pace and (first == 0 or after[0] > before[0])
        else:
            alone = before.max() < after[1] <= before.max() + pace
        if ahead >= 0 and after[0] <= max(before[0], slack * max(pace, ahead)) and not alone:
            yield int(rows[place])
            first = int(place)
