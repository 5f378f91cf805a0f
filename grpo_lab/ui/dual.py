"""`grpo-lab dual`: train the preset and its variants with progress bars, draw the figures and write the page."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from grpo_lab.analysis import dual_report
from grpo_lab.analysis.dual_report import LONG, SHOWN, DualRun, configs_for, measure
from grpo_lab.analysis.verification import verify
from grpo_lab.runs.session import Session
from grpo_lab.training.objectives import resolve
from grpo_lab.ui import console, plots
from grpo_lab.ui.side_by_side import ONE_THREAD, check_empty, run_all

FIGURES = {
    "rewards": ("reward", "Rewards by step, and held-out rewards at the start and after each stage"),
    "kl": ("kl", "KL by step, by the formula of each run's loss, and the bands"),
    "exact": ("kl/exact", "Exact KL by step, over the whole vocabulary, and the bands"),
}
"""By the name of the file and of its words the metric and the title."""


def train_dual(directory: Path, overrides: Sequence[str]) -> Path:
    """Train the preset `dual` and its variants in `directory`, one run for each core, and return the path of the page.

    Ctrl-C ends all runs. Raises RunError if the folder is not empty, ConfigError for a mistake in the overrides,
    and ModelError for a model that is not here.
    """
    check_empty(directory)
    configs = configs_for((*ONE_THREAD, *overrides))
    console.say_warnings()
    sessions = run_all(configs, directory)
    runs = {name: measure(session) for name, session in sessions.items()}
    failed = _checked(directory)
    tried = dual_report.claims(runs)
    figures = _draw(directory, sessions, runs)
    command = shlex.join(("grpo-lab", "dual", *(word for override in overrides for word in ("--set", override))))
    page = directory / "report.md"
    text = dual_report.report(runs, tried, failed, figures, command, configs["dual"])
    page.write_text(text, encoding="utf-8")
    title = "The preset dual, and each mistake switched on"
    short = [row[:4] for row in dual_report.table(runs, configs["dual"].run.stages)]
    console.out.print(console.table(short, gap=1, title=title))
    rows = [["fix", "claim of the report", "here"], *([each.fix, each.claim, each.verdict] for each in tried)]
    console.out.print(console.table(rows, gap=1, title="The claims about the seven fixes (see the report for numbers)"))
    return page


def _checked(directory: Path) -> dict[str, list[str]]:
    """Of each long run the checks of `doctor --verify` that fail."""
    failed = {}
    with console.progress() as bars:
        task = bars.add_task("checks", total=len(LONG), note="")
        for name in LONG:
            failed[name] = [line.name for line in verify(str(directory / name)) if line.ok is False]
            bars.update(task, advance=1, note=name)
    return failed


def _draw(directory: Path, sessions: Mapping[str, Session], runs: Mapping[str, DualRun]) -> dict[str, tuple[str, str]]:
    """The files and alternative texts of the figures by title."""
    events = {name: sessions[name].events for name in LONG}
    bands = {objective.name: objective.band for objective in resolve(sessions["dual"].config)}
    found = {}
    for name, (metric, title) in FIGURES.items():
        file = plots.save(plots.objectives_figure(metric, events, bands, title), directory / f"{name}.png")
        found[title] = file.name, ". ".join(f"{run}: {SHOWN[name](runs[run])}" for run in LONG)
    return found
