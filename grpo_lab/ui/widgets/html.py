"""The texts beside a panel's figure as HTML: status, banner, samples, guards, tables."""

import base64
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from grpo_lab.analysis.run_state import CURVES, Screen, shown
from grpo_lab.analysis.screen_words import describe, status_words, tone
from grpo_lab.analysis.tally import by_design
from grpo_lab.messages import label, spoken, text, translated
from grpo_lab.metrics import LINKS, METRICS, of_run

_PICTURE_STYLE = """<style>.jp-OutputArea-child:has(+ .jp-OutputArea-child .grpo-lab-picture)
.jp-OutputArea-output.jupyter-widgets:not(:has(*)),
.jp-OutputArea:has(.grpo-lab-panel, .grpo-lab-questions) .jp-OutputArea-child:has(.grpo-lab-picture) { display: none }
[data-jp-theme-light=false] .grpo-lab-picture img { content: var(--dark) }</style>"""
"""HTML below a widget is for readers without a kernel: it is hidden beside a living widget, and above it JupyterLab
need not say that it finds none. JupyterLab's dark theme shows the second picture of a panel; pages that drop styles, as
GitHub does, show the first."""
ROWS = 50
"""Rows of the table: the last steps of a longer run."""


def status(screen: Screen, own: str = "", note: str = "") -> str:
    """The status line: a badge (`own` replaces the run's status), step, first break or message, and a note."""
    word = own or screen.status
    parts = [f'<span class="grpo-lab-badge grpo-lab-{tone(word)}">{escape(status_words(word))}</span>']
    if screen.step >= 0:
        key = "panel.at_step_of" if screen.num_steps else "panel.at_step"
        where = text(key, step=screen.step, count=screen.step + 1, total=screen.num_steps)
        parts.append(f"<b>{escape(where)}</b>")
    if own == "paused":
        parts.append(escape(status_words(screen.status)))
    if found := first_break(screen):
        parts.append(found)
    elif screen.message:
        parts.append(escape(spoken(screen.message)))
    lines = [" ".join(parts)]
    if note:
        lines.append(f'<span class="grpo-lab-note">{escape(note)}</span>')
    return f'<div role="status" class="grpo-lab-lines">{"<br>".join(lines)}</div>'


def first_break(screen: Screen) -> str:
    """A sentence about the first break of the chain, with its explanation as a tooltip; empty without one."""
    found = screen.first_break
    if found is None or found.link not in LINKS:
        return ""
    caught = text("panel.caught", guard=found.caught_by) if found.caught_by else text("panel.not_caught")
    operator, why = found.in_words()
    where = {"link": label(LINKS[found.link].label), "step": found.step, "operator": operator}
    return f'<span title="{escape(why)}">{escape(text("panel.first_break", **where, caught=caught))}</span>'


def banner(screen: Screen) -> str:
    """The error of a crash and its explanation; empty without a crash."""
    if not screen.status.startswith(("crashed", "failed")):
        return ""
    why = translated(f"crash.{screen.crash_kind}", screen.explanation)
    explanation = f"<p>{marked(why)}</p>" if why else ""
    title = f"<b>{escape(status_words(screen.status))}</b>"
    calm = f"<p>{escape(text('panel.kernel_lives'))}</p>"
    return f'<div role="alert">{title}<pre>{escape(screen.message)}</pre>{explanation}{calm}</div>'


def samples(screen: Screen) -> str:
    """The completions of the last step that has any, with their rewards."""
    rows = [[_short(prompt, 90), _short(answer, 160), shown(reward)] for prompt, answer, reward in screen.samples[:8]]
    header = [text(f"panel.{key}") for key in ("prompt", "completion", "reward")]
    return _titled("samples", header, rows)


def guards(screen: Screen) -> str:
    """Guards and faults that acted: in how many steps, the last step, and its reason with number and limit.

    Guards that act in healthy runs too follow in a line of their own.
    """
    tallies = [*screen.faults.items(), *screen.guards.items()]
    rows = [[name, str(it.steps), str(it.last_step), spoken(it.reason)] for name, it in tallies if not by_design(name)]
    header = [text(f"panel.{each}") for each in ("guard", "steps", "last_step", "reason")]
    usual = ", ".join(f"{name} ×{tally.steps}" for name, tally in tallies if by_design(name))
    note = f'<p class="grpo-lab-note">{escape(text("panel.acted_by_design", names=usual))}</p>' if usual else ""
    return _titled("acted", header, rows) + note


def numbers(screen: Screen) -> str:
    """The curves as a table, one row a step, with a column for each objective behind that of the run."""
    shown_here = sorted((CURVES.index(of_run(name)), name) for name in screen.series if of_run(name) in CURVES)
    columns = {name: dict(zip(*screen.series[name], strict=True)) for _, name in shown_here}
    steps = sorted({step for column in columns.values() for step in column})[-ROWS:]
    header = [text("chart.step"), *map(_heading, columns)]
    rows = [[str(step), *(shown(column.get(step, math.nan)) for column in columns.values())] for step in steps]
    return table([header, *rows])


def _heading(name: str) -> str:
    """The label of a metric, and the objective that it belongs to."""
    whole = of_run(name)
    said = label(METRICS[whole].label)
    return said if name == whole else f"{said}, {name.rpartition('/')[2]}"


def prose(name: str, title: str, sections: Mapping[str, str]) -> str:
    """A description: name, title, and sections such as a guard's `Stops`, `Costs` and `Hides`."""
    words = "".join(f"<dt>{escape(text(f'guard.{key}'))}</dt><dd>{marked(it)}</dd>" for key, it in sections.items())
    title = f"<p>{marked(title)}</p>" if title else ""
    return (f"<b>{escape(name)}</b>" if name else "") + title + f"<dl>{words}</dl>"


def marked(words: str) -> str:
    """Text as HTML, with what stands between backticks as code.

    >>> marked("`a` < b")
    '<code>a</code> &lt; b'
    """
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", escape(words))


def figure(pngs: Iterable[bytes], screen: Screen) -> str:
    """An ordinary figure with alternative text, visible where widgets are not; one PNG for light and one for dark."""
    words = escape(describe(screen))
    light, dark = (f"data:image/png;base64,{base64.b64encode(png).decode()}" for png in pngs)
    image = f'<img alt="{words}" src="{light}" style="max-width:100%; --dark:url({dark})">'
    return instead_of_widget(f"{image}<figcaption>{words}</figcaption>", "figure")


def instead_of_widget(content: str, tag: str = "div") -> str:
    """HTML that stands below a widget, for readers without a kernel."""
    return f'<{tag} class="grpo-lab-picture">{content}</{tag}>{_PICTURE_STYLE}'


def table(rows: Iterable[Sequence[str]]) -> str:
    """A table whose first row is its header."""
    header, *body = rows
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in header)
    lines = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in body)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>"


def _short(words: str, length: int) -> str:
    """The text on one line; of a long text its end."""
    line = " ".join(words.split())
    return line if len(line) <= length else "…" + line[1 - length :]


def _titled(key: str, header: list[str], rows: list[list[str]]) -> str:
    """A table below its title, or a sentence where it would be empty."""
    body = table([header, *rows]) if rows else f"<p>{escape(text(f'panel.no_{key}'))}</p>"
    return f"<h4>{escape(text(f'panel.{key}'))}</h4>{body}"
