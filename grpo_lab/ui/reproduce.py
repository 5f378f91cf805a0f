"""`grpo-lab reproduce`: run the cells with progress bars, draw the figures and write the page."""

from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

from rich.progress import Progress

from grpo_lab.analysis.reproduction import (
    COLUMNS,
    SCENARIOS,
    ReproducedRun,
    brief,
    config_for,
    healthy_config,
    measure,
    report,
    verdicts,
)
from grpo_lab.errors import RunError
from grpo_lab.models.loading import resolve_device
from grpo_lab.runs.session import BY_THE_USER, Session
from grpo_lab.ui import console, plots

HEALTHY = ("original", "stable")
ONE_THREAD = ("run.threads=1",)
"""The tiny model is fastest on one thread, and the two healthy runs share the cores."""


def reproduce_all(directory: Path, overrides: tuple[str, ...]) -> Path:
    """Run everything into `directory` and return the path of the page.

    The two healthy runs train in child processes while the nine cells run here. Ctrl-C ends all of them.

    Raises RunError if the folder is not empty.
    """
    if directory.exists() and any(directory.iterdir()):
        raise RunError(f"{directory} is not empty; choose another folder with --out, or delete it")
    console.say_warnings()
    overrides = (*ONE_THREAD, *overrides)
    healthy = {c: Session(healthy_config(c, overrides), directory / f"healthy-{c}", child=True) for c in HEALTHY}
    with console.progress() as bars, ThreadPoolExecutor(len(healthy)) as pool:
        for column, session in healthy.items():
            session.views.append(console.ProgressView(bars, f"healthy, {column}"))
        running = [pool.submit(session.run, check=True) for session in healthy.values()]
        try:
            sessions: dict[tuple[str, str], Session] = {}
            for key in product(SCENARIOS, COLUMNS):
                sessions[key] = _run(bars, *key, directory, overrides)
            for one in running:
                one.result()
        except BaseException:
            for session in healthy.values():
                session.stop()
            raise  # the pool waits for them, so that no process is left behind
    cells = [measure(session, *key) for key, session in sessions.items()]
    healthy_cells = {column: measure(session, "healthy", column) for column, session in healthy.items()}
    figures = _draw(directory, sessions, healthy)
    page = directory / "report.md"
    page.write_text(report(cells, healthy_cells, figures, "grpo-lab reproduce"), encoding="utf-8")
    _print(cells, healthy_cells)
    return page


def _run(bars: Progress, name: str, column: str, directory: Path, overrides: tuple[str, ...]) -> Session:
    config = config_for(name, column, overrides)
    # On CUDA the assert would end this process.
    session = Session(config, directory / f"{name}-{column}", child=resolve_device(config.run.device).type == "cuda")
    session.views.append(console.ProgressView(bars, f"{name}, {column}"))
    session.run()
    if session.ended and session.ended.message == BY_THE_USER:
        raise KeyboardInterrupt
    return session


def _draw(
    directory: Path, sessions: dict[tuple[str, str], Session], healthy: dict[str, Session]
) -> dict[str, tuple[str, str]]:
    groups = {name: {c: sessions[name, c].events for c in COLUMNS} for name in SCENARIOS}
    groups["healthy"] = {column: session.events for column, session in healthy.items()}
    figures = {}
    for name, runs in groups.items():
        plots.save(plots.comparison_figure(runs, title=name), directory / f"{name}.png")
        alt = " ".join(f"{column}: {plots.alt_text(events)}" for column, events in runs.items())
        figures[f"{name}: " + ", ".join(runs)] = (f"{name}.png", alt)
    return figures


def _print(cells: list[ReproducedRun], healthy: dict[str, ReproducedRun]) -> None:
    console.out.print(console.table(brief(cells), gap=1, title="The explosion and its cure, measured here"))
    console.out.print(console.table(brief(list(healthy.values())), gap=1, title="A healthy task"))
    claims = [["claim of the reports", "measured", "verdict"], *map(list, verdicts(cells, healthy))]
    console.out.print(console.table(claims, title="The claims, on the tiny model (see the report for their scope)"))
