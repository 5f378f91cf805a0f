"""The cells of the matrix: a scenario, or a healthy run, under guards or an algorithm, with one seed."""

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from grpo_lab.analysis.markdown import plain
from grpo_lab.config.algorithms import algorithm
from grpo_lab.config.catalog import Expectation, Scenario, guards_named, preset, preset_names, scenario, scenario_names
from grpo_lab.config.schema import Config, Switches
from grpo_lab.config.user_code import is_own
from grpo_lab.errors import unknown
from grpo_lab.events import encodable
from grpo_lab.training.guards import GUARDS

HEALTHY, NONE, STABLE, REPORTED = "healthy", "none", "stable", "reported_fix"
UNHEALED, HEALED = "unhealed", "healed"
"""Columns of the trial of a scenario's heal: the guards of `stable` without it and with it."""
STEPS, AT_LEAST = 30, 12
"""Default steps, above the 10 of a warm-up: of a healthy run, and of a scenario whose file asks for fewer."""
HELD_OUT = 250
"""Held-out problems before the first step and after the last, whose rewards show the progress."""
IDLES = {"kl_place": "kl_estimator"}
"""Settings of algorithms by which another setting has no effect: a KL in the reward leaves none in the loss."""


@dataclass(frozen=True)
class Cell:
    """One run of the matrix. `expect` is the symptom of its scenario; a healthy run has none.

    `within` is the number of steps in which the scenario's file expects the symptom.
    """

    scenario: str
    column: str
    seed: int
    config: Config
    expect: Expectation | None = None
    within: int = STEPS

    @cached_property
    def key(self) -> str:
        """A digest of the settings of the run and of its symptom, without the column's name."""
        expect = dataclasses.asdict(self.expect) if self.expect else None
        parts = [self.config.to_dict(), expect, self.within]
        return hashlib.sha256(json.dumps(encodable(parts), sort_keys=True).encode()).hexdigest()[:16]


def settings_of_guards() -> dict[str, dict]:
    """Every registered guard with the settings that preset `stable` gives it, or else its defaults."""
    stable = preset(STABLE).guards
    return {name: dict(stable.get(name, {})) for name in GUARDS}


def columns(guards: Sequence[str] = ()) -> dict[str, Switches]:
    """The columns: no guard, each alone, the reported guards, `stable`, and `stable` without each of its own.

    With `guards` only the columns about these: each alone, and `stable` without each; a preset's name or a user's
    `file.py:Mine` is a column too. Raises ConfigError for a guard that does not exist.

    >>> list(columns(["warm_up", "original"]))
    ['none', 'warm_up', 'original', 'stable', 'stable - warm_up']
    """
    known = [*GUARDS, *preset_names(), NONE]
    for name in guards:
        if name not in known and not is_own(name):
            raise unknown("guard", name, known)
    stable, order = preset(STABLE).guards, list(GUARDS)
    wanted = sorted(guards or [*GUARDS, REPORTED], key=lambda name: order.index(name) if name in order else len(order))
    found: dict[str, Switches] = {NONE: {}} | {name: guards_named(name) for name in wanted} | {STABLE: stable}
    for name in stable:
        if name in wanted:
            found[without(name)] = {other: values for other, values in stable.items() if other != name}
    return found


def without(guard: str) -> str:
    """The name of the column that leaves a guard out of `stable`."""
    return f"{STABLE} - {guard}"


def replaced(case: Scenario, name: str) -> list[str]:
    """The settings of an algorithm that take the place of a scenario's cause: those that its cures and heals change.

    >>> replaced(scenario("kl-hinge"), "rloo"), replaced(scenario("train-001"), "rloo")
    (['loss.kl_place=reward'], [])
    """
    changes = [change for row in (*case.cures, *(heal.change for heal in case.heals)) for change in row]
    healing = {change.partition("=")[0] for change in changes}
    before = vars(case.config().loss)
    found = {key: value for key, value in algorithm(name).loss.items() if value != before[key]}
    return [
        f"loss.{key}={plain(value)}"
        for key, value in found.items()
        if {f"loss.{key}", f"loss.{IDLES.get(key, key)}"} & healing
    ]


def visible(expect: Expectation | None, config: Config) -> Expectation | None:
    """The symptom without the metrics that a run of this config never logs: without PPO's clip no token is clipped."""
    if not expect or config.loss.surrogate == "clip":
        return expect
    logged = {name: value for name, value in expect.metrics.items() if not name.startswith("clip_ratio/")}
    return dataclasses.replace(expect, metrics=logged)


def rows(scenarios: Sequence[str] = ()) -> list[str]:
    """The given scenarios, or the healthy run and all scenarios. Raises ConfigError for an unknown one."""
    known = [HEALTHY, *scenario_names()]
    for name in scenarios:
        if name not in known and not name.endswith(".toml"):
            raise unknown("scenario", name, known)
    return list(scenarios) or known


def cells(
    scenarios: Iterable[str],
    guard_sets: Mapping[str, Switches],
    seeds: int = 3,
    steps: int | None = None,
    overrides: tuple[str, ...] = (),
    heals: bool = False,
    algorithms: Sequence[str] = (),
) -> list[Cell]:
    """Every scenario under every column with as many seeds; STEPS explains the default number of steps.

    With `heals` also under UNHEALED and HEALED, as long as the scenario's trial.
    Each of `algorithms` is a column without guards; it has no cell where it has replaced the scenario's cause.
    Raises ConfigError for an unknown scenario or algorithm.
    """
    length = [f"run.num_steps={steps}"] if steps else []
    shared = (*length, f"run.num_eval={HELD_OUT}", "run.threads=1", "run.device=cpu", *overrides)
    found = []
    for name in scenarios:
        case = None if name == HEALTHY else scenario(name)
        base = case.config() if case else preset(STABLE).with_(f"run.name={HEALTHY}", f"run.num_steps={STEPS}")
        expect, within = case.expect if case else None, base.run.num_steps
        base = base.with_(f"run.num_steps={max(within, AT_LEAST)}")
        configs = {column: base.with_guards(guards) for column, guards in guard_sets.items()}
        for each in algorithms:
            if not (case and replaced(case, each)):
                configs[each] = base.with_guards({}).with_algorithm(each)
        if heals and case and case.heals:
            configs[UNHEALED] = case.config(guards=STABLE).merged(case.trial)
            configs[HEALED] = case.config(guards=STABLE, heal=True)
        configs = {column: config.with_(*shared) for column, config in configs.items()}
        for seed in range(seeds):  # outside, so that a busy minute does not slow a whole column
            for column, config in configs.items():
                seeded = config.with_(f"run.seed={seed}")
                found.append(Cell(base.run.name, column, seed, seeded, visible(expect, config), within))
    return found


def only(columns: Sequence[str] | None, found: list[Cell]) -> list[Cell]:
    """The cells of these columns, or all. Raises ConfigError for a column that no cell has."""
    known = list(dict.fromkeys(cell.column for cell in found))
    for name in columns or ():
        if name not in known:
            raise unknown("column", name, known)
    return [cell for cell in found if cell.column in (columns or known)]
