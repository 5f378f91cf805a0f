"""`grpo-lab reproduce`: run the cells with progress bars, draw the figures and write the page."""

import os
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import product
from pathlib import Path

from grpo_lab.analysis.reproduction import (
    COLUMNS,
    ROUNDS,
    SCENARIOS,
    ReproducedRun,
    brief,
    claims,
    config_for,
    healthy_config,
    measure,
    report,
)
from grpo_lab.config.schema import Config
from grpo_lab.errors import RunError
from grpo_lab.runs.child_pool import kept, warm_child
from grpo_lab.runs.session import Session
from grpo_lab.ui import console, plots

HEALTHY = ("original", "stable")
ONE_THREAD = ("run.threads=1",)
"""The tiny model is fastest on one thread, and the runs share the cores."""
HOW_LONG = ("original", "reported_fix", "healed", "stable")
"""Columns by the time that they take: float16 is slow on a CPU, and a crash is quick."""
Sessions = dict[tuple[str, str], Session]


def reproduce_all(directory: Path, overrides: tuple[str, ...]) -> Path:
    """Run everything into `directory`, each run in a child process, one for each core, and return the path of the page.

    Ctrl-C ends all of them. Raises RunError if the folder is not empty, and for a mistake in the overrides.
    """
    if directory.exists() and any(directory.iterdir()):
        raise RunError(f"{directory} is not empty; choose another folder with --out, or delete it")
    console.say_warnings()
    overrides = (*ONE_THREAD, *overrides)
    configs: dict[tuple[str, str], Config] = {key: config_for(*key, overrides) for key in product(SCENARIOS, COLUMNS)}
    configs |= {("healthy", column): healthy_config(column, overrides) for column in HEALTHY}
    sessions = _run_all(configs, directory)
    cells = {key: measure(session, *key) for key, session in sessions.items()}
    healthy = {column: cells.pop(("healthy", column)) for column in HEALTHY}
    figures = _draw(directory, sessions)
    page = directory / "report.md"
    page.write_text(report([*cells.values()], healthy, figures, "grpo-lab reproduce"), encoding="utf-8")
    _print([*cells.values()], healthy)
    return page


def _run_all(configs: Mapping[tuple[str, str], Config], directory: Path) -> Sessions:
    """The finished session of each config, in their order."""
    stopping, sessions = threading.Event(), Sessions()

    def run(key: tuple[str, str]) -> None:
        with warm_child() as child:
            session = sessions[key] = Session(configs[key], directory / "-".join(key), child=child)
            session.views.append(console.ProgressView(bars, ", ".join(key)))
            if stopping.is_set():
                session.stop()
            session.run()

    jobs = os.cpu_count() or 1
    with console.progress() as bars, kept(jobs), ThreadPoolExecutor(jobs) as pool:
        # The last columns last longest: begun first, they leave no core idle at the end.
        running = [pool.submit(run, key) for key in sorted(configs, key=lambda key: -HOW_LONG.index(key[1]))]
        try:
            for one in as_completed(running):
                one.result()
        except BaseException:
            stopping.set()
            pool.shutdown(wait=False, cancel_futures=True)
            for session in list(sessions.values()):
                session.stop()
            raise  # the pool waits for the running sessions, so that no process is left behind
    return {key: sessions[key] for key in configs}


def _draw(directory: Path, sessions: Sessions) -> dict[str, tuple[str, str]]:
    groups = {name: {c: sessions[name, c].events for c in COLUMNS} for name in SCENARIOS}
    rewards = plots.save(plots.rewards_figure(groups, ROUNDS), directory / "rewards.png")
    figures = {"The reward of each run": (rewards.name, plots.rewards_in_words(groups))}
    groups["healthy"] = {column: sessions["healthy", column].events for column in HEALTHY}
    for name, runs in groups.items():
        plots.save(plots.comparison_figure(runs, title=name), directory / f"{name}.png")
        alt = " ".join(f"{column}: {plots.alt_text(events)}" for column, events in runs.items())
        figures[f"{name}: " + ", ".join(runs)] = (f"{name}.png", alt)
    return figures


def _print(cells: list[ReproducedRun], healthy: dict[str, ReproducedRun]) -> None:
    console.out.print(console.table(brief(cells), gap=1, title="The explosion and its cure, measured here"))
    console.out.print(console.table(brief(list(healthy.values())), gap=1, title="A healthy task"))
    title = "The claims of the reports, on the tiny model (see the report for their scope)"
    console.out.print(console.table(claims(cells, healthy), title=title))
