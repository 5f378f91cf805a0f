"""Short runs that judge a configuration: does it survive, does it learn, does it leave a healthy run alone.

All three are needed: a run that skips every step survives, and a run without guards learns until something breaks.
"""

import math
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from grpo_lab import seeds
from grpo_lab.analysis.matrix import Cell, Fate, Measurement, measure
from grpo_lab.config import user_code
from grpo_lab.config.catalog import Expectation, preset, scenario
from grpo_lab.config.schema import Config, Switches
from grpo_lab.core.hooks import Verdict
from grpo_lab.course.compare import beside, other_kind, shown
from grpo_lab.course.exercises import Finding
from grpo_lab.errors import ConfigError, Sentence, listed
from grpo_lab.events import Event, Stepped
from grpo_lab.runs.session import Session, View
from grpo_lab.training.guards import GUARDS
from grpo_lab.training.trainer import train

HERE = ("run.threads=1", "run.device=cpu")
LESSON = ("data.num_prompts=16", "data.num_generations=8", "run.num_steps=12", "run.num_eval=400")
"""A short run in which the tiny model learns at a rate of 5e-4: without guards its reward rises from 0.29 to 0.43."""
LEAST_GAIN = 0.04
"""The held-out reward rises by more than this in a lesson. On ten seeds a rate of 1e-5 gave -0.01 to 0.05, 0.02 in the
mean; 1e-4 gave 0.10 to 0.16; 3e-4 gives 0.12 to 0.22, and rarely a third of that."""
LEAST_KEPT = 0.5
"""The least share of steps that make an update: a run that refuses all of them survives and learns nothing."""
MOST_UPDATES, MOST_TOKENS = 8, 32
"""Limits on an answer's own settings: updates per batch and tokens per completion."""
LEAST_COSINE, LARGEST_CHANGE = 0.999, 0.01
"""The least cosine between a healthy gradient with and without guards, and the largest relative change of its norm."""


def guards_of(value: Any) -> Switches:
    """The guards of an answer: a tuple of names or a dictionary of settings. Preset `stable` gives missing settings.

    Raises ConfigError for anything but registered guards: a judge runs no code of the answer.
    """
    usual = preset("stable").guards
    named = value if isinstance(value, Mapping) else dict.fromkeys(_texts(value, "guards"))
    for name, settings in named.items():
        if name not in GUARDS:
            raise ConfigError("guards: {} is not a guard of grpo_lab; `grpo-lab guards` lists them", repr(name))
        if not isinstance(settings, Mapping | None):
            said = "guards: {}: {}: write a dictionary, as in {'limit': 10}, or None"
            raise ConfigError(said, repr(name), repr(settings))
    return {name: {**usual.get(name, {}), **(settings or {})} for name, settings in named.items()}


def overrides_of(value: Any, sections: Sequence[str]) -> tuple[str, ...]:
    """The overrides of an answer, in these sections alone: the other sections decide the cost of a check.

    Raises ConfigError for other sections, and for an override that names a file: a judge runs no code of the answer.
    """
    texts = _texts(value, "overrides")
    for text in texts:
        if user_code.is_own(text):
            said = "overrides: {} names a file, and your own files are not run here; name a formula"
            raise ConfigError(said, repr(text))
        if text.partition(".")[0].strip() not in sections:
            known = ", ".join(sections)
            raise ConfigError("overrides: {} cannot be set here; only settings of {} can", repr(text), known)
    return texts


def affordable(config: Config) -> Config:
    """The config itself. Raises ConfigError where a run of it would take longer than a few seconds."""
    limits = {
        "loss.num_iterations": (config.loss.num_iterations, MOST_UPDATES),
        "sampling.max_completion_length": (config.sampling.max_completion_length, MOST_TOKENS),
    }
    for setting, (value, most) in limits.items():
        if value > most:
            said = "{} = {:,}: at most {} here, where runs are short; take a smaller one"
            raise ConfigError(said, setting, value, most)
    return config


def _texts(value: Any, what: str) -> tuple[str, ...]:
    """The tuple of texts. Raises ConfigError for anything else."""
    if not isinstance(value, tuple | list) or not all(isinstance(text, str) for text in value):
        kind = other_kind(value, "a tuple", "a list") or f"{what} = {value!r}:"
        raise ConfigError('{} Write a tuple of texts, as in ("first", "second"), or ("only",)', kind)
    return tuple(value)


