"""The page of findings, in Markdown."""

from __future__ import annotations

import math
from collections.abc import Sequence

from grpo_lab.analysis.matrix.cells import AT_LEAST, HEALTHY, HELD_OUT, NONE, REPORTED, STABLE, STEPS
from grpo_lab.analysis.matrix.derivation import Derivation
from grpo_lab.analysis.matrix.findings import MARGIN, Findings, disturbed, mean_gain
from grpo_lab.analysis.matrix.results import Fate
from grpo_lab.analysis.reproduction import escaped, markdown, number
from grpo_lab.config.catalog import load_preset, preset, scenario
from grpo_lab.errors import ConfigError
from grpo_lab.runs import environment

_FATES = {
    Fate.STOPPED: "the run went through and trained, and the symptom showed in no step",
    Fate.REFUSED: "the run went through and trained; the symptom showed only in steps that a guard refused",
    Fate.IDLE: "the run went through without the symptom, but not one update was kept",
    Fate.SHOWN: "the run went through, and the symptom showed in a step that counted",
    Fate.BROKEN: "the run went through and left weights that are not finite",
    Fate.HALTED: "a guard ended the run, the last healthy weights in place",
    Fate.CRASHED: "the run ended in an error, killed its process, or hung",
    Fate.FAILED: "nothing was measured: a mistake in model, data or rewards",
}


def page(found: Findings, figure: tuple[str, str], command: str, derived: Derivation | None = None) -> str:
    """The whole page; `figure` is the file of the heat map and what it shows in words."""
    file, alt = figure
    parts = [
        "# Which guard stops which failure",
        f"Made by `{command}` on {_machine()}.",
        f"![{escaped(alt)}]({file})",
        "## What was measured",
        _definitions(found),
        "## Failures",
        _failures(found),
        "## Which guards of `stable` earn their place",
        _places(found),
        "## Guards that do nothing here",
        _idle(found),
        *(["## On a healthy run", _healthy(found)] if found.has_healthy else []),
        *(["## Deriving a smallest set", _derived(derived)] if derived else []),
        *_disturbed(found),
    ]
    return "\n\n".join(parts) + "\n"


def summary(found: Findings) -> list[list[str]]:
    """A table for the terminal, its header first: what stops each failure."""
    rows = [["scenario", "no guard", "stopped by one guard", REPORTED, STABLE]]
    for name in found.scenarios:
        words = [found.word(name, column) for column in (NONE, REPORTED, STABLE)]
        rows.append([name, words[0], ", ".join(found.stoppers(name)) or "none", *words[1:]])
    return rows


def _machine() -> str:
    here = environment.describe(threads=1)
    versions = ", ".join(f"{name} {here['packages'][name]}" for name in ("grpo-lab", "torch", "transformers"))
    return f"{here['platform']}, {here['cpu_count']} cores, one thread a run, Python {here['python']}, {versions}"


def _definitions(found: Findings) -> str:
    lengths = sorted({result.asked for result in found.results})
    fates = "\n".join(f"- `{fate}`: {what}." for fate, what in _FATES.items())
    return f"""Each cell is one short run in a process of its own: a scenario (its cause, its own guards taken off)
under one column of guards, with one of {found.seeds} seeds. It goes {", ".join(map(str, lengths))} steps: as many
as the scenario's file speaks of and at least {AT_LEAST}, or {STEPS} for the healthy run. A guard alone has the
settings that `stable` gives it, or else its defaults. `{REPORTED}` means the guards of that preset alone, not its
other settings. The symptom is what the scenario's file expects, within the steps that it speaks of or over the
whole run. A run that went well is counted only if the unguarded run of the same seed failed.

{fates}

Reward is that of {HELD_OUT} held-out problems, before the first step and after the last, for runs that went through.
Means over seeds that differ by less than {MARGIN:g} are called equal.

Limits: a tiny model, few steps and few seeds. What is stopped here for so many steps may come later. What a guard
alone does not stop it may stop beside another. To stop a failure is to keep the run alive and its numbers in range; it
does not make a wrong loss or rate teach anything: see the rewards."""


