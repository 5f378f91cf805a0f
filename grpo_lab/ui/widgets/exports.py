"""Files of a run for the user: one zip of the run and its figure, and the list of runs to open."""

import zipfile
from collections.abc import Iterable
from pathlib import Path

from grpo_lab.runs.run_folder import EVENTS

_NEWEST = 30


def zipped(run: Path, png: bytes, home: Path) -> Path:
    """Write the files of a run and its figure to <home>/<run>.zip, without a saved model; returns its path."""
    files = {f"{run.name}/{file.name}": file for file in sorted(run.iterdir()) if file.is_file()}
    home.mkdir(parents=True, exist_ok=True)
    return write_zip(home / f"{run.name}.zip", {**files, f"{run.name}/figure.png": png}.items())


def write_zip(path: Path, entries: Iterable[tuple[str, Path | bytes]]) -> Path:
    """Write (name, file or content) pairs to a zip file, complete or not at all; returns its path."""
    part = path.with_suffix(".zip.part")
    with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries:
            archive.writestr(name, content if isinstance(content, bytes) else content.read_bytes())
    return part.replace(path)


def run_folders(home: Path) -> list[Path]:
    """The runs below a folder, newest first, at most thirty."""
    found = [events.parent for events in home.glob(f"*/{EVENTS}")]
    return sorted(found, key=lambda path: (path / EVENTS).stat().st_mtime, reverse=True)[:_NEWEST]
