"""The page of findings in Markdown, from data/templates/matrix.md, and its summary for the terminal."""

import math

from grpo_lab.analysis.markdown import number, render
from grpo_lab.analysis.matrix.cells import AT_LEAST, HEALED, HEALTHY, HELD_OUT, NONE, REPORTED, STABLE, STEPS, UNHEALED
from grpo_lab.analysis.matrix.findings import MARGIN, Findings, disturbed, mean_gain
from grpo_lab.analysis.matrix.results import GAIN, MEANINGS
from grpo_lab.config.catalog import load_preset, scenario
from grpo_lab.errors import ConfigError
from grpo_lab.runs import environment


def page(found: Findings, figure: tuple[str, str], command: str) -> str:
    """The whole page; `figure` is the file of the heat map and its alternative text."""
    file, alt = figure
    numbers = {"at_least": AT_LEAST, "steps": STEPS, "held_out": HELD_OUT, "margin": MARGIN}
    needed = "nothing more: it is not needed here"
    return render(
        "matrix",
        found=found,
        file=file,
        alt=alt,
        command=command,
        machine=_machine(),
        lengths=sorted({result.asked for result in found.results}),
        fates=MEANINGS,
        reported=REPORTED,
        stable=STABLE,
        stable_source=load_preset(STABLE).source,
        failures=_failures(found) if _guarded(found) else [],
        algorithms=_algorithms(found),
        titles={name: _title(name) for name in found.scenarios},
        needed=[[guard, ", ".join(found.needed_for(guard)) or needed] for guard in found.left_out()],
        heals=_heals(found),
        gain=GAIN,
        healthy=_healthy(found),
        disturbed=disturbed(found.results),
        **numbers,
    )


def summary(found: Findings) -> list[list[str]]:
    """A table for the terminal, its header first: the guards, or the algorithms, that stop each failure."""
    if not _guarded(found):
        named = ((name, found.word(name, NONE), found.stoppers(name, found.algorithms)) for name in found.scenarios)
        body = [[name, none, ", ".join(stoppers) or "none"] for name, none, stoppers in named]
        return [["scenario", "no guard", "stopped by an algorithm"], *body]
    rows = [["scenario", "no guard", "stopped by one guard", REPORTED, STABLE]]
    for name in found.scenarios:
        words = [found.word(name, column) for column in (NONE, REPORTED, STABLE)]
        rows.append([name, words[0], ", ".join(found.stoppers(name)) or "none", *words[1:]])
    return rows


def _guarded(found: Findings) -> bool:
    """Whether guards were measured, and not algorithms alone."""
    return bool(found.guards or STABLE in found.columns or not found.algorithms)


def _algorithms(found: Findings) -> list[list[str]]:
    """A row for each scenario and a column for each algorithm; no rows if none was measured."""
    if not (names := found.algorithms):
        return []
    body = [[name, *(found.outcome(name, column) for column in (NONE, *names))] for name in found.scenarios]
    return [["scenario", NONE, *names], *body]


def _machine() -> str:
    here = environment.describe(threads=1)
    versions = ", ".join(f"{name} {here['packages'][name]}" for name in ("grpo-lab", "torch", "transformers"))
    return f"{here['platform']}, {here['cpu_count']} cores, one thread a run, Python {here['python']}, {versions}"


def _failures(found: Findings) -> list[list[str]]:
    rows = [["scenario", "no guard", "one guard that stops it", "in part", REPORTED, STABLE, f"reward under {STABLE}"]]
    for name, none, stoppers, reported, stable in summary(found)[1:]:
        partial = ", ".join(found.partial(name)) or "none"
        rows.append(
            [name, none + _cause(found, name), stoppers, partial, reported, stable, _reward(found, name, STABLE)]
        )
    return rows


def _title(name: str) -> str:
    try:
        return scenario(name).title
    except ConfigError:  # an instructor's own file: its row has the name without the folder
        return "a scenario of your own"


def _cause(found: Findings, name: str) -> str:
    links = dict.fromkeys(result.first_break for result in found.telling(name, NONE) if result.first_break)
    return f" ({', '.join(links)})" if links else ""


def _reward(found: Findings, name: str, column: str) -> str:
    """Mean before and after, over the runs that went through."""
    ends = [(r.before, r.after) for r in found.cells(name, column) if not math.isnan(r.gained)]
    if not ends:
        return "-"
    before, after = (sum(values) / len(ends) for values in zip(*ends, strict=True))
    return f"{number(before, 2)} to {number(after, 2)}"


def _heals(found: Findings) -> list[list[str]]:
    """A row for each scenario whose heal was tried; no rows if none was."""
    header = ["scenario", "heal", f"reward under {STABLE}", "healed too", "heals"]
    rows = []
    for name in found.scenarios:
        good, tried = found.heals(name)
        if tried:
            ends = (_reward(found, name, column) for column in (UNHEALED, HEALED))
            rows.append([name, _heal(name), *ends, f"{good} of {tried} seeds"])
    return [header, *rows] if rows else []


def _heal(name: str) -> str:
    try:
        return ", ".join(scenario(name).heals[0].change)
    except (ConfigError, IndexError):  # an instructor's own file, or a heal that its file no longer names
        return "-"


def _healthy(found: Findings) -> list[list[str]]:
    """A row for each column of guards with a healthy run."""
    rows = [["guards", "false alarms", "steps changed", "reward", "gain against none", "time a step"]]
    plain = mean_gain(found.cells(HEALTHY, NONE))
    for column in found.columns:
        if cells := found.cells(HEALTHY, column):
            finished = sum(result.finished for result in cells)
            difference = mean_gain(cells) - plain
            gain = "-" if math.isnan(difference) else f"{difference:+.3f}" + " (lost)" * (difference < -MARGIN)
            changed = f"{sum(result.changed for result in cells)} of {finished}"
            alarms, cost = f"{found.alarms(column)} of {finished}", f"{found.cost(column):.2f} x"
            rows.append([column, alarms, changed, _reward(found, HEALTHY, column), gain, cost])
    return rows
