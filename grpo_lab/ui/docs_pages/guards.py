"""docs/guards.md: every guard with its settings, its presets and its scenarios."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from grpo_lab.analysis.markdown import assignments, code, first_sentence, one_line, overrides, render
from grpo_lab.config.algorithms import PART_OF, USED_BY, algorithm, algorithm_names, unused
from grpo_lab.config.catalog import Preset, Scenario, load_preset, preset_names, scenario, scenario_names
from grpo_lab.config.fields import settings_of
from grpo_lab.core.hooks import Stage
from grpo_lab.training.guards import GUARDS
from grpo_lab.training.interventions import Intervention


def page() -> str:
    """The page on guards."""
    cases = [scenario(name) for name in scenario_names()]
    presets = [load_preset(name) for name in preset_names()]
    guards = [_section(name, guard, presets, cases) for name, guard in GUARDS.items()]
    return render("guards", overview=_overview(), presets=presets, used=_used(presets), guards=guards)


def docstring(guard: type[Intervention]) -> tuple[str, dict[str, str]]:
    """The description of a guard, and its `Stops`, `Costs` and `Hides`, from its docstring.

    >>> docstring(GUARDS["clip_gradients"])[1]["Costs"]
    'nothing below max_norm.'
    """
    before, *sections = re.split(r"\b(?=(?:Stops|Costs|Hides): )", one_line(guard.__doc__))
    parts = (section.strip().partition(": ") for section in sections)
    return before.strip(), {word: text for word, _, text in parts}


def _overview() -> list[list[str]]:
    order = list(Stage)
    guards = sorted(GUARDS.items(), key=lambda item: order.index(item[1].stage))
    rows = [[_link(name), f"`{guard.stage}`", first_sentence(guard.__doc__)] for name, guard in guards]
    return [["guard", "stage", "what it does"], *rows]


def _used(presets: Sequence[Preset]) -> list[list[str]]:
    """A row for each guard that a preset uses, with its settings there."""
    used = {preset.name: preset.config.guards for preset in presets}
    rows = [["guard", *(f"`{name}`" for name in used)]]
    for name in GUARDS:
        if any(name in guards for guards in used.values()):
            cells = (assignments(guards[name]) or "on" if name in guards else "" for guards in used.values())
            rows.append([_link(name), *cells])
    return rows


def _section(name: str, guard: type[Intervention], presets: Sequence[Preset], cases: list[Scenario]) -> dict[str, Any]:
    what, sections = docstring(guard)
    settings = [[code(s.name), code(s.default), str(s.limit or ""), s.help] for s in settings_of(guard).values()]
    changes = f"A healthy run is not bit-identical with it: {guard.changes_healthy_runs}"
    return {
        "name": name,
        "stage": guard.stage,
        "what": what,
        "sections": sections,
        "idle": _idle(PART_OF.get(name, "")),
        "promise": changes if guard.changes_healthy_runs else "A healthy run is bit-identical with it",
        "settings": [["setting", "default", "must be", "what"], *settings],
        "presets": ", ".join(f"`{preset.name}`" for preset in presets if name in preset.config.guards),
        "mentions": {
            "Stopped": list(_mentions(name, "cures", cases)),
            "Not stopped": list(_mentions(name, "decoys", cases)),
        },
    }


def _idle(part: str) -> str:
    """When a guard of this part of the loss has no effect, in words."""
    if part in ("beta", "kl"):
        return "No effect without a KL penalty (`loss.beta=0`)" + ", or with one in the reward" * (part == "kl")
    without = [f"`{name}`" for name, used in USED_BY.items() if part not in used]
    named = [f"`{name}`" for name in algorithm_names() if part in unused({"beta": 1, **algorithm(name).loss})]
    algorithms = f": algorithms {', '.join(named)}" if named else ""
    return f"No effect with `loss.surrogate` = {', '.join(without)}{algorithms}" if part and without else ""


def _mentions(name: str, kind: str, cases: list[Scenario]) -> Iterator[str]:
    """Scenarios with the guard among their cures or decoys, with the overrides that go together."""
    mine = re.compile(rf"guards\.{name}(?:=on|\.)")
    for case in cases:
        for texts in getattr(case, kind):
            if any(mine.match(text) for text in texts):
                yield f"[`{case.name}`](scenarios.md#{case.name}) ({overrides(texts)})"


def _link(name: str) -> str:
    return f"[`{name}`](#{name})"
