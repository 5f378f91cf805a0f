"""`grpo-lab reproduce`: run the cells with progress bars, draw the figures and write the page."""

from collections.abc import Iterable
from itertools import product
from pathlib import Path

from grpo_lab.analysis.reproduction import (
    COLUMNS,
    SCENARIOS,
    ReproducedRun,
    brief,
    claims,
    config_for,
    healthy_config,
    measure,
    recording_of,
    report,
    scenarios_for,
)
from grpo_lab.config.catalog import model_settings
from grpo_lab.config.schema import Config
from grpo_lab.messages import text, translated
from grpo_lab.runs import recordings
from grpo_lab.runs.session import Session
from grpo_lab.ui import console, plots
from grpo_lab.ui.side_by_side import ONE_THREAD, check_empty, run_all

HEALTHY = ("original", "stable")
HOW_LONG = ("original", "reported_fix", "healed", "stable")
"""Columns by the time that they take: float16 is slow on a CPU, and a crash is quick."""
Sessions = dict[tuple[str, str], Session]


def reproduce_all(directory: Path, overrides: tuple[str, ...], model: str = "", live: bool = True) -> Path:
    """Run everything into `directory`, each run in a child process, one for each core, and return the path of the page.

    `model` has settings of its own; "" takes the scenarios' settings. Without `live` its recordings are shown instead.
    Ctrl-C ends all runs. Raises RunError if the folder is not empty, ModelError for a model that is not here, and
    ConfigError for a mistake in the overrides.
    """
    check_empty(directory)
    console.say_warnings()
    overrides = (*ONE_THREAD, *overrides)
    keys = [*product(scenarios_for(model) if model else SCENARIOS, COLUMNS)]
    configs: dict[tuple[str, str], Config] = {key: config_for(*key, overrides, model) for key in keys}
    if not model:
        configs |= {("healthy", column): healthy_config(column, overrides) for column in HEALTHY}
    sessions = _trained(configs, directory) if live else _recorded(keys, model, directory)
    runs = {key: measure(session, *key) for key, session in sessions.items()}
    cells = [runs[key] for key in keys]
    healthy = {column: run for (name, column), run in runs.items() if name == "healthy"}
    figures = _draw(directory, sessions)
    page = directory / "report.md"
    command = "grpo-lab reproduce" + f" --model {model}" * bool(model) + " --live" * bool(model and live)
    recorded = "" if live else translated(f"recorded.{model}", " ".join(model_settings()[model]["recorded"].split()))
    page.write_text(report(cells, healthy, figures, command, configs[keys[0]], recorded), encoding="utf-8")
    _print(cells, healthy, model, recorded)
    return page


def _recorded(keys: Iterable[tuple[str, str]], model: str, directory: Path) -> Sessions:
    """The recorded sessions of a model; the folder is made for their figures."""
    directory.mkdir(parents=True, exist_ok=True)
    return {key: Session.open(recordings.find(recording_of(*key, model))) for key in keys}


def _trained(configs: dict[tuple[str, str], Config], directory: Path) -> Sessions:
    """The finished session of each config, in their order."""
    # The last columns last longest: begun first, they leave no core idle at the end.
    order = sorted(configs, key=lambda key: -HOW_LONG.index(key[1]))
    found = run_all({"-".join(key): configs[key] for key in order}, directory)
    return {key: found["-".join(key)] for key in configs}


def _draw(directory: Path, sessions: Sessions) -> dict[str, tuple[str, str]]:
    names = dict.fromkeys(name for name, _ in sessions if name != "healthy")
    groups = {name: {c: sessions[name, c].events for c in COLUMNS} for name in names}
    longest = max(session.config.run.num_steps for (name, _), session in sessions.items() if name in names)
    rewards = plots.save(plots.rewards_figure(groups, longest), directory / "rewards.png")
    figures = {text("reproduction.figure"): (rewards.name, plots.rewards_in_words(groups))}
    healthy = {column: sessions["healthy", column].events for column in HEALTHY if ("healthy", column) in sessions}
    groups |= {"healthy": healthy} if healthy else {}
    for name, runs in groups.items():
        plots.save(plots.comparison_figure(runs, title=name), directory / f"{name}.png")
        alt = " ".join(f"{column}: {plots.alt_text(events)}" for column, events in runs.items())
        figures[f"{name}: " + ", ".join(runs)] = (f"{name}.png", alt)
    return figures


def _print(cells: list[ReproducedRun], healthy: dict[str, ReproducedRun], model: str, recorded: str) -> None:
    if recorded:
        console.say(recorded)
    title = text("reproduction.title.recorded" if recorded else "reproduction.title.measured")
    console.out.print(console.table(brief(cells), gap=1, title=title))
    if healthy:
        title = text("reproduction.title.healthy")
        console.out.print(console.table(brief(list(healthy.values())), gap=1, title=title))
    title = text("reproduction.title.claims", model=model or text("reproduction.tiny"))
    console.out.print(console.table(claims(cells, healthy), title=title))
