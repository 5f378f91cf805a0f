"""The reports' before/after table, measured here: three failures, four columns, and the cost of stability."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_lab.analysis import markdown
from grpo_lab.config.catalog import preset, scenario
from grpo_lab.config.schema import Config
from grpo_lab.events import Started, Stepped
from grpo_lab.messages import language, spoken, text
from grpo_lab.metrics import LINKS
from grpo_lab.paths import data_tables
from grpo_lab.runs.outcome import Learned, Outcome, largest, outcome
from grpo_lab.runs.session import Session

_TABLES = data_tables("reproduction")
SCENARIOS = tuple(_TABLES["scenarios"])
ORIGINAL, FIX, STABLE, HEALED = COLUMNS = ("original", "reported_fix", "stable", "healed")
ROUNDS = 30
REPORTED_ROUNDS = 10
"""The rounds that the reports claim for their fix."""
PROBLEMS = 250
HEALTHY = "healthy"
"""The name of the healthy task among the scenarios."""
HEALTHY_STEPS = 100


@dataclass(frozen=True)
class ReproducedRun:
    """The measurements of one run."""

    scenario: str
    column: str
    directory: Path
    outcome: Outcome
    nonfinite: int
    """Weights that were NaN or inf after the last round."""
    parameters: int
    seconds: float
    """Seconds a round, of the fastest tenth: other work on the machine only slows rounds down."""

    @property
    def share(self) -> str:
        """The share of weights that are not finite, rounded so that 0 % means none and 100 % means all."""
        exact = self.nonfinite / max(1, self.parameters)
        return ">99%" if 0.995 <= exact < 1 else "<1%" if 0 < exact < 0.005 else f"{exact:.0%}"

    @property
    def crash(self) -> str:
        """The text of the error that ended the run, or an empty text."""
        return self.outcome.crash.text if self.outcome.crash else ""

    @property
    def degraded(self) -> bool:
        """Whether held-out reward was lost; after a crash it was."""
        found = self.outcome
        return math.isnan(found.after) or (found.learned is Learned.LOST and not found.by_training)


def scenarios_for(model: str) -> tuple[str, ...]:
    """The scenarios that are reproduced with another model than the tiny one: those whose files name it."""
    return tuple(name for name in SCENARIOS if model in scenario(name).models)


def config_for(name: str, column: str, overrides: tuple[str, ...] = (), model: str = "") -> Config:
    """The configuration of a scenario under one column, with the settings of a model, "" for the tiny one.

    `original` has the guards that the reports used before their fix, `reported_fix` all of their stable values and
    guards, with their sampling and group size. `stable` changes only the guards; `healed` has them too, and the
    scenario's first heal.
    """
    case = scenario(name)
    if column == FIX:
        fix = preset(FIX)
        config = case.config(preset=FIX, model=model).with_(f"data.num_generations={fix.data.num_generations}")
        config = dataclasses.replace(config, sampling=fix.sampling)
    else:
        guards = ORIGINAL if column == ORIGINAL else STABLE
        config = case.config(guards=guards, heal=column == HEALED, model=model)
    length = () if model else (f"run.num_steps={ROUNDS}", f"run.num_eval={PROBLEMS}")
    return config.with_(*length, *overrides)


def recording_of(name: str, column: str, model: str) -> str:
    """The name of the recording of one run."""
    return f"{name}-{model}-{column}"


def healthy_config(column: str, overrides: tuple[str, ...] = ()) -> Config:
    """The configuration of a healthy task, under a preset's guards."""
    config = preset("stable").with_guards(preset(column).guards)
    named = (f"run.name=healthy-{column}", f"run.num_steps={HEALTHY_STEPS}", f"run.num_eval={PROBLEMS}")
    return config.with_(*named, *overrides)


def measure(session: Session, name: str, column: str) -> ReproducedRun:
    """The measurements of a finished session."""
    steps = [event for event in session.events if isinstance(event, Stepped) and not event.failed]
    started = next(event for event in session.events if isinstance(event, Started))
    broken = [event.metrics["weights/nonfinite"] for event in steps if "weights/nonfinite" in event.metrics]
    return ReproducedRun(
        scenario=name,
        column=column,
        directory=session.directory,
        outcome=outcome(session.events),
        nonfinite=int(broken[-1]) if broken else 0,
        parameters=started.num_parameters,
        seconds=sorted(event.metrics["step_time"] for event in steps)[len(steps) // 10] if steps else math.nan,
    )


def table(runs: Sequence[ReproducedRun], kind: str = "column") -> list[list[str]]:
    """Header and rows of the before/after table, as text; of the kind `short` for a terminal."""
    header = [_say(f"{kind}.{name}") for name in _TABLES[kind]]
    return [header, *markdown.cells(_TABLES[kind], runs, say=_say, where=_where)]


def _where(run: ReproducedRun) -> str:
    """The first link that was not finite, its step, and the guard that caught it."""
    found = run.outcome.first_break
    if not found or found.link not in LINKS:
        return _say("none")
    where = _say("at", link=spoken(LINKS[found.link].label), step=found.step)
    return where + (_say("caught", guard=found.caught_by) if found.caught_by else "")


def _say(key: str, **values: Any) -> str:
    return text(f"reproduction.{key}", **values)


def claims(runs: Sequence[ReproducedRun], healthy: dict[str, ReproducedRun]) -> list[list[str]]:
    """Header and rows: every claim, tried on the reports' fix and on the healed runs, with verdict and measurement."""
    cost = healthy[STABLE].seconds / healthy[ORIGINAL].seconds - 1 if healthy else math.nan
    rows = [[_say("short.claim"), FIX, HEALED]]
    for name, claim in _TABLES["claim"].items():
        if name == "cost" and not healthy:
            continue
        rows.append([_say(f"claim.{name}", rounds=REPORTED_ROUNDS)])
        for column in (FIX, HEALED):
            tried = [run for run in runs if run.column == column]
            most = largest(run.outcome.finite_grad_norm for run in tried)
            given = {"runs": tried, "rounds": REPORTED_ROUNDS, "most": most, "cost": cost, "say": _say}
            held = _say("held" if markdown.holds(claim["holds"], **given) else "did_not_hold")
            rows[-1].append(_say("tried", verdict=held, measured=markdown.filled(claim["measured"], **given)))
    return rows


def report(
    runs: Sequence[ReproducedRun],
    healthy: dict[str, ReproducedRun],
    figures: dict[str, tuple[str, str]],
    command: str,
    asked: Config,
    recorded: str = "",
) -> str:
    """The page in Markdown, in the user's language; `figures` are by title the file and the alternative text.

    `asked` is the config of the first run, `recorded` says when and by which command recordings were made.
    """
    return markdown.render(
        "reproduction",
        language(),
        command=command,
        recorded=recorded,
        before_after=table(runs),
        asked=asked,
        times=markdown.number(asked.optimizer.learning_rate / preset(ORIGINAL).optimizer.learning_rate),
        runs=runs,
        healthy=[row[1:] for row in table([*healthy.values()])] if healthy else [],
        claims=claims(runs, healthy),
        reported_rounds=REPORTED_ROUNDS,
        figures=figures,
    )
