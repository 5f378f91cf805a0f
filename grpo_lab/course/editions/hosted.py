"""A release for a repository on GitHub, whose notebooks open in Colab and Binder."""

import re
from collections.abc import Mapping
from pathlib import Path

from grpo_lab.course.editions.build import HIDDEN, as_text, new_cell
from grpo_lab.errors import ConfigError
from grpo_lab.paths import data_directory

COLAB = "https://colab.research.google.com"
BINDER = "https://mybinder.org"
_LINK = re.compile(r"\[[^\]]*\]\(([\w-]+\.ipynb)\)")


def hosted(files: Mapping[Path, str], repository: str, package: str) -> dict[Path, str]:
    """The files of a release, for the root of a repository `OWNER/NAME`, or `OWNER/NAME@BRANCH`.

    Each notebook begins with a cell that installs `package`, the address of a wheel or git+https://…, where grpo_lab is
    missing; the README has a badge for each notebook and for Binder, which reads requirements.txt.
    Raises ConfigError for a name of another form.
    """
    named = re.fullmatch(r"([\w.-]+/[\w.-]+?)(?:@([\w./-]+))?", repository)
    if not named:
        raise ConfigError(f"{repository!r} names no repository on GitHub; write OWNER/NAME or OWNER/NAME@BRANCH")
    if not package or any(sign in package for sign in "\"'\\\n{}"):
        raise ConfigError(f"{package!r} is nothing that pip installs; name a wheel's address or git+https://…")
    place, branch = named[1], named[2] or "main"
    made = {path: _with_first_cell(text, package) if path.suffix == ".ipynb" else text for path, text in files.items()}
    for path in [path for path in files if path.name == "README.md"]:
        made[path] = _with_badges(files[path], place, branch)
        made[path.with_name("requirements.txt")] = f"grpo-lab[lab] @ {package}\n"
    return made


def _with_first_cell(text: str, package: str) -> str:
    import nbformat

    notebook = nbformat.reads(text, as_version=4)
    code = (data_directory() / "classroom" / "first_cell.ipy").read_text(encoding="utf-8")
    notebook.cells.insert(0, new_cell("code", "install", code.replace("{package}", package), [HIDDEN]))
    return as_text(notebook)


def _with_badges(readme: str, place: str, branch: str) -> str:
    """The README with Binder's badge below the title, and Colab's beside each notebook's name."""
    binder = f"[![Binder]({BINDER}/badge_logo.svg)]({BINDER}/v2/gh/{place}/{branch})"

    def beside(link: re.Match[str]) -> str:
        address = f"{COLAB}/github/{place}/blob/{branch}/{link[1]}"
        return f"{link[0]} [![Colab]({COLAB}/assets/colab-badge.svg)]({address})"

    title, rest = readme.split("\n", 1)
    return f"{title}\n\n{binder}\n{_LINK.sub(beside, rest)}"
