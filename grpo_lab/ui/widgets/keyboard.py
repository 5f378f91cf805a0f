"""Keyboard shortcuts of a widget: the browser sends a key to Python while the focus is inside the widget's frame."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import anywidget
import traitlets


class Keyboard(anywidget.AnyWidget):
    """A line that lists the keys. It handles them wherever the focus is inside its frame, and focuses the frame.

    `actions` maps a key as browsers name it ("1", " ", "ArrowLeft") to its action, `legend` a key as people name it to
    its action in words; `frame` is the CSS class of the widget around it. A number box keeps its digits, a slider its
    arrows, a focused button its space.
    """

    _esm = Path(__file__).with_name("keyboard.js")
    _css = Path(__file__).with_name("keyboard.css")
    legend = traitlets.List(traitlets.List(traitlets.Unicode())).tag(sync=True)
    frame = traitlets.Unicode().tag(sync=True)
    wanted = traitlets.List(traitlets.Unicode()).tag(sync=True)

    def __init__(self, actions: Mapping[str, Callable[[], object]], frame: str, legend: Mapping[str, str]) -> None:
        super().__init__(wanted=list(actions), frame=frame, legend=[list(pair) for pair in legend.items()])
        self._actions = dict(actions)
        self.on_msg(self._receive)

    def press(self, key: str) -> None:
        """Run the action of the key; a key without an action is ignored."""
        if key in self._actions:
            self._actions[key]()

    def _receive(self, _: Any, content: Any, buffers: Any) -> None:
        self.press(str(content.get("key", "")))
