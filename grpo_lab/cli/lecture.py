"""The command that opens the lecture."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from grpo_lab.cli.app import app
from grpo_lab.errors import DataError, GrpoLabError
from grpo_lab.paths import data_directory

NOTEBOOK = Path("labs/lecture.ipynb")


@app.command()
def lecture(
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Port of the server; a free one by itself.")
    ] = None,
    browser: Annotated[
        bool, typer.Option(help="Open a browser window; without, open the address that is shown.")
    ] = True,
) -> None:
    """One panel for a lecture, in JupyterLab: nine failures, recorded, with and without guards; no GPU, no waiting.

    Press Shift+Enter once. Ctrl-C here ends it.
    """
    arguments = server_arguments(lecture_notebook(), port, browser)
    if getattr(os, "geteuid", lambda: 1)() == 0:
        arguments.append("--allow-root")  # in a container there is nobody else; it listens on this machine alone
    if not find_spec("jupyterlab"):
        raise GrpoLabError("JupyterLab is not installed: pip install 'grpo-lab[lab]', or `make lab` in the checkout")
    # Its page_config.json keeps JupyterLab from asking about news in front of an audience.
    before = os.environ.get("JUPYTER_CONFIG_PATH", "")
    os.environ["JUPYTER_CONFIG_PATH"] = os.pathsep.join(filter(None, [str(data_directory() / "jupyter"), before]))
    from jupyterlab.labapp import main

    main(argv=arguments)


def lecture_notebook() -> Path:
    """labs/lecture.ipynb below the current folder, or in the checkout that this package is run from."""
    here = (Path.cwd(), Path(__file__).resolve().parents[2])
    for folder in here:
        if (folder / NOTEBOOK).is_file():
            return folder / NOTEBOOK
    raise DataError(f"no {NOTEBOOK} in {here[0]} or {here[1]}: labs are in the checkout, not in the installed package")


def server_arguments(notebook: Path, port: int | None, browser: bool) -> list[str]:
    """What `jupyter lab` is told: this notebook alone in the window, its folder as root.

    >>> server_arguments(Path("labs/lecture.ipynb"), 9000, False)[1:]
    ['--LabApp.default_url=/doc/tree/lecture.ipynb', '--ServerApp.port=9000', '--no-browser']
    """
    root = f"--ServerApp.root_dir={notebook.parent.resolve()}"
    page = f"--LabApp.default_url=/doc/tree/{notebook.name}"
    return [root, page, *([f"--ServerApp.port={port}"] if port else []), *([] if browser else ["--no-browser"])]
