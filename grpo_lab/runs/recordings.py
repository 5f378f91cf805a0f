"""Recorded runs, of the package or one's own: events without weights, to replay instead of training."""

from pathlib import Path

from grpo_lab.paths import folders, named_files


def recording_names() -> list[str]:
    """The names of all recordings.

    >>> "cuda-001-smollm2-135m-original" in recording_names()
    True
    """
    return list(_recorded())


def find(run: str | Path) -> Path:
    """The folder of a run, or else of the recording with this name.

    >>> find("cuda-001-smollm2-135m-original").parent.name
    'recordings'
    """
    folder = Path(run)
    events = None if folder.exists() else _recorded().get(str(run))
    return events.parent if events else folder


def is_recording(folder: Path) -> bool:
    """Whether a run's folder is a recording, to which nothing is written."""
    return folder.resolve().parent in [home.resolve() for home in folders("recordings")]


def place_for_figures(folder: Path) -> Path:
    """The folder for a run's figures: its own, or the current one for a recording."""
    return Path() if is_recording(folder) else folder


def _recorded() -> dict[str, Path]:
    return named_files("recordings", "*/events.jsonl")