def _failures(found: Findings) -> str:
    header = ["scenario", "no guard", "one guard that stops it", "in part", REPORTED, STABLE, f"reward under {STABLE}"]
    rows = [
        [
            name,
            found.word(name, NONE) + _cause(found, name),
            ", ".join(found.stoppers(name)) or "none",
            ", ".join(found.partial(name)) or "none",
            found.word(name, REPORTED),
            found.word(name, STABLE),
            _reward(found, name, STABLE),
        ]
        for name in found.scenarios
    ]
    titles = "\n".join(f"- {escaped(name)}: {escaped(_title(name))}" for name in found.scenarios)
    return f"{markdown([header, *rows])}\n\n{titles}"


def _title(name: str) -> str:
    try:
        return scenario(name).title
    except ConfigError:  # an instructor's own file, which the row does not name in full
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


def _places(found: Findings) -> str:
    rows = [["without", "fails then"]]
    for guard in found.left_out():
        rows.append([guard, ", ".join(found.needed_for(guard)) or "nothing more: it does not earn its place here"])
    if len(rows) == 1:
        return "No column leaves a guard out."
    return f"`{STABLE}`: {load_preset(STABLE).source}. Each of its guards is left out in turn.\n\n{markdown(rows)}"


def _idle(found: Findings) -> str:
    names = found.idle()
    if not names:
        return "None: each guard alone stops something, or keeps it out of the weights."
    return f"Alone, these neither stop nor refuse any failure here: {', '.join(f'`{name}`' for name in names)}."


def _healthy(found: Findings) -> str:
    rows = [["guards", "false alarms", "steps changed", "reward", "gain against none", "time a step"]]
    plain = mean_gain(found.cells(HEALTHY, NONE))
    for column in found.columns:
        cells = found.cells(HEALTHY, column)
        if not cells:
            continue
        finished = sum(result.finished for result in cells)
        difference = mean_gain(cells) - plain
        rows.append(
            [
                column,
                f"{found.alarms(column)} of {finished}",
                f"{sum(result.changed for result in cells)} of {finished}",
                _reward(found, HEALTHY, column),
                "-" if math.isnan(difference) else f"{difference:+.3f}" + " (lost)" * (difference < -MARGIN),
                f"{found.cost(column):.2f} x",
            ]
        )
    note = (
        "A false alarm is a step of a healthy run that a guard refused. Times are medians against the unguarded run of "
        "the same seed, on a machine that ran other cells meanwhile: `make bench` measures them with care."
    )
    return f"{markdown(rows)}\n\n{note}"


def _derived(derived: Derivation) -> str:
    rows = [["kept", "without it"], *([guard, "; ".join(cells)] for guard, cells in derived.kept.items())]
    harmful = "; ".join(f"`{guard}` ({why})" for guard, why in derived.harmful.items()) or "none"
    dropped = ", ".join(f"`{guard}`" for guard in derived.dropped) or "none"
    return f"""Backward elimination from all guards. Never in the set, because they disturb a healthy run: {harmful}.
Dropped, in this order, because without it every cell that survived still did, and every failure that was stopped still
was: {dropped}. The set that is left refuses {derived.false_alarms} steps of the healthy runs.{_unlike_stable(derived)}

{markdown(rows)}

The order is that of fewest cells stopped alone first; another order may leave another set."""


def _unlike_stable(derived: Derivation) -> str:
    """How the preset differs from the set that was derived, or nothing."""
    stable = preset(STABLE).guards
    added = ", ".join(f"`{name}`" for name in stable if name not in derived.kept) or "nothing"
    left_out = ", ".join(f"`{name}`" for name in derived.kept if name not in stable) or "nothing"
    if added == left_out:
        return ""
    return f"\nPreset `{STABLE}` is not this set: it has {added} besides, and lacks {left_out}."


def _disturbed(found: Findings) -> Sequence[str]:
    lines = [
        f"- `{escaped(status)}`: {escaped(result.scenario)}, {escaped(result.column)}, seed {result.seed}: "
        f"{escaped(result.message)}"
        for status, results in disturbed(found.results).items()
        for result in results
    ]
    return ["## Cells that did not end by themselves", "\n".join(lines)] if lines else []
