"""Pages of docs/ that are made from code and data, and therefore agree with them; their text is in data/templates."""

import math
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from grpo_lab.analysis import markdown
from grpo_lab.config.algorithms import PART_OF, USED_BY, algorithm, algorithm_names, unused
from grpo_lab.config.catalog import Scenario, load_preset, model_settings, preset_names, scenario, scenario_names
from grpo_lab.config.fields import settings_of
from grpo_lab.config.schema import SECTIONS
from grpo_lab.core.hooks import Stage
from grpo_lab.course.registry import course_labs, lab_page
from grpo_lab.metrics import LINKS, METRICS, OTHER_NAMES, Metric
from grpo_lab.paths import data_tables
from grpo_lab.training.faults import FAULTS
from grpo_lab.training.guards import GUARDS
from grpo_lab.ui.described import classes, docstring, settings_in

COMMAND = "grpo-lab docs"
NOTICE = f"<!-- Made by `{COMMAND}` from code and data: change those, and run it again. -->\n\n"
_NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


def render() -> dict[str, str]:
    """The text of every page by its file name; the same code and data give the same text."""
    return {name: NOTICE + page() for name, page in PAGES.items()}


def stale(folder: Path) -> list[str]:
    """Names of the pages that are missing from a folder or differ there."""
    return list(_changed(folder))


def write(folder: Path) -> list[Path]:
    """Write all pages into a folder and return those that changed."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in (changed := _changed(folder)).items():
        (folder / name).write_text(text, encoding="utf-8", newline="\n")
    return [folder / name for name in changed]


def _changed(folder: Path) -> dict[str, str]:
    there = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.md")}
    return {name: text for name, text in render().items() if there.get(name) != text}


def _index() -> str:
    return markdown.render("index", metrics=METRICS, links=LINKS, guards=GUARDS, scenarios=scenario_names())


def _algorithms() -> str:
    found = sorted(map(algorithm, algorithm_names()), key=lambda each: each.name != "grpo")
    return markdown.render("algorithms", algorithms=found)


def _glossary() -> str:
    return markdown.render("glossary", terms=data_tables("glossary").values())


def _grading() -> str:
    by_lab = {page.name: page.exercises.values() for page in map(lab_page, course_labs())}
    every = [exercise for exercises in by_lab.values() for exercise in exercises]
    labs = _NUMBERS[len(by_lab)] if len(by_lab) < len(_NUMBERS) else len(by_lab)
    return markdown.render("grading", labs=labs, by_lab=by_lab, every=every)


def _metrics() -> str:
    return markdown.render("metrics", metrics=METRICS, links=LINKS, elsewhere=OTHER_NAMES, healthy=_healthy)


def _healthy(metric: Metric) -> str:
    """The healthy range in words."""
    low, high = metric.low, metric.high
    if math.isinf(low) and math.isinf(high):
        return "any"
    if low == high:
        return f"{low:g}"
    if math.isinf(high):
        return f"{low:g} and more"
    return f"{high:g} and less" if math.isinf(low) else f"{low:g} to {high:g}"


def _settings() -> str:
    sections = [
        (name, markdown.first_sentence(cls.__doc__), list(settings_in(name, cls))) for name, cls in classes().items()
    ]
    return markdown.render("settings", sections=sections)


def _guards() -> str:
    presets = [load_preset(name) for name in preset_names()]
    cases = [scenario(name) for name in scenario_names()]
    order = list(Stage)
    return markdown.render(
        "guards",
        guards=GUARDS,
        by_stage=sorted(GUARDS.items(), key=lambda item: order.index(item[1].stage)),
        presets=presets,
        used={name for preset in presets for name in preset.config.guards},
        docstring=docstring,
        settings=settings_of,
        idle=_idle,
        mentions=partial(_mentions, cases),
    )


def _idle(name: str) -> str:
    """When a guard has no effect, because of the part of the loss that it guards, in words."""
    part = PART_OF.get(name, "")
    if part in ("beta", "kl"):
        return "No effect without a KL penalty (`loss.beta=0`)" + ", or with one in the reward" * (part == "kl")
    without = [f"`{surrogate}`" for surrogate, used in USED_BY.items() if part not in used]
    named = [f"`{each}`" for each in algorithm_names() if part in unused({"beta": 1, **algorithm(each).loss})]
    algorithms = f": algorithms {', '.join(named)}" if named else ""
    return f"No effect with `loss.surrogate` = {', '.join(without)}{algorithms}" if part and without else ""


def _mentions(cases: Sequence[Scenario], name: str, kind: str) -> list[str]:
    """Scenarios with the guard among their cures or decoys, with the overrides that go together."""
    mine = re.compile(rf"guards\.{name}(?:=on|\.)")
    return [
        f"[`{case.name}`](scenarios.md#{case.name}) ({markdown.overrides(texts)})"
        for case in cases
        for texts in getattr(case, kind)
        if any(map(mine.match, texts))
    ]


def _scenarios() -> str:
    cases = [scenario(name) for name in scenario_names()]
    return markdown.render(
        "scenarios",
        cases=cases,
        configs={case.name: case.config() for case in cases},
        preset=lambda case: load_preset(case.preset),
        sections=SECTIONS,
        links=LINKS,
        models=model_settings(),
        faults=FAULTS,
    )


PAGES: dict[str, Callable[[], str]] = {
    "README.md": _index,
    "algorithms.md": _algorithms,
    "glossary.md": _glossary,
    "grading.md": _grading,
    "guards.md": _guards,
    "scenarios.md": _scenarios,
    "metrics.md": _metrics,
    "settings.md": _settings,
}
