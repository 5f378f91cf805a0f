"""`grpo-lab reproduce` and `grpo-lab dual`: a table of runs, trained side by side, with figures and a page."""

import os
import shlex
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import product
from pathlib import Path

from grpo_lab.analysis import dual_report, reproduction
from grpo_lab.analysis.memory import IMPORTS, MIB, free_mib, parts
from grpo_lab.analysis.reproduction import COLUMNS, HEALTHY
from grpo_lab.analysis.run_state import describe, fold
from grpo_lab.analysis.verification import verify
from grpo_lab.config.catalog import model_settings
from grpo_lab.config.schema import Config
from grpo_lab.errors import RunError
from grpo_lab.messages import spoken, text
from grpo_lab.models.loading import locate
from grpo_lab.runs import recordings
from grpo_lab.runs.child import warm_child
from grpo_lab.runs.session import Session
from grpo_lab.training.objectives import resolve
from grpo_lab.training.registry import check
from grpo_lab.ui import console, plots

ONE_THREAD = ("run.threads=1",)
"""One thread each, because the runs share the cores."""
HOW_LONG = ("original", "reported_fix", "healed", "stable")
"""Columns of `reproduce` by the time that they take: float16 is slow on a CPU, and a crash is quick."""
DUAL_FIGURES = {
    "rewards": ("reward", "Rewards by step, and held-out rewards at the start and after each stage"),
    "kl": ("kl", "KL by step, by the formula of each run's loss, and the bands"),
    "exact": ("kl/exact", "Exact KL by step, over the whole vocabulary, and the bands"),
}
"""By the name of the file and of its words the metric and the title."""
Figures = dict[str, tuple[str, str]]
"""By its title a figure's file and its alternative text."""


def reproduce_all(directory: Path, overrides: tuple[str, ...], model: str = "", live: bool = True) -> Path:
    """Measure the before/after table into `directory`, and return the path of the page.

    `model` has settings of its own; "" takes the scenarios' settings. Without `live` its recordings are shown instead.
    Raises as `run_all` does, and ConfigError for a mistake in the overrides.
    """
    overrides = (*ONE_THREAD, *overrides)
    names = reproduction.scenarios_for(model) if model else reproduction.SCENARIOS
    configs: dict[tuple[str, str], Config] = {
        key: reproduction.config_for(*key, overrides, model) for key in product(names, COLUMNS)
    }
    asked = configs[names[0], COLUMNS[0]]
    if live and not model:
        configs |= {
            (HEALTHY, column): reproduction.healthy_config(column, overrides) for column in ("original", "stable")
        }
    if live:
        # The last columns last longest: begun first, they leave no core idle at the end.
        order = sorted(configs, key=lambda key: -HOW_LONG.index(key[1]))
        found = run_all({"-".join(key): configs[key] for key in order}, directory)
        sessions = {key: found["-".join(key)] for key in configs}
    else:
        _check_empty(directory)
        sessions = {key: Session.open(recordings.find(reproduction.recording_of(*key, model))) for key in configs}
    runs = [reproduction.measure(session, *key) for key, session in sessions.items()]
    cells = [run for run in runs if run.scenario != HEALTHY]
    healthy = {run.column: run for run in runs if run.scenario == HEALTHY}
    command = "grpo-lab reproduce" + f" --model {model}" * bool(model) + " --live" * bool(model and live)
    recorded = "" if live else spoken(" ".join(model_settings()[model]["recorded"].split()))
    figures = _reproduction_figures(directory, sessions, names)
    page = _write(directory, reproduction.report(cells, healthy, figures, command, asked, recorded))
    if recorded:
        console.say(recorded)
    title = text("reproduction.title.recorded" if recorded else "reproduction.title.measured")
    console.out.print(console.table(reproduction.table(cells, "short"), gap=1, title=title))
    if healthy:
        title = text("reproduction.title.healthy")
        console.out.print(console.table(reproduction.table([*healthy.values()], "short"), gap=1, title=title))
    title = text("reproduction.title.claims", model=model or text("reproduction.tiny"))
    console.out.print(console.table(reproduction.claims(cells, healthy), title=title))
    return page


def _reproduction_figures(
    directory: Path, sessions: Mapping[tuple[str, str], Session], names: Sequence[str]
) -> Figures:
    groups = {name: {c: sessions[name, c].events for c in COLUMNS} for name in names}
    longest = max(sessions[key].config.run.num_steps for key in product(names, COLUMNS))
    rewards = plots.save(plots.rewards_figure(groups, longest), directory / "rewards.png")
    figures = {text("reproduction.figure"): (rewards.name, plots.rewards_in_words(groups))}
    if healthy := {column: session.events for (name, column), session in sessions.items() if name == HEALTHY}:
        groups[HEALTHY] = healthy
    for name, runs in groups.items():
        plots.save(plots.comparison_figure(runs, title=name), directory / f"{name}.png")
        alt = " ".join(f"{column}: {describe(fold(events))}" for column, events in runs.items())
        figures[f"{name}: " + ", ".join(runs)] = (f"{name}.png", alt)
    return figures


