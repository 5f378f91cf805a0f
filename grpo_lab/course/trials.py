"""Short runs that judge a configuration: does it survive, does it learn, does it leave a healthy run alone.

Three questions together, because each alone is easily met: who skips every step survives, who guards nothing learns.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from grpo_lab import seeds
from grpo_lab.analysis.matrix.cells import Cell, settings_of_guards
from grpo_lab.analysis.matrix.results import Fate, Result, measure
from grpo_lab.config import user_code
from grpo_lab.config.catalog import Expectation, scenario
from grpo_lab.config.schema import Config, Switches
from grpo_lab.course.exercises import Finding
from grpo_lab.errors import ConfigError
from grpo_lab.events import Stepped, Verdict
from grpo_lab.runs.session import Session
from grpo_lab.training.guards import GUARDS
from grpo_lab.training.trainer import train

HERE = ("run.threads=1", "run.device=cpu")
LESSON = ("data.num_prompts=16", "data.num_generations=8", "run.num_steps=12", "run.num_eval=400")
"""Enough for the tiny model to learn something at a rate of 5e-4: without any guard some 0.29 to 0.43."""
LEAST_GAIN = 0.04
"""Held-out reward that a lesson must bring. A rate of 1e-6 brings 0.00, give or take 0.01; 3e-4 brings 0.12 to 0.22,
and now and then a third of that."""
LEAST_KEPT = 0.5
"""Share of the steps that must have made an update: a run that refuses them all survives and learns nothing."""
MOST_UPDATES, MOST_TOKENS = 8, 32
"""Of a batch and of a completion, where an answer decides them."""
LEAST_COSINE, LARGEST_CHANGE = 0.999, 0.01
"""How far a healthy gradient may be turned, and how much its norm may change."""


def guards_of(value: Any) -> Switches:
    """Guards as an answer names them: a tuple of names, or names with settings; `stable` gives the settings left out.

    Raises ConfigError for what names no registered guard: a judge runs no code of the answer's.
    """
    known = settings_of_guards()
    named = value if isinstance(value, Mapping) else dict.fromkeys(_texts(value, "guards"))
    for name, settings in named.items():
        if name not in GUARDS:
            raise ConfigError(f"guards: {name!r} is no guard that comes with grpo_lab; `grpo-lab guards` lists them")
        if not isinstance(settings, Mapping | None):
            raise ConfigError(f"guards: {name!r}: {settings!r}: write a dictionary, as in {{'limit': 10}}, or None")
    return {name: {**known[name], **(settings or {})} for name, settings in named.items()}


def overrides_of(value: Any, sections: Sequence[str]) -> tuple[str, ...]:
    """Overrides as an answer names them, of these sections alone: the others decide what a check costs.

    Raises ConfigError for others, and for what names a file: a judge runs no code of the answer's.
    """
    texts = _texts(value, "overrides")
    for text in texts:
        if user_code.is_own(text):
            raise ConfigError(
                f"overrides: {text!r} names a file, and files of your own are not run here; name a formula"
            )
        if text.partition(".")[0].strip() not in sections:
            raise ConfigError(f"overrides: {text!r} is not yours to set here; only {', '.join(sections)} are")
    return texts


def affordable(config: Config) -> Config:
    """The config, if a run of it costs no more than a run of a few seconds should. Raises ConfigError else."""
    limits = {
        "loss.num_iterations": (config.loss.num_iterations, MOST_UPDATES),
        "sampling.max_completion_length": (config.sampling.max_completion_length, MOST_TOKENS),
    }
    for setting, (value, most) in limits.items():
        if value > most:
            raise ConfigError(f"{setting} = {value:,}: at most {most} here, where runs are short; take a smaller one")
    return config


def _texts(value: Any, what: str) -> tuple[str, ...]:
    if not isinstance(value, tuple | list) or not all(isinstance(text, str) for text in value):
        raise ConfigError(f'{what} = {value!r}: write a tuple of texts, as in ("first", "second"), or ("only",)')
    return tuple(value)


def run(config: Config, seed: int) -> Session:
    """A run of the config with a seed drawn from this one; its folder is gone when it returns."""
    config = config.with_(*HERE, f"run.seed={seeds.derive(seed, 0, 'trial') % 2**31}")
    with tempfile.TemporaryDirectory(prefix="grpo-lab-") as folder:
        return Session(config, Path(folder) / "run").run()


def judged(session: Session, expect: Expectation | None = None) -> Result:
    """What became of a run, as the matrix tells it."""
    assert session.ended is not None
    config = session.config
    cell = Cell(config.run.name, "trial", config.run.seed, config, expect, config.run.num_steps)
    return measure(cell, session.events, session.ended.status, session.ended.message)


def survives(config: Config, what: str, seed: int, why: str, expect: Expectation | None = None) -> Finding:
    """Whether a run goes through, keeps at least half of its steps, and shows the symptom in none that counted."""
    result = judged(run(config, seed), expect)
    kept = result.finished - result.refused
    fine = result.fate in (Fate.STOPPED, Fate.REFUSED) and kept >= LEAST_KEPT * result.asked
    got = f"{result.fate}, {kept} of {result.asked} steps kept"
    if result.crash:
        got += f"; died in {result.crash}"
    expected = f"no crash, finite weights, at least {LEAST_KEPT:.0%} of the steps kept"
    return Finding(fine, what, got, expected, "" if fine else why)


def stops(name: str, guards: Switches, seed: int, why: str, *overrides: str) -> Finding:
    """Whether guards stop a scenario."""
    case = scenario(name)
    config = case.config().with_(*overrides).with_guards(guards)
    return survives(config, f"{name}: {case.title}", seed, why, case.expect)


def learns(config: Config, seed: int, what: str = "a healthy run learns") -> Iterator[Finding]:
    """Whether the held-out reward rises in a short lesson, and every guard but a warm-up keeps quiet in it.

    Now and then a good lesson brings too little: then the mean of two decides.
    """
    session = run(config.with_(*LESSON), seed)
    result = judged(session)
    gained = result.gained
    got = f"held-out reward {result.before:.2f} to {result.after:.2f}, {result.updates} updates"
    if not result.survived:
        got = f"{result.fate} after {result.finished} steps"
    elif gained < LEAST_GAIN:
        again = judged(run(config.with_(*LESSON), seeds.derive(seed, 1, "lesson")))
        gained = (gained + again.gained) / 2
        got += f"; in another run {again.before:.2f} to {again.after:.2f}"
    fine = result.survived and gained >= LEAST_GAIN
    why = "Nothing is wrong with this run but what you changed: is a step refused, or the rate too low or too high?"
    yield Finding(fine, what, got, f"{LEAST_GAIN} more than before", "" if fine else why)
    acted = _acted(session)
    why = "A guard that acts on a healthy run changes what it learns; leave it out, or raise its limit."
    what = "guards keep quiet in it (a warm-up may act)"
    yield Finding(not acted, what, ", ".join(acted) or "none acted", "none acted", "" if not acted else why)


def _acted(session: Session) -> list[str]:
    """Guards that changed or refused something, those aside that lower a rate at the beginning."""
    actions = [action for event in session.events if isinstance(event, Stepped) for action in event.actions]
    names = {a.name for a in actions if a.kind == "guard" and a.verdict >= Verdict.CHANGED}
    return sorted(names - {"warm_up"})


def leaves_gradient(config: Config, seed: int) -> Finding:
    """Whether the gradient of a healthy first update is the same with the config's guards and without any."""
    healthy = config.with_(*HERE, "data.num_prompts=4", "run.num_steps=1", f"run.seed={seed}")
    without, with_ = first_gradient(healthy.with_guards({})), first_gradient(healthy)
    what, expected = "the gradient of a healthy run stays as it is", f"cosine above {LEAST_COSINE}, the same norm"
    if with_ is None or without is None:
        why = "A healthy update was refused: a limit is so low that nothing passes."
        return Finding(False, what, "no update was made", expected, why)
    cosine = float(torch.nn.functional.cosine_similarity(with_, without, dim=0))
    change = float(with_.norm() / without.norm())
    fine = cosine > LEAST_COSINE and abs(change - 1) < LARGEST_CHANGE
    why = "Some guard of yours acts although nothing is wrong. Which ones change a healthy run by design?"
    return Finding(fine, what, f"cosine {cosine:.4f}, norm {change:.2f} times", expected, "" if fine else why)


def first_gradient(config: Config) -> Tensor | None:
    """The gradient that the optimizer was handed at its first step, flat, or None where it never stepped."""
    seen: list[Tensor] = []

    def look(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        seen.append(torch.cat([p.grad.flatten().double() for p in parameters if p.grad is not None]))

    handle = register_optimizer_step_pre_hook(look)
    try:
        with suppress(RuntimeError):  # a crash is not what is asked about here
            for _ in train(config):
                if seen:
                    break
    finally:
        handle.remove()
    return seen[0] if seen else None
