"""The place of a panel in a notebook: the cell that showed it last, and a picture for readers without a kernel."""

from collections.abc import Callable
from typing import Any

from IPython.core.getipython import get_ipython
from IPython.display import HTML, DisplayHandle, display

from grpo_lab.messages import text
from grpo_lab.ui import html


def cell() -> int:
    """The number of the cell that runs; 0 outside a notebook."""
    ipython = get_ipython()
    return ipython.execution_count if ipython else 0


def picture(figure: Callable[[], str]) -> None:
    """Show a figure as ordinary HTML in the cell that runs; nothing outside a notebook."""
    if get_ipython():
        display(HTML(figure()))


class Place:
    """A panel stands in one cell at a time. Below it, and where it stood before, is a picture as ordinary HTML.

    The picture is hidden beside a living panel; it is seen where a saved notebook is read without its kernel.
    """

    def __init__(self) -> None:
        self._cell = -1
        self._panel: DisplayHandle | None = None
        self._picture: DisplayHandle | None = None

    def show(self, bundle: dict[str, Any], picture: str) -> None:
        """Show the panel in the cell that runs, unless it stands there; it leaves the cell where it stood."""
        if self._cell == cell():
            return
        if self._panel:
            self._panel.update(HTML(html.fill("paragraph", text("panel.moved"))))
        self._cell = cell()
        self._panel = display(bundle, raw=True, display_id=True)
        self._picture = display(HTML(picture), display_id=True)

    def update(self, picture: str) -> None:
        """Replace the picture."""
        if self._picture:
            self._picture.update(HTML(picture))
