"""docs/scenarios.md: every scenario, its cause, its symptom, its cures and its decoys."""

from collections.abc import Sequence

from grpo_lab.analysis.markdown import code, first_sentence, render, switch
from grpo_lab.config.catalog import Expectation, Scenario, load_preset, model_settings, scenario, scenario_names
from grpo_lab.config.schema import SECTIONS
from grpo_lab.metrics import LINKS
from grpo_lab.training.faults import FAULTS


def page() -> str:
    """The page on scenarios."""
    cases = [scenario(name) for name in scenario_names()]
    overview = [[f"[`{case.name}`](#{case.name})", case.title, case.source] for case in cases]
    header = ["scenario", "what it shows", "source"]
    words = {"cause": _cause, "shown": _shown, "faults": _faults(cases), "models": _models()}
    return render("scenarios", cases=cases, overview=[header, *overview], **words)


def _models() -> list[list[str]]:
    """A row for each setting of each model."""
    rows = [["model", "setting", "value"]]
    for model, found in model_settings().items():
        for section, values in found["settings"].items():
            rows += [[f"`{model}`", f"`{section}.{name}`", code(value)] for name, value in values.items()]
    return rows


def _cause(case: Scenario) -> list[list[str]]:
    """A row for each setting that differs from the preset's, and for each guard and fault."""
    before, after = load_preset(case.preset).config.to_dict(), case.config().to_dict()
    rows = [["setting", f"`{case.preset}`", "here"]]
    for section in SECTIONS:
        for name, value in after[section].items():
            old = before[section][name]
            if value != old and (section, name) != ("run", "name"):
                rows.append([f"`{section}.{name}`", code(old), code(value)])
    for kind in ("guards", "faults"):
        old, new = before[kind], after[kind]
        for name in {**old, **new}:
            if old.get(name) != new.get(name):
                rows.append([kind, *(switch(name, each[name]) if name in each else "off" for each in (old, new))])
    return rows


def _shown(expect: Expectation) -> str:
    said = [f"the run crashes in `{expect.crash}`" if expect.crash else "the run goes on to the end"]
    if expect.first_break:
        said.append(f"the first link not finite is *{LINKS[expect.first_break].label}*")
    said += [f"`{name}` reaches {value:g}" for name, value in expect.metrics.items()]
    said += [f"`{name}` stays below {value:g}" for name, value in expect.below.items()]
    return "; ".join(said)


def _faults(cases: Sequence[Scenario]) -> list[list[str]]:
    used = {case.name: case.config().faults for case in cases}
    rows = [["fault", "stage", "what it does", "in"]]
    for name, fault in FAULTS.items():
        links = ", ".join(f"[`{case}`](#{case})" for case, faults in used.items() if name in faults)
        rows.append([f"`{name}`", f"`{fault.stage}`", first_sentence(fault.__doc__), links])
    return rows
