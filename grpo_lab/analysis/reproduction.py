"""The reports' before/after table, measured here: three failures, four columns, and the cost of stability."""

import dataclasses
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_lab.analysis.markdown import number, render
from grpo_lab.config.catalog import Scenario, preset, scenario
from grpo_lab.config.schema import Config
from grpo_lab.events import Evaluated, Started, Stepped
from grpo_lab.messages import label, language, text
from grpo_lab.metrics import LINKS
from grpo_lab.runs.first_break import ChainBreak
from grpo_lab.runs.session import Session

SCENARIOS = ("train-001", "cuda-001", "fp16-adam-epsilon")
ORIGINAL, FIX, STABLE, HEALED = COLUMNS = ("original", "reported_fix", "stable", "healed")
ROUNDS = 30
REPORTED_ROUNDS = 10
"""The rounds that the reports claim for their fix."""
PROBLEMS = 250
HEALTHY_STEPS = 100
QUALITY_MARGIN = 0.08
"""The loss of held-out reward from which on quality counts as degraded: about two standard errors of the
difference between two evaluations on 250 problems."""


@dataclass(frozen=True)
class ReproducedRun:
    """The measurements of one run."""

    scenario: str
    column: str
    directory: Path
    rounds: int
    """Rounds that ended with an update or a refusal, before the end or a crash."""
    refused: int
    """Of these, rounds that a guard refused or rolled back."""
    grad_norm: float
    """Largest finite gradient norm; NaN if there was none."""
    first_break: ChainBreak | None
    nonfinite: int
    """Weights that were NaN or inf after the last round."""
    parameters: int
    max_move: float
    """Largest change of a single weight in one round, over the rounds that left finite weights."""
    crash: str
    seconds: float
    """Seconds a round, of the fastest tenth: other work on the machine only slows rounds down."""
    before: float
    after: float


def scenarios_for(model: str) -> tuple[str, ...]:
    """The scenarios that are reproduced with another model than the tiny one: those whose files name it."""
    return tuple(name for name in SCENARIOS if model in scenario(name).models)


def config_for(name: str, column: str, overrides: tuple[str, ...] = (), model: str = "") -> Config:
    """The configuration of a scenario under one column, with the settings of a model, "" for the tiny one.

    `original` has the guards that the reports used before their fix, `reported_fix` all of their stable values and
    guards. `stable` changes only the guards; `healed` has them too, and the scenario's first heal.
    """
    length = () if model else (f"run.num_steps={ROUNDS}", f"run.num_eval={PROBLEMS}")
    return _COLUMN[column](scenario(name), model).with_(*length, *overrides)


def recording_of(name: str, column: str, model: str) -> str:
    """The name of the recording of one run."""
    return f"{name}-{model}-{column}"


def _fixed(case: Scenario, model: str) -> Config:
    """The cause under the reports' stable values, their sampling and group size included."""
    fix = preset(FIX)
    mine = case.config(preset=FIX, model=model).with_(f"data.num_generations={fix.data.num_generations}")
    return dataclasses.replace(mine, sampling=fix.sampling)


