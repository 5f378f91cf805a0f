"""The fifth report's seven fixes on and off: the runs of `grpo-lab dual`, their measurements, and the page."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from grpo_lab.analysis.diagnosis import diagnose
from grpo_lab.analysis.markdown import filled, holds, render
from grpo_lab.config.catalog import preset
from grpo_lab.config.schema import Config
from grpo_lab.errors import ConfigError
from grpo_lab.events import Evaluated, Stepped
from grpo_lab.paths import data_directory, data_tables
from grpo_lab.runs.outcome import Learned, MeanReward, change, outcome
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
NOISE = 1.0
"""The largest variance of one reward of H, which is between -1 and 1."""
LEAST_SHARE = 0.8
"""Share of the late steps in which a KL must be inside its band to count as kept there."""
VERDICTS = {True: "held", False: "did not hold", None: "not measured"}


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
        return [f"{each} {self.of(f'{name}/{each}')}" for each in OBJECTIVES]

    def of(self, name: str) -> str:
        """The late mean of a metric; a dash where it is missing."""
        return _shown(self.late, name)

    def rewards(self, objective: str) -> str:
        """The held-out rewards of an objective, stage by stage."""
        return ">".join(_shown(stage, objective, "z.2f") for stage in self.held_out) or "-"

    def least(self, name: str) -> float:
        """The smaller share of steps in a band. Raises KeyError where there is no band or no KL."""
        return min(self.inside[f"{name}/{each}"] for each in OBJECTIVES)

    def ahead_of(self, other: "DualRun") -> bool:
        """Whether another run has less held-out reward of an objective, by more than chance, at this one's end."""
        theirs, mine = other.held_out[len(self.held_out) - 1], self.held_out[-1]
        return any(
            change(MeanReward(theirs[each], PROBLEMS), MeanReward(mine[each], PROBLEMS), NOISE) is Learned.LEARNED
            for each in OBJECTIVES
        )


def _shown(numbers: Mapping[str, float], name: str, form: str = "z.3f") -> str:
    """One of the numbers as text; a dash where it is missing."""
    return format(numbers[name], form) if name in numbers else "-"


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
    found = outcome(session.events)
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
        move=found.max_move,
        end=found.crash.text if found.crash else found.status,
        broke=f"{broken.link}, step {broken.step}" if (broken := found.first_break) else "none",
        diagnosis=diagnose(session).verdict,
    )


def shown(name: str, run: DualRun) -> str:
    """A measurement in words, by its name in data/dual/fixes.toml."""
    return filled(_TABLES["shown"][name], run=run, mismatch=MISMATCH)


def claims(runs: Mapping[str, DualRun]) -> list[list[str]]:
    """Header and rows: every claim of the report, by the number of its fix, without the fix, with it, the verdict."""
    rows = [["fix", "claim", "without the fix", "with it", "here"]]
    limits = {"least": LEAST_SHARE, "mismatch": MISMATCH}
    for fix in _TABLES["fixes"]:
        for claim, off, on, names, rule in fix.get("claims", ()):
            texts = ["; ".join(shown(name, runs[run]) for name in names) for run in (off, on)]
            verdict = VERDICTS[holds(rule, off=runs[off], on=runs[on], **limits)]
            rows.append([fix["number"], claim, *texts, verdict])
    return rows


def table(runs: Mapping[str, DualRun], stages: Sequence[str]) -> list[list[str]]:
    """Header and rows of the long runs; the first columns fit a terminal."""
    when = ", ".join(("start", *(stage.upper() for stage in stages)))
    header = ["run", *(f"{each}: {when}" for each in OBJECTIVES)]
    header += ["late KL (in band)", "late exact KL (in band)", "late length", "first break", "end", "diagnose"]
    body = []
    for name in LONG:
        run = runs[name]
        late = (shown(column, run) for column in ("kl", "exact", "tokens"))
        body.append([name, *(run.rewards(each) for each in OBJECTIVES), *late, run.broke, run.end, run.diagnosis])
    return [header, *body]


def report(
    runs: Mapping[str, DualRun],
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
        claims=claims(runs),
        failed=failed,
        figures=figures,
        least=LEAST_SHARE,
    )
