"""The inputs of a panel: a click calls a method of the panel by its name."""

from collections.abc import Callable, Sequence
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

import ipywidgets

from grpo_lab.config.schema import Config
from grpo_lab.errors import unknown
from grpo_lab.messages import text
from grpo_lab.ui.widgets import html, parts
from grpo_lab.ui.widgets.sliders import SLIDERS, SliderRow
from grpo_lab.ui.widgets.sources import STYLE, Sources
from grpo_lab.ui.widgets.switches import Switches

_BUTTONS = {"start": "start", "go_on": "go_on", "pause": "toggle", "step": "step", "stop": "stop", "reset": "reset"}
"""The buttons above the figure, and the method of the panel that each calls."""
_ICONS = {
    "start": "play",
    "go_on": "repeat",
    "pause": "pause",
    "step": "step-forward",
    "stop": "stop",
    "reset": "refresh",
}
_ICONS |= {"healthy": "heart", "keep": "clone", "clear": "eraser", "export": "download"}
_LOOKS = {"start": "primary", "stop": "danger"}
PACES = (10.0, 5.0, 2.0, 1.0, 0.5)
"""Steps a second to choose from."""


class Inputs:
    """Buttons, menus, sliders and switches. Raises ConfigError for an unknown slider.

    A click calls `call` with the name of a method and its arguments.
    """

    def __init__(
        self, call: Callable[..., None], controls: Sequence[str] | None, guards: Sequence[str] | None, pace: float
    ) -> None:
        for name in controls or ():
            if name not in SLIDERS:
                raise unknown("setting of a panel", name, SLIDERS)
        self._call, self._opening = call, parts.Muted()
        set_ = partial(call, "set")
        self.about, self.kept = parts.words("about"), ipywidgets.HTML()
        self.rows = [SliderRow(name, self._slide) for name in (SLIDERS if controls is None else controls)]
        self.switches = Switches(guards, lambda name, on: set_(f"guards.{name}={'on' if on else 'off'}"))
        self.sources = Sources(partial(call, "choose"), set_)
        self._buttons = {name: self._button(name, method) for name, method in _BUTTONS.items()}
        self._open, self.table_on = self._open_menu(), self._table_switch()
        self._pace = self._pace_menu(pace)
        words = {"description": text("panel.name"), "style": STYLE}
        self._name = ipywidgets.Text(value="A", layout={"width": "220px"}, **words)
        self._banner_text = ipywidgets.HTML()
        self.banner = parts.box("banner", [self._banner_text, self._button("healthy")], ipywidgets.VBox)
        self.banner.layout.display = "none"
        self.bar = parts.box("bar", [*self._buttons.values(), self._pace])
        tabs = self._made_tabs(bool(guards))  # the guards that a lab asks for are seen first
        self.tabs = parts.box("controls", [tabs], ipywidgets.VBox)

    def show_config(self, config: Config) -> None:
        """Set sliders, switches and menus to the values of the config."""
        for each in (*self.rows, self.switches, self.sources):
            each.show(config)

    def show_running(self, running: bool, paused: bool, can_go_on: bool) -> None:
        """Enable the buttons that can be pressed; to go on with a run is offered where one was cut off."""
        buttons = self._buttons
        buttons["go_on"].layout.display = "" if can_go_on and not running else "none"
        buttons["start"].disabled = running
        buttons["pause"].disabled = buttons["stop"].disabled = not running
        self.show_paused(paused)

    def show_paused(self, paused: bool) -> None:
        """Let the button pause, or resume a paused run."""
        self._buttons["pause"].description = text("panel.resume" if paused else "panel.pause")
        self._buttons["pause"].icon = "play" if paused else "pause"

    def show_pace(self, pace: float) -> None:
        """Show the most steps a second, 0 for full speed."""
        with self._opening:
            if pace not in dict((value, label) for label, value in self._pace.options):
                self._pace.options = _paces(pace)
            self._pace.value = pace

    def show_banner(self, words: str) -> None:
        """Show what the run broke on, and the way back to a healthy setup; empty words hide it."""
        self._banner_text.value = words or self._banner_text.value
        self.banner.layout.display = "flex" if words else "none"

    def show_runs(self, recordings: Sequence[str], folders: Sequence[Path]) -> None:
        """List the runs that can be opened: recordings, and the runs in the panel's folder."""
        runs = [(folder.name, str(folder)) for folder in folders]
        with self._opening:
            self._open.options = [(text("panel.choose_run"), ""), *runs, *((f"{name} ★", name) for name in recordings)]
            self._open.value = ""

    def show_kept(self, names: Sequence[str]) -> None:
        """Show the names of the overlays, and suggest a name for the next one."""
        self.kept.value = escape(text("panel.kept", names=", ".join(names))) if names else ""
        free = (letter for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" if letter not in names)
        self._name.value = next(free, "Z")

    def _made_tabs(self, guards: bool) -> ipywidgets.Tab:
        """The tabs that have content; of a panel without sliders the last one is open."""
        tabs = {"settings": [*(row.widget for row in self.rows), self.about]} if self.rows else {}
        tabs |= {"guards": [self.switches.widget]} if self.switches.widget.children else {}
        tabs |= {"source": self.sources.widgets, "runs": self._runs()}
        titles = [text(f"panel.tab_{name}") for name in tabs]
        pages = [ipywidgets.VBox(children) for children in tabs.values()]
        opened = "guards" if guards else "settings" if self.rows else "runs"
        return ipywidgets.Tab(pages, titles=titles, selected_index=list(tabs).index(opened))

    def _open_menu(self) -> ipywidgets.Dropdown:
        words = {"description": text("panel.open"), "tooltip": text("panel.open_help"), "style": STYLE}
        menu = ipywidgets.Dropdown(options=[("", "")], **words).add_class("grpo-lab-open")
        menu.observe(lambda change: self._opening or not change["new"] or self._call("open", change["new"]), "value")
        return menu

    def _pace_menu(self, pace: float) -> ipywidgets.Dropdown:
        style = {"description_width": "initial"}
        words = {"description": text("panel.pace"), "tooltip": text("panel.pace_help"), "style": style}
        menu = ipywidgets.Dropdown(options=_paces(pace), value=pace, **words)
        menu.observe(lambda change: self._opening or self._call("pace", change["new"]), "value")
        return menu.add_class("grpo-lab-pace-menu")

    def _table_switch(self) -> ipywidgets.ToggleButton:
        words = {"description": text("panel.table"), "tooltip": text("panel.table_help"), "icon": "table"}
        switch = ipywidgets.ToggleButton(**words).add_class("grpo-lab-table-on")
        switch.observe(lambda _: self._call("refresh"), "value")
        return switch

    def _runs(self) -> list[Any]:
        overlay = ipywidgets.HTML(f"<h4>{escape(text('panel.overlay'))}</h4>")
        keep = self._button("keep", "keep", lambda: (self._name.value,))
        keeping = parts.box("bar", [keep, self._button("clear")])
        exporting = parts.box("bar", [self._button("export"), self.table_on])
        return [self._open, overlay, self._name, keeping, self.kept, exporting]

    def _button(self, name: str, method: str = "", values: Callable[[], tuple[Any, ...]] = tuple) -> ipywidgets.Button:
        looks = {"tooltip": text(f"panel.{name}_help"), "icon": _ICONS[name], "button_style": _LOOKS.get(name, "")}
        return parts.button(name, text(f"panel.{name}"), lambda: self._call(method or name, *values()), **looks)

    def _slide(self, name: str, override: str) -> None:
        self.about.value = html.prose(text(f"setting.{name}"), SLIDERS[name].help(name), {})
        self._call("set", override)


def _paces(pace: float) -> list[tuple[str, float]]:
    """The options of the menu, full speed first, with this pace among them."""
    steps = sorted({*PACES, pace} - {0}, reverse=True)
    return [(text("panel.full_speed"), 0.0), *((text("panel.steps_a_second", speed=f"{n:g}"), n) for n in steps)]
