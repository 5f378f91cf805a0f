"""Executes the labs as a learner with all the right answers would, and keeps the results by the hash of their code."""

import asyncio
import hashlib
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from tqdm import tqdm

from grpo_lab.course.editions import build

ROOT = Path(__file__).parents[1]
TIMEOUT = 900
"""Seconds that one cell may take."""
_CALLED = {"grpo_lab": ("*.py", "*.toml", "*.css", "*.js"), "data": ("*.toml", "*.jsonl"), "labs": ("*.py", "*.toml")}
"""The files that a cell can call or read, by folder."""
Source = tuple[str, str]
"""A lab's name and its language."""


def notebooks(sources: Iterable[Source], cache: Path, jobs: int) -> dict[Source, Any]:
    """The executed notebooks, `jobs` at a time; one that was executed with this code before is read from the cache.

    Raises CellExecutionError for a cell that raises.
    """
    return asyncio.run(_all(list(sources), cache, jobs))


def digest(text: str) -> str:
    """A hash of a notebook and of all code and data that its cells can call.

    >>> len(digest("")), digest("a") == digest("b")
    (16, False)
    """
    found = hashlib.sha256(text.encode())
    for folder, kinds in _CALLED.items():
        for path in sorted(path for kind in kinds for path in (ROOT / folder).rglob(kind)):
            found.update(path.read_bytes())
    return found.hexdigest()[:16]


async def _all(sources: list[Source], cache: Path, jobs: int) -> dict[Source, Any]:
    free = asyncio.Semaphore(jobs)
    cache.mkdir(parents=True, exist_ok=True)
    with tqdm(total=len(sources), desc="labs", unit="lab") as bar:
        found = await asyncio.gather(*(_one(source, cache, free, bar) for source in sources))
    return dict(zip(sources, found, strict=True))


async def _one(source: Source, cache: Path, free: asyncio.Semaphore, bar: Any) -> Any:
    name, language = source
    text = build.notebook(ROOT / "labs", name, build.REFERENCE, language)
    kept = cache / f"{name}-{language}-{digest(text)}.ipynb"
    async with free:
        if not kept.is_file():
            bar.set_postfix_str(" ".join(source))
            nbformat.write(await _executed(nbformat.reads(text, as_version=4)), kept)
    bar.update()
    return nbformat.read(kept, as_version=4)


async def _executed(book: Any) -> Any:
    with tempfile.TemporaryDirectory(prefix="grpo-lab-site-") as home:
        resources: Mapping[str, Any] = {"metadata": {"path": home}}
        # The kernel's own standard error has one line, about TCP; that of the cells is in their outputs.
        await NotebookClient(book, timeout=TIMEOUT, resources=resources).async_execute(stderr=subprocess.DEVNULL)
    return book
