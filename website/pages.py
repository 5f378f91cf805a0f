"""Turns an executed notebook into a page: the learner's cells, outputs of the right answers, pictures for panels."""

import base64
import hashlib
import re
from pathlib import Path
from typing import Any

WIDGET = "application/vnd.jupyter.widget-view+json"
PANELS = "panels"
"""The folder of the pictures, below Sphinx's static files."""
_IMAGE = re.compile(
    r'<img alt="(?P<alt>[^"]*)" src="data:image/png;base64,(?P<light>[^"]+)"'
    r' style="[^"]*url\(data:image/png;base64,(?P<dark>[^)]+)\)">'
)
_STYLE = re.compile(r"<style>.*?</style>", re.DOTALL)


def page(learner: Any, executed: Any | None, static: Path, depth: int) -> Any:
    """A notebook for the site: the learner's text with the outputs that the right answers had.

    `static` gets the panels' pictures; `depth` is the number of folders above the page. Without `executed` it has no
    outputs.
    """
    outputs = {cell.id: cell.get("outputs", []) for cell in executed.cells} if executed else {}
    for cell in learner.cells:
        if cell.cell_type != "code":
            continue
        shown = [_shown(output, static, depth) for output in outputs.get(cell.id, []) if not _is_empty(output)]
        cell.outputs, cell.execution_count = shown, None
    return learner


def _is_empty(output: Any) -> bool:
    """Whether an output shows something only with a kernel, or is a line of progress that was wiped."""
    data = output.get("data", {})
    return (WIDGET in data and "text/html" not in data) or dict(data) == {"text/plain": ""}


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