def train_dual(directory: Path, overrides: Sequence[str]) -> Path:
    """Train the preset `dual` and its variants in `directory`, and return the path of the page.

    Raises as `run_all` does, and ConfigError for a mistake in the overrides.
    """
    configs = dual_report.configs_for((*ONE_THREAD, *overrides))
    sessions = run_all(configs, directory)
    runs = {name: dual_report.measure(session) for name, session in sessions.items()}
    failed = _checked(directory)
    figures = _dual_figures(directory, sessions, runs)
    command = shlex.join(("grpo-lab", "dual", *(word for override in overrides for word in ("--set", override))))
    page = _write(directory, dual_report.report(runs, failed, figures, command, configs["dual"]))
    short = [row[:4] for row in dual_report.table(runs, configs["dual"].run.stages)]
    console.out.print(console.table(short, gap=1, title="The preset dual, and each mistake switched on"))
    rows = [["fix", "claim of the report", "here"]]
    rows += [[fix, claim, verdict] for fix, claim, *_, verdict in dual_report.claims(runs)[1:]]
    console.out.print(console.table(rows, gap=1, title="The claims about the seven fixes (see the report for numbers)"))
    return page


def _checked(directory: Path) -> dict[str, list[str]]:
    """Of each long run the checks of `doctor --verify` that fail."""
    failed = {}
    with console.progress() as bars:
        task = bars.add_task("checks", total=len(dual_report.LONG), note="")
        for name in dual_report.LONG:
            failed[name] = [line.name for line in verify(str(directory / name)) if line.ok is False]
            bars.update(task, advance=1, note=name)
    return failed


def _dual_figures(directory: Path, sessions: Mapping[str, Session], runs: Mapping[str, dual_report.DualRun]) -> Figures:
    events = {name: sessions[name].events for name in dual_report.LONG}
    bands = {objective.name: objective.band for objective in resolve(sessions["dual"].config)}
    found = {}
    for name, (metric, title) in DUAL_FIGURES.items():
        file = plots.save(plots.objectives_figure(metric, events, bands, title), directory / f"{name}.png")
        found[title] = file.name, ". ".join(f"{run}: {dual_report.shown(name, runs[run])}" for run in events)
    return found


def _write(directory: Path, page: str) -> Path:
    path = directory / "report.md"
    path.write_text(page, encoding="utf-8")
    return path


def _check_empty(directory: Path) -> None:
    if directory.exists() and any(directory.iterdir()):
        raise RunError(f"{directory} is not empty; choose another folder with --out, or delete it")


def run_all(configs: Mapping[str, Config], directory: Path) -> dict[str, Session]:
    """The finished session of each config, begun in their order, each in a child process and the folder of its name.

    Ctrl-C ends all runs. Raises RunError if the folder is not empty, ModelError for a model that is not here, and
    ConfigError as a session does.
    """
    _check_empty(directory)
    console.say_warnings()
    for config in configs.values():
        check(config)
    for model in {config.model.name for config in configs.values()}:
        locate(model)
    stopping, sessions = threading.Event(), dict[str, Session]()

    def run(name: str) -> None:
        with warm_child() as child:
            session = sessions[name] = Session(configs[name], directory / name, child=child)
            session.views.append(console.ProgressView(bars, name))
            if stopping.is_set():
                session.stop()
            session.run()

    with console.progress() as bars, ThreadPoolExecutor(_jobs(configs.values())) as pool:
        running = [pool.submit(run, name) for name in configs]
        try:
            for one in as_completed(running):
                one.result()
        except BaseException:
            stopping.set()
            pool.shutdown(wait=False, cancel_futures=True)
            for session in list(sessions.values()):
                session.stop()
            raise  # the pool waits for the running sessions, so that no process is left behind
    return {name: sessions[name] for name in configs}


def _jobs(configs: Iterable[Config]) -> int:
    """The number of runs that cores and free memory have room for; of each model one config is looked at.

    Half of the memory is left to activations, logits and cache.
    """
    cores, free = os.cpu_count() or 1, free_mib("cpu") or 0.0
    of_models = {config.model.name: config.with_("run.device=cpu") for config in configs}.values()
    largest = max((sum(parts(config).values()) for config in of_models), default=0)
    return max(1, min(cores, int(free * MIB / 2 / (IMPORTS + largest))))
