"""Where in a notebook a run is looked at: in its panel, or in the cell that waits for it."""

from __future__ import annotations

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
def looked_at(glance: ipywidgets.Widget | None, figure: Callable[[], str]) -> Iterator[None]:
    """Show a glance of a run, if one is given, below the cell that waits for it; at its end its figure in that place.

    The figure is an ordinary one: it stays where a notebook is read without its kernel.
    """
    place = display(glance, display_id=True) if glance else None
    yield
    if place:
        place.update(HTML(figure()))
    elif get_ipython():
        display(HTML(figure()))
