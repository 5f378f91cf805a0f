"""The widgets of a panel and their layout. A click or a change calls a method of the panel by its name."""

from collections.abc import Callable, Sequence
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

import anywidget
import ipywidgets
import traitlets

from grpo_lab.analysis.run_state import Screen
from grpo_lab.analysis.screen_words import describe
from grpo_lab.config.schema import Config
from grpo_lab.errors import unknown
from grpo_lab.messages import text
from grpo_lab.ui import html
from grpo_lab.ui.widgets import parts
from grpo_lab.ui.widgets.sliders import SLIDERS, SliderRow
from grpo_lab.ui.widgets.sources import STYLE, Sources
from grpo_lab.ui.widgets.switches import Switches
from grpo_lab.ui.widgets.timeline import Timeline

_BAR = ("start", "go_on", "pause", "step", "stop", "reset")
"""The buttons above the figure; each calls the method of its name, and `pause` calls `toggle`."""
_ICONS = {
    **{"start": "play", "go_on": "repeat", "pause": "pause", "step": "step-forward", "stop": "stop"},
    **{"reset": "refresh", "healthy": "heart", "keep": "clone", "clear": "eraser", "export": "download"},
}
_LOOKS = {"start": "primary", "stop": "danger"}
_PACES = (10.0, 5.0, 2.0, 1.0, 0.5)
"""Steps a second to choose from."""
_CSS = Path(__file__).with_name("panel.css")


class BrowserPart(anywidget.AnyWidget):
    """The invisible part in the browser: scrolling into view, alternative text, values of sliders, dark or light."""

    _esm = Path(__file__).with_name("panel.js")
    alt = traitlets.Unicode().tag(sync=True)
    """The alternative text of the panel's picture."""
    dark = traitlets.Bool().tag(sync=True)
    """Whether the page has a dark theme; the browser sets it."""
    running = traitlets.Bool().tag(sync=True)
    """Whether a run is going on; when one begins, the panel scrolls into view."""


