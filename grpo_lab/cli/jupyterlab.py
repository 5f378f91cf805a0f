"""Starts JupyterLab, or Voilà, with the settings and the kernel of data/jupyter."""

import os
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from grpo_lab.errors import DataError, GrpoLabError
from grpo_lab.paths import data_directory, is_installed, labs_directory

LECTURE = "lecture.ipynb"


LAB, KIOSK = "jupyterlab.labapp", "voila.app"
"""The modules of the two servers."""
_INSTALLED_BY = {LAB: "JupyterLab is not installed: pip install 'grpo-lab[lab]', or `make lab` in the checkout"}
_INSTALLED_BY |= {KIOSK: "Voilà is not installed: pip install 'grpo-lab[kiosk]'"}


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
