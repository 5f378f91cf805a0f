"""The command that opens the lecture."""

from pathlib import Path
from typing import Annotated

import typer

from grpo_lab.cli import jupyterlab
from grpo_lab.cli.app import Language, app, spoken


@app.command(example="lecture --no-browser")
def lecture(
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Port of the server; by default a free one.")
    ] = None,
    browser: Annotated[bool, typer.Option(help="Open a browser window, or only print the address.")] = True,
    language: Language = None,
    kiosk: Annotated[
        bool, typer.Option("--kiosk", help="Serve the panel alone, without a notebook around it, by Voilà.")
    ] = False,
) -> None:
    """Open the lecture in JupyterLab: ten recorded failures, as they happen and healed, on any machine.

    Press Shift+Enter once to begin. Ctrl-C in the terminal ends the server. A kiosk begins by itself; every page that
    opens it has a kernel of its own.
    """
    notebook = _notebook(spoken(language))
    if kiosk:
        jupyterlab.start(kiosk_arguments(notebook, port, browser), jupyterlab.KIOSK)
    else:
        jupyterlab.start(server_arguments(notebook, port, browser))


def _notebook(language: str) -> Path:
    """The notebook to open: if it is the package's own, a copy in work/, because JupyterLab saves what it opens."""
    from grpo_lab.course.editions.build import place, write
    from grpo_lab.paths import is_installed

    labs = jupyterlab.labs_folder()
    notebook = place(labs, language) / jupyterlab.LECTURE
    if not is_installed(notebook):
        return notebook
    copy = place(jupyterlab.work_folder(labs), language) / notebook.name
    if not copy.exists():
        write({copy: notebook.read_text(encoding="utf-8")})
    return copy


def server_arguments(notebook: Path, port: int | None, browser: bool) -> list[str]:
    """The arguments of `jupyter lab`: this notebook alone in the window, its folder as root.

    >>> server_arguments(Path("labs/lecture.ipynb"), 9000, False)[1:]
    ['--LabApp.default_url=/doc/tree/lecture.ipynb', '--ServerApp.port=9000', '--no-browser']
    """
    root = f"--ServerApp.root_dir={notebook.parent.resolve()}"
    page = f"--LabApp.default_url=/doc/tree/{notebook.name}"
    return [root, page, *_place("ServerApp", port, browser)]


def kiosk_arguments(notebook: Path, port: int | None, browser: bool) -> list[str]:
    """The arguments of `voila`: this notebook without its text, which is about JupyterLab.

    >>> kiosk_arguments(Path("/labs/lecture.ipynb"), 9000, False)[1:]
    ['--TemplateExporter.exclude_markdown=True', '--Voila.port=9000', '--no-browser']
    """
    return [str(notebook.resolve()), "--TemplateExporter.exclude_markdown=True", *_place("Voila", port, browser)]


def _place(server: str, port: int | None, browser: bool) -> list[str]:
    return [*([f"--{server}.port={port}"] if port else []), *([] if browser else ["--no-browser"])]
