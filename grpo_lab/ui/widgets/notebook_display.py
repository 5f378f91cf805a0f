"""The place in a notebook where a run is shown: its panel, or the cell that waits for it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import ipywidgets
from IPython.core.getipython import get_ipython
from IPython.display import HTML, display


def cell() -> int:
    """The number of the cell that runs; 0 outside a notebook."""
    ipython = get_ipython()
    return ipython.execution_count if ipython else 0


@contextmanager
def glance(widget: ipywidgets.Widget | None, figure: Callable[[], str]) -> Iterator[None]:
    """Show the widget, if one is given, below the cell that waits for a run; replace it by the figure at the end.

    The figure is ordinary HTML, so that it is visible where a notebook is read without its kernel.
    """
    place = display(widget, display_id=True) if widget else None
    yield
    if place:
        place.update(HTML(figure()))
    elif get_ipython():
        display(HTML(figure()))
