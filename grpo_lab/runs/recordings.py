"""Recorded runs, of the package or one's own: events without weights, to replay instead of training."""

from pathlib import Path

from grpo_lab.paths import folders, named_files

FILES = ("recordings", "*/events.jsonl")


def recording_names() -> list[str]:
    """The names of all recordings."""
    return list(named_files(*FILES))


def find(run: str | Path) -> Path:
    """The folder of a run, or else of the recording with this name.

    >>> find("cuda-001-smollm2-135m-original").parent.name
    'recordings'
    """
    folder = Path(run)
    events = None if folder.exists() else named_files(*FILES).get(str(run))
    return events.parent if events else folder


def is_recording(folder: Path) -> bool:
    """Whether a run's folder is a recording, to which nothing is written."""
    return folder.resolve().parent in [home.resolve() for home in folders("recordings")]
