"""Models with a short name: where their files are, how large they are, and the command that makes or fetches each."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

from grpo_lab.paths import data_directory, data_tables


@dataclass(frozen=True)
class KnownModel:
    """A model with a short name: its folder, its size, the command that makes it, and whether it is shipped."""

    name: str
    folder: str
    parameters: int
    origin: str
    shipped: bool

    @property
    def path(self) -> Path:
        """The folder of its files, whether it exists or not."""
        return (data_directory() if self.shipped else cache_directory()) / "models" / self.folder

    @property
    def present(self) -> bool:
        """Whether its files exist."""
        return (self.path / "config.json").is_file()


MODELS = {name: KnownModel(name, **table) for name, table in data_tables("models")["models"].items()}


def cache_directory() -> Path:
    """The folder of fetched models: `GRPO_LAB_CACHE`, or grpo_lab in the system's folder for caches."""
    if chosen := os.environ.get("GRPO_LAB_CACHE"):
        return Path(chosen).expanduser().absolute()
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "grpo_lab"


def write_page(folder: Path, template: str, **values: Any) -> None:
    """Write the README beside a model's weights: their origin, and their checksums."""
    text = (data_directory() / "templates" / "models" / f"{template}.md").read_text(encoding="utf-8")
    page = jinja2.Template(text, trim_blocks=True, keep_trailing_newline=True).render(values)
    (folder / "README.md").write_text(page, encoding="utf-8")
