"""HTML of panels and notebooks: each function fills a macro of templates.html, which escapes every value."""

import base64
import functools
import math
import re
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from grpo_lab.analysis.run_state import CURVES, Screen, break_words, by_design, shown, status_words, tone
from grpo_lab.messages import spoken, text, visible_bytes
from grpo_lab.metrics import LINKS, METRICS, of_run

_ROWS = 50
"""Rows of the table: the last steps of a longer run."""


def fill(macro: str, *values: Any) -> str:
    """The HTML of a macro of templates.html with these values.

    >>> fill("table", [["a"], ["<b>"]])
    '<table><thead><tr><th scope="col">a</th></tr></thead><tbody><tr><td>&lt;b&gt;</td></tr></tbody></table>'
    """
    return str(getattr(_templates(), macro)(*values))


@functools.cache
def _templates() -> Any:
    loader = FileSystemLoader(Path(__file__).parent)
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.globals["text"] = text
    environment.filters["marked"] = lambda words: Markup(marked(words))
    return environment.get_template("templates.html").module


def marked(words: str) -> str:
    """Text as HTML, with what stands between backticks as code.

    >>> marked("`a` < b")
    '<code>a</code> &lt; b'
    """
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", escape(words))


def status(screen: Screen, own: str = "", note: str = "") -> str:
    """The status line: a badge (`own` replaces the run's status), step, first break or message, and a note."""
    word, where, found, why = own or screen.status, "", "", ""
    if screen.step >= 0:
        key = "panel.at_step_of" if screen.num_steps else "panel.at_step"
        where = text(key, step=screen.step, count=screen.step + 1, total=screen.num_steps)
    more = [status_words(screen.status)] if own == "paused" else []
    first = screen.first_break
    if first and first.link in LINKS:
        found, why = break_words("panel", first), first.in_words()[1]
    elif screen.message:
        more.append(spoken(screen.message))
    return fill("status", tone(word), status_words(word), where, more, found, why, note)


def banner(screen: Screen) -> str:
    """The error of a crash and its explanation; empty without a crash."""
    if not screen.status.startswith(("crashed", "failed")):
        return ""
    return fill("banner", status_words(screen.status), screen.message, spoken(screen.explanation))


def samples(screen: Screen) -> str:
    """The completions of the last step that has any, with their rewards."""
    rows = [[_short(prompt, 90), _short(answer, 160), shown(reward)] for prompt, answer, reward in screen.samples[:8]]
    return fill("titled", "samples", [[text(f"panel.{key}") for key in ("prompt", "completion", "reward")], *rows])


def answers(screen: Screen, kept: Mapping[str, Screen]) -> str:
    """Text of the first step and of the step shown, and of kept runs, a line each; empty where prompts are short.

    The prompt is one that was answered before, if any of the step was; kept runs show their answer to the same one.
    """
    known = [prompt for prompt, *_ in screen.samples if prompt in screen.answers]
    if not known:
        return ""
    prompt = next((each for each in known if len(screen.answers[each]) > 1), known[0])
    first = prompt if len(screen.answers[prompt]) > 1 else next(iter(screen.answers))
    rows = [("", first, screen.answers[first][0])]
    for name, run in {"": screen, **kept}.items():
        asked = prompt if prompt in run.answers else next(reversed(run.answers), "")
        rows += [(name, asked, run.answers[asked][-1])] if asked else []
    lines = []
    for name, asked, (step, said, reward) in dict.fromkeys(rows):
        whole = visible_bytes(said).replace("\n", "↵")
        lines.append((text("panel.at_step", step=step), name, _short(asked, 60), whole, shown(reward)))
    return fill("answers", lines)


def guards(screen: Screen) -> str:
    """Guards and faults that acted: in how many steps, the last step, and its reason with number and limit.

    Guards that act in healthy runs too follow in a line of their own.
    """
    tallies = [*screen.faults.items(), *screen.guards.items()]
    rows = [[name, it.steps, it.last_step, spoken(it.reason)] for name, it in tallies if not by_design(name)]
    header = [text(f"panel.{each}") for each in ("guard", "steps", "last_step", "reason")]
    usual = ", ".join(f"{name} ×{tally.steps}" for name, tally in tallies if by_design(name))
    return fill("titled", "acted", [header, *rows], text("panel.acted_by_design", names=usual) if usual else "")


def numbers(screen: Screen) -> str:
    """The curves as a table, one row a step, with a column for each objective behind that of the run."""
    drawn = sorted((CURVES.index(of_run(name)), name) for name in screen.series if of_run(name) in CURVES)
    columns = {name: dict(zip(*screen.series[name], strict=True)) for _, name in drawn}
    steps = sorted({step for column in columns.values() for step in column})[-_ROWS:]
    header = [spoken("step")]
    for name in columns:
        said = spoken(METRICS[of_run(name)].label)
        header.append(said if name == of_run(name) else f"{said}, {name.rpartition('/')[2]}")
    rows = [[step, *(shown(each.get(step, math.nan)) for each in columns.values())] for step in steps]
    return fill("table", [header, *rows])


def figure(pngs: Iterable[bytes], words: str, macro: str = "figure") -> str:
    """An ordinary figure with alternative text, visible where widgets are not; one PNG for light and one for dark."""
    return fill(macro, words, *(f"data:image/png;base64,{base64.b64encode(png).decode()}" for png in pngs))


def _short(words: str, length: int) -> str:
    """The text on one line; of a long text its end."""
    line = " ".join(words.split())
    return line if len(line) <= length else "…" + line[1 - length :]
