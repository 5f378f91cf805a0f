"""docs/guards.md: every guard, what it stops, costs and hides, and where it is on."""

from __future__ import annotations

import re
from collections.abc import Iterator

from grpo_lab.config.catalog import Scenario, load_preset, preset_names, scenario, scenario_names
from grpo_lab.config.fields import settings_of
from grpo_lab.events import Stage
from grpo_lab.training.guards import GUARDS
from grpo_lab.training.interventions import Intervention
from grpo_lab.ui.docs_pages.markdown import code, first_sentence, one_line, overrides, plain, table

_INTRO = """# Guards

A guard protects one value at one stage of the step. Each is a class in `grpo_lab/training/guards/`, off unless it is
named: `grpo-lab train --guards clamp_log_ratio,skip_nonfinite`, `--set guards.clip_gradients.max_norm=0.3`, or
`guards=("skip_nonfinite",)` in Python. Guards act in the order of the stages, and within a stage in the order in which
they are named. A guard that refuses a step leaves no trace of it; after its patience it asks for more: a rollback to
the last healthy weights, in the end a stop.

*Stopped* and *not stopped* below are the cures and decoys of the [scenarios](scenarios.md); each of them is a test.

"""
_PRESETS = """## Presets

Ready-made sets of guards, with the configuration they belong to: `grpo-lab train --preset stable`, or
`grpo-lab train --scenario cuda-001 --guards stable` for the guards alone.

"""


def page() -> str:
    """The page."""
    cases = [scenario(name) for name in scenario_names()]
    parts = [_INTRO, _overview(), "\n", _PRESETS, _presets(), "\n"]
    parts += ["\n".join(_section(name, guard, cases)) + "\n" for name, guard in GUARDS.items()]
    return "".join(parts).rstrip() + "\n"


def _overview() -> str:
    rows = [["guard", "stage", "what it does"]]
    order = list(Stage)
    for name, guard in sorted(GUARDS.items(), key=lambda item: order.index(item[1].stage)):
        rows.append([f"[`{name}`](#{name})", f"`{guard.stage}`", first_sentence(guard.__doc__)])
    return table(rows)


def _presets() -> str:
    presets = [load_preset(name) for name in preset_names()]
    parts = [f"- **`{preset.name}`**: {preset.title}. {one_line(preset.story)}\n" for preset in presets]
    rows = [["guard", *(f"`{preset.name}`" for preset in presets)]]
    used = [name for name in GUARDS if any(name in preset.config.guards for preset in presets)]
    for name in used:
        cells = [_given(preset.config.guards[name]) if name in preset.config.guards else "" for preset in presets]
        rows.append([f"[`{name}`](#{name})", *cells])
    return "".join(parts) + "\n" + table(rows)


def _given(values) -> str:
    return ", ".join(f"`{key}={plain(value)}`" for key, value in values.items()) or "on"


def _section(name: str, guard: type[Intervention], cases: list[Scenario]) -> Iterator[str]:
    yield f"## `{name}`\n"
    yield from _prose(guard)
    yield ""
    yield f"Acts at `{guard.stage}`. " + _promise(guard) + "\n"
    rows = [["setting", "default", "must be", "what"]]
    for setting in settings_of(guard).values():
        rows.append([code(setting.name), code(setting.default), str(setting.limit or ""), setting.help])
    yield table(rows) if len(rows) > 1 else ""
    yield f"- On in: {_presets_with(name)}."
    for title, kind in (("Stopped", "cures"), ("Not stopped", "decoys")):
        if found := list(_mentions(name, kind, cases)):
            yield f"- {title}: {'; '.join(found)}."
    yield ""


def docstring(guard: type[Intervention]) -> tuple[str, dict[str, str]]:
    """What a guard does, and what it `Stops`, `Costs` and `Hides`, from its docstring.

    >>> docstring(GUARDS["clip_gradients"])[1]["Costs"]
    'nothing below max_norm.'
    """
    before, *sections = re.split(r"\b(?=(?:Stops|Costs|Hides): )", one_line(guard.__doc__))
    parts = (section.strip().partition(": ") for section in sections)
    return before.strip(), {word: text for word, _, text in parts}


def _prose(guard: type[Intervention]) -> Iterator[str]:
    before, sections = docstring(guard)
    yield before + "\n"
    yield from (f"- **{word}:** {text}" for word, text in sections.items())


def _promise(guard: type[Intervention]) -> str:
    if guard.changes_healthy_runs:
        return f"A healthy run is not bit-identical with it: {guard.changes_healthy_runs}."
    return "A healthy run is bit-identical with it."


def _presets_with(name: str) -> str:
    found = [load_preset(each) for each in preset_names()]
    return ", ".join(f"`{p.name}`" for p in found if name in p.config.guards) or "no preset"


def _mentions(name: str, kind: str, cases: list[Scenario]) -> Iterator[str]:
    """Scenarios that list it, with the overrides that go together."""
    mine = re.compile(rf"guards\.{name}(?:=on|\.)")
    for case in cases:
        for texts in getattr(case, kind):
            if any(mine.match(text) for text in texts):
                yield f"[`{case.name}`](scenarios.md#{case.name}) ({overrides(texts)})"
