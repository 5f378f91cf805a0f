"""The command that opens the lecture, and the start of JupyterLab, or Voilà, for it and for the labs."""

import os
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from grpo_lab.cli.app import Browser, Language, app, spoken
from grpo_lab.errors import DataError, GrpoLabError
from grpo_lab.paths import data_directory, is_installed, labs_directory

LECTURE = "lecture.ipynb"
LAB, KIOSK = "jupyterlab.labapp", "voila.app"
"""The modules of the two servers."""
_INSTALLED_BY = {LAB: "JupyterLab is not installed: pip install 'grpo-lab[lab]', or `make lab` in the checkout"}
_INSTALLED_BY |= {KIOSK: "Voilà is not installed: pip install 'grpo-lab[kiosk]'"}


@app.command(example="lecture --no-browser")
def lecture(
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Port of the server; by default a free one.")
    ] = None,
    browser: Browser = True,
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
    place = [f"port={port}"] if port else []
    if kiosk:  # without the notebook's text, which is about JupyterLab
        words = [str(notebook.resolve()), "--TemplateExporter.exclude_markdown=True", *(f"--Voila.{p}" for p in place)]
    else:  # this notebook alone in the window, its folder as root
        words = [f"--ServerApp.root_dir={notebook.parent.resolve()}", f"--LabApp.default_url=/doc/tree/{notebook.name}"]
        words += [f"--ServerApp.{p}" for p in place]
    start([*words, *([] if browser else ["--no-browser"])], KIOSK if kiosk else LAB)


def _notebook(language: str) -> Path:
    """The notebook to open: if it is the package's own, a copy in work/, because JupyterLab saves what it opens."""
    from grpo_lab.course.editions.build import place, write

    labs = labs_folder()
    notebook = place(labs, language) / LECTURE
    if not is_installed(notebook):
        return notebook
    copy = place(work_folder(labs), language) / notebook.name
    if not copy.exists():
        write({copy: notebook.read_text(encoding="utf-8")})
    return copy


def labs_folder() -> Path:
    """The folder labs/ below the current one, or that of the labs that ship with the package.

    Raises DataError if neither has the notebooks.
    """
    here = (Path.cwd() / "labs", labs_directory())
    for folder in here:
        if (folder / LECTURE).is_file():
            return folder
    raise DataError(f"no {LECTURE} in {here[0]} or {here[1]}: install grpo_lab again")


def work_folder(labs: Path) -> Path:
    """The folder for copies of the labs: beside them, or below the current folder if they are inside the package."""
    return (Path.cwd() if is_installed(labs) else labs.parent) / "work"


def start(arguments: Sequence[str], server: str = LAB) -> None:
    """Serve until Ctrl-C. Raises GrpoLabError where the server is not installed."""
    if not find_spec(server.partition(".")[0]):
        raise GrpoLabError(_INSTALLED_BY[server])
    # The page_config.json there switches off JupyterLab's question about news; the kernel there knows `%%exercise`.
    for name in ("JUPYTER_CONFIG_PATH", "JUPYTER_PATH"):
        paths = [str(data_directory() / "jupyter"), os.environ.get(name, "")]
        os.environ[name] = os.pathsep.join(filter(None, paths))
    # JupyterLab refuses to run as root, as containers do; it listens on this machine alone.
    root = server == LAB and getattr(os, "geteuid", lambda: 1)() == 0
    import_module(server).main(argv=[*arguments, *(["--allow-root"] if root else [])])
