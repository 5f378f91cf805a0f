"""`python -m website.docs`: the pages of docs/ that are made from code and data, and therefore agree with them.

Their text is in data/templates. `--check` lists pages that are out of date, and `--out` names another folder.
"""

import math
import re
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

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

COMMAND = "python -m website.docs"
NOTICE = f"<!-- Made by `{COMMAND}` from code and data: change those, and run it again. -->\n\n"
_NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


def render() -> dict[str, str]:
    """The text of every page by its file name; the same code and data give the same text."""
    pages = {name: NOTICE + markdown.render(name, **values) for name, values in _values().items()}
    return {"README.md": pages.pop("index"), **{f"{name}.md": page for name, page in pages.items()}}


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


def _values() -> dict[str, dict[str, Any]]:
    """What the template of each page reads."""
    cases = [scenario(name) for name in scenario_names()]
    by_lab = {page.name: page.exercises.values() for page in map(lab_page, course_labs())}
    presets, order = [load_preset(name) for name in preset_names()], list(Stage)
    return {
        "index": {"metrics": METRICS, "links": LINKS, "guards": GUARDS, "scenarios": scenario_names()},
        "algorithms": {
            "algorithms": sorted(map(algorithm, algorithm_names()), key=lambda each: each.name != "grpo"),
        },
        "glossary": {"terms": data_tables("glossary").values()},
        "grading": {
            "labs": _NUMBERS[len(by_lab)] if len(by_lab) < len(_NUMBERS) else len(by_lab),
            "by_lab": by_lab,
            "every": [exercise for exercises in by_lab.values() for exercise in exercises],
        },
        "guards": {
            "guards": GUARDS,
            "by_stage": sorted(GUARDS.items(), key=lambda item: order.index(item[1].stage)),
            "presets": presets,
            "used": {name for preset in presets for name in preset.config.guards},
            "docstring": docstring,
            "settings": settings_of,
            "idle": _idle,
            "mentions": partial(_mentions, cases),
        },
        "scenarios": {
            "cases": cases,
            "configs": {case.name: case.config() for case in cases},
            "preset": lambda case: load_preset(case.preset),
            "sections": SECTIONS,
            "links": LINKS,
            "models": model_settings(),
            "faults": FAULTS,
        },
        "metrics": {"metrics": METRICS, "links": LINKS, "elsewhere": OTHER_NAMES, "healthy": _healthy},
        "settings": {
            "sections": [
                (name, markdown.first_sentence(cls.__doc__), list(settings_in(name, cls)))
                for name, cls in classes().items()
            ]
        },
    }


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


def main(
    out: Annotated[Path, typer.Option(help="Folder of the pages.")] = Path("docs"),
    check: Annotated[bool, typer.Option("--check", help="List pages that are out of date, and write none.")] = False,
) -> None:
    """Write the pages of docs/ that are made from code and data."""
    if not check:
        for path in write(out):
            print(f"{path} written")
    elif old := stale(out):
        sys.exit(f"{out}: out of date: {', '.join(old)}; run {COMMAND} --out {out}")


if __name__ == "__main__":
    typer.run(main)