_COLUMN: dict[str, Callable[[Scenario, str], Config]] = {
    ORIGINAL: lambda case, model: case.config(guards=ORIGINAL, model=model),
    FIX: _fixed,
    STABLE: lambda case, model: case.config(guards=STABLE, model=model),
    HEALED: lambda case, model: case.config(guards=STABLE, heal=True, model=model),
}


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
    rewards = [event.reward for event in session.events if isinstance(event, Evaluated)]
    return ReproducedRun(
        scenario=name,
        column=column,
        directory=session.directory,
        rounds=len(steps),
        refused=sum(event.refused for event in steps),
        grad_norm=_largest(note.magnitude for event in steps for note in event.links if note.link == "gradients"),
        first_break=session.first_break(),
        nonfinite=int(broken[-1]) if broken else 0,
        parameters=started.num_parameters,
        max_move=_largest(event.metrics.get("weights/max_move", math.nan) for event in steps),
        crash=session.crash.text if session.crash else "",
        seconds=sorted(event.metrics["step_time"] for event in steps)[len(steps) // 10] if steps else math.nan,
        before=rewards[0] if rewards else math.nan,
        after=rewards[1] if len(rewards) > 1 else math.nan,
    )


def _largest(values: Iterable[float]) -> float:
    return max((value for value in values if math.isfinite(value)), default=math.nan)


def table(runs: list[ReproducedRun]) -> list[list[str]]:
    """Header and rows of the before/after table, as text."""
    rows = [_cells(run) for run in runs]
    return [list(rows[0]), *([*row.values()] for row in rows)]


def _cells(run: ReproducedRun) -> dict[str, str]:
    """A row of the table by the names of its columns."""
    found = run.first_break
    broken = found is not None and found.link in LINKS
    where = _say("at", link=label(LINKS[found.link].label), step=found.step) if found and broken else _say("none")
    where += _say("caught", guard=found.caught_by) if found and found.caught_by else ""
    cells = {
        "scenario": run.scenario,
        "guards": run.column,
        "rounds": str(run.rounds),
        "refused": str(run.refused),
        "norm": number(run.grad_norm),
        "first_break": where,
        "nonfinite": f"{run.nonfinite:,} ({share(run)})" if run.nonfinite else "0",
        "move": number(run.max_move),
        "crash": "multinomial" if "probability tensor" in run.crash else run.crash or _say("no"),
        "seconds": number(run.seconds),
        "before": number(run.before),
        "after": number(run.after),
    }
    return {text(f"reproduction.column.{name}"): cell for name, cell in cells.items()}


def _say(key: str, **values: Any) -> str:
    return text(f"reproduction.{key}", **values)


def brief(runs: list[ReproducedRun]) -> list[list[str]]:
    """The table again, short enough for a terminal."""
    names = ("scenario", "guards", "rounds", "norm", "broke_at", "bad", "crash", "reward")
    header = [text(f"reproduction.short.{name}") for name in names]
    body = [
        [
            run.scenario,
            run.column,
            str(run.rounds),
            number(run.grad_norm, digits=2),
            f"{run.first_break.link}, {run.first_break.step}" if run.first_break else "-",
            share(run),
            _say("yes" if run.crash else "no"),
            f"{number(run.before, digits=2)}>{number(run.after, digits=2)}",
        ]
        for run in runs
    ]
    return [header, *body]


def share(run: ReproducedRun) -> str:
    """The share of weights that are not finite, rounded so that 0 % means none and 100 % means all."""
    exact = run.nonfinite / max(1, run.parameters)
    return ">99%" if 0.995 <= exact < 1 else "<1%" if 0 < exact < 0.005 else f"{exact:.0%}"


def verdicts(
    runs: list[ReproducedRun], healthy: dict[str, ReproducedRun], column: str = FIX
) -> list[tuple[str, str, str]]:
    """The reports' claims for their fix, tried on one column: the measurement, and whether it held, in words."""
    fixed = [run for run in runs if run.column == column]
    crashed = [run.scenario for run in fixed if run.crash]
    norms = [run.grad_norm for run in fixed if not math.isnan(run.grad_norm)]
    sick = [f"{run.scenario} ({share(run)})" for run in fixed if run.nonfinite]
    short = [f"{run.scenario} ({run.rounds})" for run in fixed if run.rounds < REPORTED_ROUNDS]
    worse = [run for run in fixed if not run.after >= run.before - QUALITY_MARGIN]  # NaN after a crash is worse
    rewards = [_say("from_to", before=number(run.before, 2), after=number(run.after, 2)) for run in fixed]
    found = [
        ("norm", _say("norms", most=number(max(norms))) if norms else _say("no_norm"), norms and max(norms) <= 10),
        ("weights", ", ".join(sick) or _say("all_finite"), not sick),
        ("rounds", _say("short_runs", names=", ".join(short)) if short else _say("all"), not short),
        ("crash", _say("crashed", names=", ".join(crashed)) if crashed else _say("none"), not crashed),
        ("quality", _say("rewards", rewards=", ".join(rewards)), not worse),
        *_cost(healthy),
    ]
    return [
        (text(f"reproduction.claim.{name}", rounds=REPORTED_ROUNDS), measured, _say("held" if held else "did_not_hold"))
        for name, measured, held in found
    ]


def _cost(healthy: dict[str, ReproducedRun]) -> list[tuple[str, str, bool]]:
    """The claim about the time of guards, where a healthy task was run."""
    if not healthy:
        return []
    cost = healthy["stable"].seconds / healthy["original"].seconds - 1
    return [("cost", _say("cost", cost=f"{cost:+z.0%}"), cost <= 0.10)]


def claims(runs: list[ReproducedRun], healthy: dict[str, ReproducedRun]) -> list[list[str]]:
    """Header and rows: every claim, tried on the reports' fix and on the healed runs."""
    fix, healed = (verdicts(runs, healthy, column) for column in (FIX, HEALED))
    cells = zip(fix, healed, strict=True)
    rows = [[mine[0], *(_say("tried", verdict=v, measured=m) for _, m, v in (mine, other))] for mine, other in cells]
    return [[text("reproduction.short.claim"), FIX, HEALED], *rows]


def report(
    runs: list[ReproducedRun],
    healthy: dict[str, ReproducedRun],
    figures: dict[str, tuple[str, str]],
    command: str,
    asked: Config,
    recorded: str = "",
) -> str:
    """The page in Markdown, in the user's language; `figures` are by title the file and the alternative text.

    `asked` is the config of the first run, `recorded` says when and by which command recordings were made.
    """
    return render(
        "reproduction",
        language(),
        command=command,
        recorded=recorded,
        before_after=table(runs),
        asked=asked,
        times=number(asked.optimizer.learning_rate / preset(ORIGINAL).optimizer.learning_rate),
        runs=runs,
        healthy=[row[1:] for row in table([*healthy.values()])] if healthy else [],
        margin=QUALITY_MARGIN,
        claims=claims(runs, healthy),
        reported_rounds=REPORTED_ROUNDS,
        figures=figures,
    )
