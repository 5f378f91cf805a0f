"""Pages of docs/ that are made from code and data, and therefore agree with them; their text is in data/templates."""

from collections.abc import Callable
from pathlib import Path

from grpo_lab.ui.docs_pages import algorithms, glossary, grading, guards, metrics, scenarios, settings

COMMAND = "grpo-lab docs"
NOTICE = f"<!-- Made by `{COMMAND}` from code and data: change those, and run it again. -->\n\n"

PAGES: dict[str, Callable[[], str]] = {
    "README.md": metrics.index,
    "algorithms.md": algorithms.page,
    "glossary.md": glossary.page,
    "grading.md": grading.page,
    "guards.md": guards.page,
    "scenarios.md": scenarios.page,
    "metrics.md": metrics.page,
    "settings.md": settings.page,
}


def render() -> dict[str, str]:
    """The text of every page by its file name; the same code and data give the same text."""
    return {name: NOTICE + page() for name, page in PAGES.items()}


def stale(folder: Path) -> list[str]:
    """Names of the pages that are missing from a folder or differ there."""
    return [name for name, text in render().items() if _read(folder / name) != text]


def write(folder: Path) -> list[Path]:
    """Write all pages into a folder and return those that changed."""
    folder.mkdir(parents=True, exist_ok=True)
    changed = [(folder / name, text) for name, text in render().items() if _read(folder / name) != text]
    for path, text in changed:
        path.write_text(text, encoding="utf-8", newline="\n")
    return [path for path, _ in changed]


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None