_VIEWS: ContextVar[tuple[View, ...]] = ContextVar("the views of the runs of a check", default=())


@contextmanager
def watched(view: View) -> Iterator[None]:
    """Show the events of all runs inside to a view too."""
    before = _VIEWS.set((*_VIEWS.get(), view))
    try:
        yield
    finally:
        _VIEWS.reset(before)


def run(config: Config, seed: int) -> Session:
    """A finished run of the config with a seed derived from this one; its folder is deleted."""
    config = config.with_(*HERE, f"run.seed={seeds.derive(seed, 0, 'trial') % 2**31}")
    with tempfile.TemporaryDirectory(prefix="grpo-lab-") as folder:
        session = Session(config, Path(folder) / "run")
        session.views += _VIEWS.get()
        return session.run()


def judged(session: Session, expect: Expectation | None = None) -> Measurement:
    """The outcome of a run, measured as in the matrix."""
    assert session.ended is not None
    config = session.config
    cell = Cell(config.run.name, "trial", config.run.seed, config, expect, config.run.num_steps)
    return measure(cell, session.events, session.ended.status, session.ended.message)


def survives(config: Config, what: str, seed: int, why: str, expect: Expectation | None = None) -> Finding:
    """Whether a run ends without a crash and keeps half of its steps or more, none with a symptom or broken weights."""
    session = run(config, seed)
    result = judged(session, expect)
    if failed := _failed(result, session.events, expect):
        return Finding(False, what, *failed, why)
    kept = result.finished - result.refused
    got = Sentence("{}, {} of {} steps kept", Sentence(result.fate), kept, result.asked)
    expected = Sentence("no crash, finite weights, at least {:.0%} of the steps kept", LEAST_KEPT)
    return Finding(True, what, got, expected, why)


def _failed(result: Measurement, events: Sequence[Event], expect: Expectation | None) -> tuple[str, str] | None:
    """The number of the first criterion that failed and its limit, or None."""
    steps = Sentence("{} of {} steps", result.finished, result.asked)
    if result.fate == Fate.HALTED:
        return Sentence("a guard ended the run after {}", steps), "a run that no guard ends"
    if result.fate in (Fate.CRASHED, Fate.FAILED):
        return Sentence("{} in {} after {}", Sentence(result.fate), result.crash or result.message, steps), "no crash"
    if result.fate == Fate.BROKEN:
        return Sentence("weights that are NaN or inf after the last step"), "every weight finite"
    accepted = [event.metrics for event in events if isinstance(event, Stepped) and not event.refused]
    if broken := sum(step.get("weights/nonfinite", 0) > 0 for step in accepted):
        got = Sentence("weights that are NaN or inf after {} of {} steps kept", broken, len(accepted))
        return got, "every weight finite"
    if result.fate == Fate.SHOWN and expect:
        most = {name: max(step.get(name, -math.inf) for step in accepted) for name in expect.metrics}
        reached = [f"{name} {beside(value, expect.metrics[name])}" for name, value in most.items()]
        limits = [Sentence("{} below {:g}", name, limit) for name, limit in expect.metrics.items()]
        got = Sentence("{} in steps kept", listed("{} and {}", reached))
        return got, Sentence("{} in every step kept", listed("{} or {}", limits))
    kept, least = result.finished - result.refused, math.ceil(LEAST_KEPT * result.asked)
    if kept < least or not result.updates:
        got = Sentence("{} of {} steps kept", kept, result.asked)
        got = got if kept < least else Sentence("{}, none with an update", got)
        return got, Sentence("at least {} of {} steps kept", least, result.asked)
    return None


def stops(name: str, guards: Switches, seed: int, why: str, *overrides: str) -> Finding:
    """Whether guards stop a scenario's failure."""
    case = scenario(name)
    config = case.config().with_(*overrides).with_guards(guards)
    return survives(config, Sentence("{}: {}", name, Sentence(case.title)), seed, why, case.expect)


