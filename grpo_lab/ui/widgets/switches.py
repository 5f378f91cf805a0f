"""A switch for each guard, and on demand what that guard stops, costs and hides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ipywidgets

from grpo_lab.config.schema import Config
from grpo_lab.errors import unknown
from grpo_lab.training.guards import GUARDS
from grpo_lab.ui.docs_pages.guards import docstring
from grpo_lab.ui.widgets import html
from grpo_lab.ui.widgets.messages import text


class Switches:
    """Check boxes of guards. `switched` is told a name and whether it is on when somebody clicks, never by `show`.

    A guard of the config that has no class here, a learner's own, gets a switch when it is first shown.
    """

    def __init__(self, names: Sequence[str] | None, switched: Callable[[str, bool], None]) -> None:
        for name in names or ():
            if name not in GUARDS:
                raise unknown("guard", name, GUARDS)
        self._switched, self._showing = switched, False
        self._boxes: dict[str, ipywidgets.Checkbox] = {}
        self._about: dict[str, ipywidgets.HTML] = {}
        self.widget = ipywidgets.VBox()
        self.widget.add_class("grpo-lab-switches")
        self._add(list(GUARDS) if names is None else names)

    def show(self, config: Config) -> None:
        """Stand as the config's guards do."""
        self._add([name for name in config.guards if name not in self._boxes and name not in GUARDS])
        self._showing = True
        try:
            for name, box in self._boxes.items():
                box.value = name in config.guards
        finally:
            self._showing = False

    def explain(self, name: str) -> None:
        """Show what the guard does, or hide it again."""
        about = self._about[name]
        about.value = "" if about.value else html.prose("", *docstring(GUARDS[name]))

    def _add(self, names: Sequence[str]) -> None:
        if names:
            self.widget.children = (*self.widget.children, *(self._row(name) for name in names))

    def _row(self, name: str) -> ipywidgets.VBox:
        short = name.rpartition(":")[2]
        box = self._boxes[name] = ipywidgets.Checkbox(description=short, indent=False, layout={"width": "auto"})
        box.observe(lambda change: self._click(name, change), "value")
        row: list[Any] = [box]
        about = self._about[name] = ipywidgets.HTML()
        about.add_class("grpo-lab-about")
        if name in GUARDS:
            box.tooltip = docstring(GUARDS[name])[0]
            ask = ipywidgets.Button(description="?", tooltip=text("guard.about", name=name), layout={"width": "24px"})
            ask.on_click(lambda _: self.explain(name))
            row.append(ask)
        line = ipywidgets.HBox(row)
        line.add_class("grpo-lab-row")
        whole = ipywidgets.VBox([line, about])
        whole.add_class(f"grpo-lab-guard-{short}")
        return whole

    def _click(self, name: str, change: Any) -> None:
        if not self._showing:
            self._switched(name, change["new"])
