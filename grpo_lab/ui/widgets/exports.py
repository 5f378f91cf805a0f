"""What leaves a panel: a run and its picture in one file; and which runs there are to open."""

from __future__ import annotations

import zipfile
from pathlib import Path

from grpo_lab.runs.run_folder import EVENTS

_NEWEST = 30


def zipped(run: Path, png: bytes, home: Path) -> Path:
    """The files of a run and its figure as <home>/<run>.zip; a model that was saved stays where it is."""
    home.mkdir(parents=True, exist_ok=True)
    path = home / f"{run.name}.zip"
    part = path.with_suffix(".zip.part")  # a half-written file must not look like a whole one
    with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(run.iterdir()):
            if file.is_file():
                archive.write(file, f"{run.name}/{file.name}")
        archive.writestr(f"{run.name}/figure.png", png)
    part.replace(path)
    return path


def run_folders(home: Path) -> list[Path]:
    """The runs below a folder, newest first, at most thirty."""
    found = [events.parent for events in home.glob(f"*/{EVENTS}")]
    return sorted(found, key=lambda path: (path / EVENTS).stat().st_mtime, reverse=True)[:_NEWEST]