def learns(config: Config, seed: int, what: str = "a healthy run learns") -> Iterator[Finding]:
    """Whether the held-out reward rises in a short lesson, and no guard but a warm-up acts in it.

    If the first lesson brings too little, the mean of two decides, because a good configuration rarely fails one.
    """
    session = run(config.with_(*LESSON), seed)
    result = judged(session)
    gained = _gain(result)
    got = Sentence("held-out reward {}; {} updates", _rise(result), result.updates)
    if not result.survived:
        got = Sentence("{} after {} steps", Sentence(result.fate), result.finished)
    elif gained <= LEAST_GAIN:
        again = judged(run(config.with_(*LESSON), seeds.derive(seed, 1, "lesson")))
        gained = _gain(result, again)
        got = Sentence("{}; in another run {}; {} more in the mean", got, _rise(again), beside(gained, LEAST_GAIN))
    fine = result.survived and gained > LEAST_GAIN
    expected = Sentence("a rise above {}, in one run or in the mean of two", LEAST_GAIN)
    yield Finding(fine, what, got, expected, _no_lesson(result, gained))
    actions = [action for event in session.events if isinstance(event, Stepped) for action in event.actions]
    guards = {each.name for each in actions if each.kind == "guard" and each.verdict >= Verdict.CHANGED}
    acted = sorted(guards - {"warm_up"})
    why = "A guard that acts on a healthy run changes its training; leave it out, or raise its limit."
    what = "no guard acts in it (a warm-up may)"
    yield Finding(not acted, what, ", ".join(acted) or Sentence("none acted"), "none acted", why)


def _gain(*results: Measurement) -> float:
    """The mean gain, without the rounding error of a difference: 0.35 - 0.31 is not quite 0.04."""
    return round(statistics.fmean(result.gained for result in results), 9)


def _rise(result: Measurement) -> Sentence:
    return Sentence("{} to {}, {} more", shown(result.before), shown(result.after), beside(_gain(result), LEAST_GAIN))


def _no_lesson(result: Measurement, gained: float) -> str:
    """The likely reason why a lesson taught nothing; the run is healthy except for the answer's changes."""
    if not result.survived:
        return "This run is healthy except for your changes, and one of them broke it: is the rate too high?"
    if result.refused > (1 - LEAST_KEPT) * result.finished:
        said = "{} of {} healthy steps were refused: a limit of a guard is too low."
        return Sentence(said, result.refused, result.finished)
    if gained <= -LEAST_GAIN:
        return "The reward fell: the rate is too high for this loss."
    return "The reward hardly moved: the rate is too low, or so high that steps undo each other. The KL tells which."


def leaves_gradient(config: Config, seed: int) -> Finding:
    """Whether the gradient of a healthy first update is the same with the config's guards and without any."""
    healthy = config.with_(*HERE, "data.num_prompts=4", "run.num_steps=1", f"run.seed={seed}")
    without, with_ = first_gradient(healthy.with_guards({})), first_gradient(healthy)
    what = "the gradient of a healthy run is unchanged"
    norms = 1 - LARGEST_CHANGE, 1 + LARGEST_CHANGE
    expected = Sentence("cosine above {}, norm {} to {} times", LEAST_COSINE, *norms)
    if with_ is None or without is None:
        why = "A healthy update was refused: a limit is so low that nothing passes."
        return Finding(False, what, Sentence("no update was made"), expected, why)
    cosine = float(torch.nn.functional.cosine_similarity(with_, without, dim=0))
    change = float(with_.norm() / without.norm())
    fine = cosine > LEAST_COSINE and abs(change - 1) < LARGEST_CHANGE
    why = "One of your guards acts although nothing is wrong. Which guards change a healthy run by design?"
    norm = beside(change, 1 + LARGEST_CHANGE if change > 1 else 1 - LARGEST_CHANGE)
    return Finding(fine, what, Sentence("cosine {}, norm {} times", beside(cosine, LEAST_COSINE), norm), expected, why)


def first_gradient(config: Config) -> Tensor | None:
    """The flat gradient (parameters,) at the optimizer's first step, or None if it never steps."""
    seen: list[Tensor] = []

    def look(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        seen.append(torch.cat([p.grad.flatten().double() for p in parameters if p.grad is not None]))

    # A crash after the first step changes nothing; before it there is no gradient.
    with register_optimizer_step_pre_hook(look), suppress(RuntimeError):
        next((event for event in train(config) if seen), None)  # no event after the first step is needed
    return seen[0] if seen else None
