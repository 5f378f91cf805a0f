"""Recorded runs that ship with the package: events without weights, to replay instead of training."""

from pathlib import Path

from grpo_lab.paths import data_directory


def recording_names() -> list[str]:
    """The names of all recordings.

    >>> "cuda-001-smollm2-135m-original" in recording_names()
    True
    """
    return sorted(path.parent.name for path in _home().glob("*/events.jsonl"))


def find(run: str | Path) -> Path:
    """The folder of a run, or else of the recording with this name.

    >>> find("cuda-001-smollm2-135m-original").parent.name
    'recordings'
    """
    folder = Path(run)
    return _home() / folder if not folder.exists() and str(run) in recording_names() else folder


def place_for_figures(folder: Path) -> Path:
    """The folder for a run's figures: its own, or the current one for a recording, whose folder is not written to."""
    return Path() if folder.resolve().parent == _home().resolve() else folder


def _home() -> Path:
    return data_directory() / "recordings"
