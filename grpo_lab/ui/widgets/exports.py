"""Files of runs for the user: zip files of runs and their figures, and the list of runs to open."""

import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from grpo_lab.analysis.run_state import fold
from grpo_lab.errors import RunError
from grpo_lab.messages import text
from grpo_lab.runs.run_folder import EVENTS, LOCK
from grpo_lab.runs.session import Session

_NEWEST = 30
FIGURE = "figure.png"


class Exported(type(Path())):  # pyright: ignore[reportGeneralTypeIssues, reportUntypedBaseClass]
    """The path of a zip file, which a notebook shows as a sentence."""

    def _repr_pretty_(self, printer: Any, _: bool) -> None:
        printer.text(text("panel.exported", path=self))


def zipped(run: Path, png: bytes, home: Path) -> Path:
    """Write the files of a run and its figure to <home>/<run>.zip, without models and checkpoints; returns its path."""
    files = {f"{run.name}/{file.name}": file for file in sorted(run.iterdir()) if file.is_file() and file.name != LOCK}
    home.mkdir(parents=True, exist_ok=True)
    return write_zip(home / f"{run.name}.zip", {**files, f"{run.name}/{FIGURE}": png}.items())


def write_zip(path: Path, entries: Iterable[tuple[str, Path | bytes]]) -> Path:
    """Write (name, file or content) pairs to a zip file, complete or not at all; returns its path."""
    part = path.with_suffix(".zip.part")
    with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries:
            archive.writestr(name, content if isinstance(content, bytes) else content.read_bytes())
    return Exported(part.replace(path))


def figures(home: Path) -> Iterator[tuple[str, bytes]]:
    """(name, PNG) of the figure of every run below a folder. A damaged run has none; its files tell why."""
    from grpo_lab.ui.widgets.live import LiveFigure  # imports matplotlib, which a lab without figures does not need

    for events in sorted(home.glob(f"*/{EVENTS}")):
        try:
            run = Session.open(events.parent)
        except RunError:
            continue
        yield (events.parent / FIGURE).as_posix(), LiveFigure().png(fold(run.events))


def run_folders(home: Path) -> list[Path]:
    """The runs below a folder, newest first, at most thirty."""
    found = [events.parent for events in home.glob(f"*/{EVENTS}")]
    return sorted(found, key=lambda path: (path / EVENTS).stat().st_mtime, reverse=True)[:_NEWEST]
