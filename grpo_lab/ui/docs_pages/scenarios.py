"""docs/scenarios.md: every scenario, its cause, what it shows, what stops it and what does not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from grpo_lab.config.catalog import Expectation, Scenario, load_preset, scenario, scenario_names
from grpo_lab.config.schema import SECTIONS, Config
from grpo_lab.metrics import LINKS
from grpo_lab.training.faults import FAULTS
from grpo_lab.ui.docs_pages.markdown import code, first_sentence, one_line, overrides, switch, table

_INTRO = """# Scenarios

A scenario is a cause of failure: settings and faults laid over a preset, with what it shows, what cures it and what is
recommended against it and does not (the decoys). Each is one file in `data/scenarios/`; yours need no code:
`grpo-lab train --scenario mine.toml`. The tests hold every scenario to its file: alone it shows its symptom, with each
cure it does not, with each decoy it still does.

"""
_FAULTS = """## Faults

What no setting can cause is put into the step by a fault, in `grpo_lab/training/faults/`, switched on like a guard:
`--set faults.nan_gradient.at_step=3`.

"""


def page() -> str:
    """The page."""
    cases = [scenario(name) for name in scenario_names()]
    rows = [["scenario", "what it shows", "source"]]
    rows += [[f"[`{case.name}`](#{case.name})", case.title, case.source] for case in cases]
    parts = [_INTRO, table(rows), "\n", *("\n".join(_section(case)) + "\n" for case in cases), _FAULTS, _faults(cases)]
    return "".join(parts)


def _section(case: Scenario) -> Iterator[str]:
    yield f"## `{case.name}`\n"
    yield f"**{case.title}.** {one_line(case.story)}\n"
    yield f"Source: {case.source}. `grpo-lab train --scenario {case.name}`\n"
    yield f"Cause, on preset `{case.preset}`:\n"
    yield _cause(case)
    yield f"- Shows: {_shown(case.expect)}."
    yield f"- Stopped by {_listed(case.cures)}."
    if case.decoys:
        yield f"- Not stopped by {_listed(case.decoys)}."
    yield ""


def _cause(case: Scenario) -> str:
    """A row for each setting that is not the preset's, and for each guard and fault."""
    before, after = load_preset(case.preset).config, case.config()
    rows = [["setting", f"`{case.preset}`", "here"]]
    for section in SECTIONS:
        old, new = before.to_dict()[section], after.to_dict()[section]
        rows += [
            [f"`{section}.{name}`", code(old[name]), code(value)]
            for name, value in new.items()
            if value != old[name] and (section, name) != ("run", "name")
        ]
    for kind in ("guards", "faults"):
        rows += [[kind, old, new] for old, new in _switched(before, after, kind)]
    return table(rows)


def _switched(before: Config, after: Config, kind: str) -> Iterator[tuple[str, str]]:
    old, new = getattr(before, kind), getattr(after, kind)
    for name in {**old, **new}:
        if old.get(name) != new.get(name):
            yield _one(name, old), _one(name, new)


def _one(name: str, switches: Mapping[str, Mapping[str, Any]]) -> str:
    return switch(name, switches[name]) if name in switches else "off"


def _shown(expect: Expectation) -> str:
    said = [f"it dies in `{expect.crash}`" if expect.crash else "it goes on to the end"]
    if expect.first_break:
        said.append(f"the first link not finite is *{LINKS[expect.first_break].label}*")
    said += [f"`{name}` reaches {value:g}" for name, value in expect.metrics.items()]
    said += [f"`{name}` stays below {value:g}" for name, value in expect.below.items()]
    return "; ".join(said)


def _listed(rows: Sequence[Sequence[str]]) -> str:
    return "; ".join(overrides(texts) for texts in rows)


def _faults(cases: Sequence[Scenario]) -> str:
    used = {case.name: case.config().faults for case in cases}
    rows = [["fault", "stage", "what it does", "in"]]
    for name, fault in FAULTS.items():
        links = ", ".join(f"[`{case}`](#{case})" for case, faults in used.items() if name in faults)
        rows.append([f"`{name}`", f"`{fault.stage}`", first_sentence(fault.__doc__), links])
    return table(rows)
