"""The fifth report's seven fixes on and off: the runs of `grpo-lab dual`, their measurements, and the page."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from grpo_lab.analysis.diagnosis import diagnose
from grpo_lab.analysis.markdown import number, render
from grpo_lab.config.catalog import preset
from grpo_lab.config.schema import Config
from grpo_lab.errors import ConfigError
from grpo_lab.events import Evaluated, Stepped
from grpo_lab.paths import data_directory, data_tables
from grpo_lab.runs.session import Session
from grpo_lab.training.objectives import resolve

_TABLES = data_tables("dual/fixes")
LONG: Mapping[str, list[str]] = _TABLES["runs"]
"""Overrides by the name of the run."""
RUNS = LONG | _TABLES["short_runs"]
"""All of them: a short run makes a few steps of GRPO alone."""
OBJECTIVES = ("F", "H")
MISMATCH = "sampling/sampling_logp_difference/mean"
PROBLEMS = 400
LEAST_SHARE = 0.8
"""Share of the late steps in which a KL must be inside its band to count as kept there."""
REWARD_MARGIN = 0.15
"""Loss of held-out reward that counts: more than two standard errors of the difference between two evaluations of H."""


@dataclass(frozen=True)
class DualRun:
    """The measurements of one run."""

    held_out: tuple[Mapping[str, float], ...]
    """Rewards by objective, at the start and after each stage."""
    late: Mapping[str, float]
    """Mean of each metric over the second half of the steps of GRPO."""
    inside: Mapping[str, float]
    """Share of these steps in which a KL (`kl/F`, `kl/exact/F`) is inside the band of its objective."""
    move: float
    """Largest change of a single weight in one step."""
    end: str
    """`done` or `stopped`, or the error that ended the run."""
    broke: str
    """The first link of the chain that was not finite, or `none`."""
    diagnosis: str

    def kl(self, name: str = "kl") -> str:
        """The late KL of each objective, and the share of steps in its band."""
        shares = (_shown(self.inside, f"{name}/{each}", ".0%") for each in OBJECTIVES)
        return ", ".join(f"{mean} ({share})" for mean, share in zip(self.means(name), shares, strict=True))

    def means(self, name: str) -> list[str]:
        """The late mean of a metric for each objective."""
        return [f"{each} {_shown(self.late, f'{name}/{each}')}" for each in OBJECTIVES]

    def rewards(self, objective: str) -> str:
        """The held-out rewards of an objective, stage by stage."""
        return ">".join(_shown(stage, objective, "z.2f") for stage in self.held_out) or "-"

    def least(self, name: str) -> float:
        """The smaller share of steps in a band. Raises KeyError where there is no band or no KL."""
        return min(self.inside[f"{name}/{each}"] for each in OBJECTIVES)


def _shown(numbers: Mapping[str, float], name: str, form: str = "z.3f") -> str:
    """One of the numbers as text; a dash where it is missing."""
    return format(numbers[name], form) if name in numbers else "-"


class Claim(NamedTuple):
    """A claim of the report: the measurement without the fix, with it, and the verdict."""

    fix: str
    claim: str
    without: str
    with_it: str
    verdict: str


SHOWN: Mapping[str, Callable[[DualRun], str]] = {
    "kl": DualRun.kl,
    "exact": lambda run: run.kl("kl/exact"),
    "move": lambda run: f"largest move {number(run.move)}",
    "tokens": lambda run: "tokens " + ", ".join(run.means("completions/mean_length")),
    "mismatch": lambda run: f"{_shown(run.late, MISMATCH)} nats apart",
    "rewards": lambda run: ", ".join(f"{each} {run.rewards(each)}" for each in OBJECTIVES),
    "judge": lambda run: f"{_shown(run.late, 'judge/time')} s a step",
    "end": lambda run: run.end,
}
"""Measurements in words, by the names that data/dual/fixes.toml has for them."""
_RULES: Mapping[str, Callable[[DualRun, DualRun], bool]] = {
    "nothing moves": lambda off, on: off.move == 0 and all(abs(off.late[f"kl/{each}"]) < 5e-4 for each in OBJECTIVES),
    "one is lost": lambda off, on: abs(off.late["kl/H"]) < 5e-4 and off.late["completions/mean_length/F"] < 1.05,
    "in band": lambda off, on: on.least("kl") >= LEAST_SHARE,
    "exact in band": lambda off, on: on.least("kl/exact") >= LEAST_SHARE,
    "out of band": lambda off, on: off.least("kl") < LEAST_SHARE,
    "apart": lambda off, on: off.late[MISMATCH] > 0.01 >= on.late[MISMATCH],  # the limit of `doctor --verify`
    "worse": lambda off, on: max(_loss(off, on, each) for each in OBJECTIVES) > REWARD_MARGIN,
    "unbound": lambda off, on: "UnboundLocalError" in off.end and on.end == "done",
    "undefined": lambda off, on: "NameError" in off.end and on.end == "done",
    "a third": lambda off, on: on.late["judge/time"] <= off.late["judge/time"] * 2 / 3,
}
"""Whether a claim held, by the runs without and with the fix. KeyError or IndexError: a number was not measured."""


def _loss(off: DualRun, on: DualRun, objective: str) -> float:
    """Held-out reward that a run has lost against another one, at the last evaluation of that one."""
    last = len(on.held_out) - 1
    return on.held_out[last][objective] - off.held_out[last][objective]


def configs_for(overrides: Sequence[str]) -> dict[str, Config]:
    """The config of each run, the long ones first.

    Raises ConfigError for an override that is wrong or leaves nothing to compare.
    """
    base = preset("dual").with_(f"run.num_eval={PROBLEMS}", "run.exact_kl=true", *overrides)
    names = [objective.name for objective in base.objectives]
    if len(names) < len(OBJECTIVES) or "grpo" not in base.run.stages:
        raise ConfigError(
            f"objectives {', '.join(names) or 'none'}, stages {', '.join(base.run.stages)}: grpo-lab dual compares "
            f"{' and '.join(OBJECTIVES)} in GRPO; leave both objectives on, and grpo in run.stages"
        )
    half = max(1, min(objective.num_prompts for objective in resolve(base)) // 2)
    slips = data_directory() / "dual" / "slips.py"
    filled = {name: [each.format(half=half, slips=slips) for each in changes] for name, changes in RUNS.items()}
    return {name: base.with_(*changes, f"run.name=dual-{name}") for name, changes in filled.items()}


def measure(session: Session) -> DualRun:
    """The measurements of a finished session."""
    steps = [event.metrics for event in session.events if isinstance(event, Stepped) and not event.failed]
    trained = [metrics for metrics in steps if "reward" in metrics]
    late = trained[len(trained) // 2 :]
    names = dict.fromkeys(name for row in late for name in row)
    rows = {name: [row[name] for row in late if name in row] for name in names}
    bands = {f"{kl}/{o.name}": o.band for o in resolve(session.config) if o.band for kl in ("kl", "kl/exact")}
    bands = {name: band for name, band in bands.items() if name in rows}
    return DualRun(
        held_out=tuple(event.objectives for event in session.events if isinstance(event, Evaluated)),
        late={name: statistics.fmean(values) for name, values in rows.items()},
        inside={name: statistics.fmean(low <= kl <= high for kl in rows[name]) for name, (low, high) in bands.items()},
        move=max((row["weights/max_move"] for row in steps if "weights/max_move" in row), default=math.nan),
        end=session.crash.text if session.crash else session.status,
        broke=f"{broken.link}, step {broken.step}" if (broken := session.first_break()) else "none",
        diagnosis=diagnose(session).verdict,
    )


def claims(runs: Mapping[str, DualRun]) -> list[Claim]:
    """Every claim of the report that was tried, by the number of its fix."""
    found: list[Claim] = []
    for fix in _TABLES["fixes"]:
        for claim, off, on, shown, rule in fix.get("claims", ()):
            texts = ["; ".join(SHOWN[name](runs[run]) for name in shown) for run in (off, on)]
            try:
                verdict = _said(_RULES[rule](runs[off], runs[on]))
            except LookupError:
                verdict = "not measured"
            found.append(Claim(fix["number"], claim, texts[0], texts[1], verdict))
    return found


def _said(held: bool) -> str:
    return "held" if held else "did not hold"


def table(runs: Mapping[str, DualRun], stages: Sequence[str]) -> list[list[str]]:
    """Header and rows of the long runs; the first columns fit a terminal."""
    when = ", ".join(("start", *(stage.upper() for stage in stages)))
    header = ["run", *(f"{each}: {when}" for each in OBJECTIVES)]
    header += ["late KL (in band)", "late exact KL (in band)", "late length", "first break", "end", "diagnose"]
    body = []
    for name in LONG:
        run = runs[name]
        shown = (SHOWN[column](run) for column in ("kl", "exact", "tokens"))
        body.append([name, *(run.rewards(each) for each in OBJECTIVES), *shown, run.broke, run.end, run.diagnosis])
    return [header, *body]


def report(
    runs: Mapping[str, DualRun],
    tried: Sequence[Claim],
    failed: Mapping[str, Sequence[str]],
    figures: Mapping[str, tuple[str, str]],
    command: str,
    asked: Config,
) -> str:
    """The page in Markdown.

    `failed` are the checks of `doctor --verify` that failed, by run; `figures` are by title the file and the
    alternative text; `asked` is the config of the preset.
    """
    return render(
        "dual",
        command=command,
        asked=asked,
        runs=runs,
        changes={name: [each.format(half="N", slips="slips.py") for each in row] for name, row in RUNS.items()},
        table=table(runs, asked.run.stages),
        fixes=_TABLES["fixes"],
        claims=[["fix", "claim", "without the fix", "with it", "here"], *tried],
        failed=failed,
        figures=figures,
        least=LEAST_SHARE,
        margin=REWARD_MARGIN,
    )
