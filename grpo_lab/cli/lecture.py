"""The command that opens the lecture."""

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
        int | None, typer.Option(min=1, max=65535, help="Port of the server; by default a free one.")
    ] = None,
    browser: Annotated[bool, typer.Option(help="Open a browser window, or only print the address.")] = True,
) -> None:
    """Open the lecture in JupyterLab: nine recorded failures, with and without guards, on any machine.

    Press Shift+Enter once to begin. Ctrl-C in the terminal ends the server.
    """
    arguments = server_arguments(lecture_notebook(), port, browser)
    if getattr(os, "geteuid", lambda: 1)() == 0:
        arguments.append("--allow-root")  # containers run as root; the server listens on this machine alone
    if not find_spec("jupyterlab"):
        raise GrpoLabError("JupyterLab is not installed: pip install 'grpo-lab[lab]', or `make lab` in the checkout")
    # The page_config.json there switches off JupyterLab's question about news.
    before = os.environ.get("JUPYTER_CONFIG_PATH", "")
    os.environ["JUPYTER_CONFIG_PATH"] = os.pathsep.join(filter(None, [str(data_directory() / "jupyter"), before]))
    from jupyterlab.labapp import main

    main(argv=arguments)


def lecture_notebook() -> Path:
    """The path of labs/lecture.ipynb, below the current folder or in the checkout of this package.

    Raises DataError if neither has it.
    """
    here = (Path.cwd(), Path(__file__).resolve().parents[2])
    for folder in here:
        if (folder / NOTEBOOK).is_file():
            return folder / NOTEBOOK
    raise DataError(
        f"no {NOTEBOOK} in {here[0]} or {here[1]}: the checkout has the labs, the installed package does not"
    )


def server_arguments(notebook: Path, port: int | None, browser: bool) -> list[str]:
    """The arguments of `jupyter lab`: this notebook alone in the window, its folder as root.

    >>> server_arguments(Path("labs/lecture.ipynb"), 9000, False)[1:]
    ['--LabApp.default_url=/doc/tree/lecture.ipynb', '--ServerApp.port=9000', '--no-browser']
    """
    root = f"--ServerApp.root_dir={notebook.parent.resolve()}"
    page = f"--LabApp.default_url=/doc/tree/{notebook.name}"
    return [root, page, *([f"--ServerApp.port={port}"] if port else []), *([] if browser else ["--no-browser"])]
