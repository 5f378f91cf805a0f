"""Turns an executed notebook into a page: the learner's cells, outputs of the right answers, pictures for panels."""

import base64
import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grpo_lab.messages import languages, text_in

WIDGET = "application/vnd.jupyter.widget-view+json"
PANELS = "panels"
"""The folder of the pictures, below Sphinx's static files."""
_IMAGE = re.compile(
    r'<img alt="(?P<alt>[^"]*)" src="data:image/png;base64,(?P<light>[^"]+)"'
    r' style="[^"]*url\(data:image/png;base64,(?P<dark>[^)]+)\)">'
)
_STYLE = re.compile(r"<style>.*?</style>", re.DOTALL)


def page(learner: Any, executed: Any | None, static: Path, depth: int, others: Mapping[str, str] | None = None) -> Any:
    """A notebook for the site: the learner's text with the outputs that the right answers had.

    `static` gets the panels' pictures; `depth` is the number of folders above the page; `others` are the same page in
    other languages, by the name of the language. Without `executed` it has no outputs.
    """
    if links := " · ".join(f"[{name}]({link})" for name, link in (others or {}).items()):
        title, _, rest = learner.cells[0].source.partition("\n")
        learner.cells[0].source = f"{title}\n\n{links}\n{rest}"
    outputs = {cell.id: cell.get("outputs", []) for cell in executed.cells} if executed else {}
    for cell in learner.cells:
        if cell.cell_type != "code":
            continue
        shown = [_shown(output, static, depth) for output in outputs.get(cell.id, []) if not _is_empty(output)]
        cell.outputs, cell.execution_count = shown, None
        if any("image/png" in output.get("data", {}) for output in shown):
            cell.metadata["mystnb"] = {"image": {"alt": _named(cell.source)}}
    return learner


def _named(source: str) -> str:
    """The title that a cell gives its figure: the last text of several words in its code."""
    titles = [text for text in re.findall(r'"([^"\n]*)"', source) if " " in text]
    return titles[-1] if titles else ""


def _is_empty(output: Any) -> bool:
    """Whether an output needs a kernel, is a wiped line of progress, or stands where a panel was before."""
    data = output.get("data", {})
    return (
        (WIDGET in data and "text/html" not in data)
        or dict(data) == {"text/plain": ""}
        or data.get("text/html") in [f"<p>{text_in(language, 'panel.moved')}</p>" for language in languages()]
    )


def _shown(output: Any, static: Path, depth: int) -> Any:
    """The output, with pictures in files of their own: one for light pages, and one for dark ones."""
    if html := output.get("data", {}).get("text/html"):
        text = _STYLE.sub("", html)
        output.data["text/html"] = _IMAGE.sub(lambda found: _pictures(found, static, depth), text)
    return output


def _pictures(found: re.Match[str], static: Path, depth: int) -> str:
    images = []
    for theme in ("light", "dark"):
        png = base64.b64decode(found[theme])
        file = Path(PANELS) / f"{hashlib.sha256(png).hexdigest()[:16]}.png"
        (static / file).parent.mkdir(parents=True, exist_ok=True)
        (static / file).write_bytes(png)
        source = f"{'../' * depth}_static/{file.as_posix()}"
        images.append(f'<img class="only-{theme}" alt="{found["alt"]}" src="{source}">')
    return "".join(images)
