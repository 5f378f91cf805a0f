"""Recorded runs that ship with the package: events without weights, to replay where there is no time to train."""

from __future__ import annotations

from pathlib import Path

from grpo_lab.paths import data_directory


def recording_names() -> list[str]:
    """The recordings there are.

    >>> "cuda-001-smollm2" in recording_names()
    True
    """
    return sorted(path.parent.name for path in _home().glob("*/events.jsonl"))


def find(run: str | Path) -> Path:
    """The folder of a run; where there is none, that of the recording with this name.

    >>> find("cuda-001-smollm2").parent.name
    'recordings'
    """
    folder = Path(run)
    return _home() / folder if not folder.exists() and str(run) in recording_names() else folder


def place_for_figures(folder: Path) -> Path:
    """The run's own folder, but for a recording the current one: what ships is not written to."""
    return Path() if folder.resolve().parent == _home().resolve() else folder


def _home() -> Path:
    return data_directory() / "recordings"