class Controls:
    """Pictures, words and inputs of a panel. Raises ConfigError for an unknown slider or guard.

    A click calls `call` with the name of a method and its arguments. `sizes` are those of the pictures of curves and
    chain; a page that still loads shows those of `first`.
    """

    def __init__(
        self,
        call: Callable[..., None],
        controls: Sequence[str] | None,
        guards: Sequence[str] | None,
        sizes: Sequence[tuple[int, int]],
        first: Sequence[bytes],
        pace: float,
    ) -> None:
        for name in controls or ():
            if name not in SLIDERS:
                raise unknown("setting of a panel", name, SLIDERS)
        self._call, self._muted, set_ = call, parts.Muted(), partial(call, "set")
        self.rows = [SliderRow(name, self._muted, self._slide) for name in (SLIDERS if controls is None else controls)]
        self.switches = Switches(guards, self._muted, lambda name, on: set_(f"guards.{name}={'on' if on else 'off'}"))
        self.sources = Sources(self._muted, partial(call, "choose"), set_)
        self.timeline = Timeline(self._muted, partial(call, "refresh"))
        self.browser = BrowserPart()
        self._curves, self._chain = map(_picture, ("plot", "chain"), sizes, first)
        self._buttons = {name: self._button(name, {"pause": "toggle"}.get(name, name)) for name in _BAR}
        self._pace, self._open, self._table_on = self._pace_menu(pace), self._open_menu(), self._table_switch()
        self._name = ipywidgets.Text(value="A", layout={"width": "220px"}, description=text("panel.name"), style=STYLE)
        self._about, self._kept, self._broken = parts.words("about"), parts.words("kept"), ipywidgets.HTML()
        self._status, self._samples, self._acted = map(parts.words, ("status", "samples", "guards"))
        self._table = parts.words("table")
        self._banner = parts.box("banner", [self._broken, self._button("healthy", "healthy")], ipywidgets.VBox)
        self._banner.layout.display = "none"
        # The style sheet has the shapes of the pictures, so that nothing moves when the first frames come.
        shapes = "".join(f".grpo-lab-{w}x{h} {{ aspect-ratio: {w} / {h}; flex: {w} 1 0; }}" for w, h in sizes)
        style = ipywidgets.HTML(f"<style>{_CSS.read_text(encoding='utf-8')}{shapes}</style>")
        style.layout.display = "none"
        tabs = parts.box("controls", [self._tabs(bool(guards))], ipywidgets.VBox)
        below = parts.box("below", [self._banner, self._table, self._acted, self._samples], ipywidgets.VBox)
        rows = [
            *(style, parts.box("bar", [*self._buttons.values(), self._pace]), self._status),
            *(parts.box("figure", [self._curves, self._chain]), self.timeline.widget),
            *(parts.box("columns", [tabs, below]), self.browser),
        ]
        self.widget = parts.box("panel", rows, ipywidgets.VBox)

    def show_config(self, config: Config) -> None:
        """Set sliders, switches and menus to the values of the config."""
        with self._muted:
            for each in (*self.rows, self.switches, self.sources):
                each.show(config)

    def show_running(self, running: bool, paused: bool, can_go_on: bool) -> None:
        """Enable the buttons that can be pressed; to go on with a run is offered where one was cut off."""
        buttons = self._buttons
        self.browser.running = running
        buttons["go_on"].layout.display = "" if can_go_on and not running else "none"
        buttons["start"].disabled = running
        buttons["pause"].disabled = buttons["stop"].disabled = not running
        self._show_paused(paused)

    def show_pace(self, pace: float) -> None:
        """Show the most steps a second, 0 for full speed."""
        with self._muted:
            self._pace.options = _paces(pace)
            self._pace.value = pace

    def show_runs(self, recordings: Sequence[str], folders: Sequence[Path]) -> None:
        """List the runs that can be opened: recordings, and the runs in the panel's folder."""
        runs = [(folder.name, str(folder)) for folder in folders]
        with self._muted:
            self._open.options = [(text("panel.choose_run"), ""), *runs, *((f"{name} ★", name) for name in recordings)]
            self._open.value = ""

    def show_kept(self, names: Sequence[str]) -> None:
        """Show the names of the overlays, and suggest a name for the next one."""
        self._kept.value = escape(text("panel.kept", names=", ".join(names))) if names else ""
        free = (letter for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" if letter not in names)
        self._name.value = next(free, "Z")

    def show_pictures(self, curves: bytes, chain: bytes) -> None:
        """Replace the two pictures."""
        self._curves.value, self._chain.value = curves, chain

    def show_words(self, screen: Screen, paused: bool, own: str, note: str) -> None:
        """Update status, banner, samples, guards that acted and, where it is open, the table."""
        self._show_paused(paused)
        self._status.value = html.status(screen, own, note)
        self.browser.alt = describe(screen)
        broken = html.banner(screen)
        self._broken.value = broken or self._broken.value
        self._banner.layout.display = "flex" if broken else "none"
        self._samples.value = html.samples(screen)
        self._acted.value = html.guards(screen)
        self._table.value = html.numbers(screen) if self._table_on.value else ""

    def _show_paused(self, paused: bool) -> None:
        self._buttons["pause"].description = text("panel.resume" if paused else "panel.pause")
        self._buttons["pause"].icon = "play" if paused else "pause"

    def _tabs(self, guards: bool) -> ipywidgets.Tab:
        """The tabs that have content; guards that a lab asks for are seen first, and without sliders the last tab."""
        overlay = ipywidgets.HTML(html.fill("heading", text("panel.overlay")))
        keep = self._button("keep", "keep", lambda: (self._name.value,))
        keeping = parts.box("bar", [keep, self._button("clear", "clear")])
        exporting = parts.box("bar", [self._button("export", "export"), self._table_on])
        tabs = {"settings": [*(row.widget for row in self.rows), self._about]} if self.rows else {}
        tabs |= {"guards": [self.switches.widget]} if self.switches.widget.children else {}
        tabs |= {"source": self.sources.widgets}
        tabs |= {"runs": [self._open, overlay, self._name, keeping, self._kept, exporting]}
        titles = [text(f"panel.tab_{name}") for name in tabs]
        pages = [ipywidgets.VBox(children) for children in tabs.values()]
        opened = "guards" if guards else "settings" if self.rows else "runs"
        return ipywidgets.Tab(pages, titles=titles, selected_index=list(tabs).index(opened))

    def _open_menu(self) -> ipywidgets.Dropdown:
        words = {"description": text("panel.open"), "tooltip": text("panel.open_help"), "style": STYLE}
        menu = ipywidgets.Dropdown(options=[("", "")], **words).add_class("grpo-lab-open")
        parts.by_user(menu, self._muted, lambda run: run and self._call("open", run))
        return menu

    def _pace_menu(self, pace: float) -> ipywidgets.Dropdown:
        style = {"description_width": "initial"}
        words = {"description": text("panel.pace"), "tooltip": text("panel.pace_help"), "style": style}
        menu = ipywidgets.Dropdown(options=_paces(pace), value=pace, **words).add_class("grpo-lab-pace-menu")
        parts.by_user(menu, self._muted, partial(self._call, "pace"))
        return menu

    def _table_switch(self) -> ipywidgets.ToggleButton:
        words = {"description": text("panel.table"), "tooltip": text("panel.table_help"), "icon": "table"}
        switch = ipywidgets.ToggleButton(**words).add_class("grpo-lab-table-on")
        parts.by_user(switch, self._muted, lambda _: self._call("refresh"))
        return switch

    def _button(self, name: str, method: str, values: Callable[[], tuple[Any, ...]] = tuple) -> ipywidgets.Button:
        looks = {"tooltip": text(f"panel.{name}_help"), "icon": _ICONS[name], "button_style": _LOOKS.get(name, "")}
        return parts.button(name, text(f"panel.{name}"), lambda: self._call(method, *values()), **looks)

    def _slide(self, name: str, override: str) -> None:
        self._about.value = html.fill("prose", text(f"setting.{name}"), SLIDERS[name].help())
        self._call("set", override)


def _paces(pace: float) -> list[tuple[str, float]]:
    """The options of the menu, full speed first, with this pace among them."""
    steps = sorted({*_PACES, pace} - {0}, reverse=True)
    return [(text("panel.full_speed"), 0.0), *((text("panel.steps_a_second", speed=f"{n:g}"), n) for n in steps)]


def _picture(name: str, size: tuple[int, int], first: bytes) -> ipywidgets.Image:
    picture = ipywidgets.Image(value=first, format="png", layout={"max_width": f"{size[0]}px"})
    return picture.add_class(f"grpo-lab-{name}").add_class(f"grpo-lab-{size[0]}x{size[1]}")
