"""The part of a panel that runs in the browser: scrolling into view, alternative text, values of sliders."""

from pathlib import Path

import anywidget
import traitlets


class BrowserPart(anywidget.AnyWidget):
    """An invisible widget inside a panel."""

    _esm = Path(__file__).with_name("panel.js")
    alt = traitlets.Unicode().tag(sync=True)
    """The alternative text of the panel's picture."""
    dark = traitlets.Bool().tag(sync=True)
    """Whether the page has a dark theme; the browser sets it."""
    running = traitlets.Bool().tag(sync=True)
    """Whether a run is going on; when one begins, the panel scrolls into view."""
