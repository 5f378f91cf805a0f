"""The widgets of a panel, laid out: what is pressed goes to the panel's methods, what is to be seen comes from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ipywidgets

from grpo_lab.analysis.run_state import Screen
from grpo_lab.config.schema import Config
from grpo_lab.errors import GrpoLabError, unknown
from grpo_lab.ui.widgets import html
from grpo_lab.ui.widgets.messages import text
from grpo_lab.ui.widgets.sliders import KNOBS, Row
from grpo_lab.ui.widgets.sources import Sources
from grpo_lab.ui.widgets.switches import Switches
from grpo_lab.ui.widgets.timeline import Timeline

if TYPE_CHECKING:
    from grpo_lab.ui.widgets.panel import Panel

_STYLE = Path(__file__).with_name("panel.css")
_ICONS = {"start": "play", "pause": "pause", "step": "step-forward", "stop": "stop", "reset": "refresh"}
_LOOKS = {"start": "primary", "stop": "danger"}
_TABS = ("settings", "guards", "source", "runs")


class Desk:
    """All that a panel shows beside its numbers: buttons, menus, sliders, and the places where words appear."""

    def __init__(
        self,
        panel: Panel,
        controls: Sequence[str] | None,
        guards: Sequence[str] | None,
        size: tuple[int, int],
        first: bytes = b"",
    ) -> None:
        self._panel = panel
        for name in controls or ():
            if name not in KNOBS:
                raise unknown("setting of a panel", name, KNOBS)
        # Born with a picture: a page that is still loading may miss the first change of one.
        self.image = ipywidgets.Image(value=first, format="png", layout={"max_width": f"{size[0]}px"})
        self.image.add_class("grpo-lab-plot")
        self.image.add_class(f"grpo-lab-{size[0]}x{size[1]}")
        self._style = ipywidgets.HTML(_css(size), layout={"display": "none"})
        self._status, self._samples, self._acted = _words("status"), _words("samples"), _words("guards")
        self._table = _words("table")
        self.timeline = Timeline(panel.refresh)
        self.rows = [Row(name, self._turn) for name in (KNOBS if controls is None else controls)]
        self.switches = Switches(guards, lambda name, on: self._set(f"guards.{name}={'on' if on else 'off'}"))
        self.sources = Sources(panel.choose, self._set)
        self._about = _words("about")
        self.widget = self._laid_out()
        self.widget.add_class("grpo-lab-panel")
        self.glance = ipywidgets.VBox([self._style, self._buttons["stop"], self._status, self.image])
        """The run alone, to be looked at where the panel is out of sight."""

    def show_config(self, config: Config) -> None:
        """Sliders and switches stand as the config does."""
        for row in self.rows:
            row.show(config)
        self.switches.show(config)
        self.sources.show(config)

    def show_running(self, running: bool, paused: bool) -> None:
        """Which buttons can be pressed."""
        buttons = self._buttons
        buttons["start"].disabled = running
        buttons["pause"].disabled = buttons["stop"].disabled = not running
        buttons["pause"].description = text("panel.resume" if paused else "panel.pause")
        buttons["pause"].icon = "play" if paused else "pause"

    def show_words(self, screen: Screen, own: str, note: str) -> None:
        """Status, banner, samples, guards that acted and, where it is open, the table."""
        self._status.value = html.status(screen, own, note)
        words = html.banner(screen)
        self._banner_text.value = words or self._banner_text.value
        self._banner.layout.display = "flex" if words else "none"
        self._samples.value = html.samples(screen)
        self._acted.value = html.guards(screen)
        self._table.value = html.numbers(screen) if self._table_on.value else ""

    def show_runs(self, recordings: Sequence[str], folders: Sequence[Path]) -> None:
        """What can be opened: recordings, and the runs that lie in the panel's folder."""
        runs = [(folder.name, str(folder)) for folder in folders]
        options = [(text("panel.choose_run"), ""), *runs, *((f"{name} ★", name) for name in recordings)]
        self._opening = True
        self._open.options = options
        self._open.value = ""
        self._opening = False

    def show_kept(self, names: Sequence[str]) -> None:
        """Names of the overlays, and a name for the next one."""
        self._kept.value = escape(text("panel.kept", names=", ".join(names))) if names else ""
        free = (letter for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" if letter not in names)
        self._name.value = next(free, "Z")

    def _laid_out(self) -> ipywidgets.VBox:
        top = _box("bar", [*self._make_buttons()])
        below = _box("below", [self._samples, self._acted])
        left = _box("left", [self.image, self.timeline.widget, below], ipywidgets.VBox)
        right = _box("right", [self._tabs()], ipywidgets.VBox)
        columns = _box("columns", [left, right])
        parts = [self._style, top, self._status, self._make_banner(), columns, self._table]
        return ipywidgets.VBox(parts)

    def _make_buttons(self) -> Sequence[ipywidgets.Button]:
        panel = self._panel
        actions = {
            "start": panel.start,
            "pause": panel.toggle,
            "step": panel.step,
            "stop": panel.stop,
            "reset": panel.reset,
        }
        self._buttons = {name: self._button(name, action, _ICONS[name]) for name, action in actions.items()}
        return list(self._buttons.values())

    def _make_banner(self) -> ipywidgets.VBox:
        self._banner_text = ipywidgets.HTML()
        healthy = self._button("healthy", self._panel.healthy, "heart")
        self._banner = _box("banner", [self._banner_text, healthy], ipywidgets.VBox)
        self._banner.layout.display = "none"
        return self._banner

    def _tabs(self) -> ipywidgets.Tab:
        settings = ipywidgets.VBox([*(row.widget for row in self.rows), self._about])
        source = ipywidgets.VBox(self.sources.widgets)
        self._tab = ipywidgets.Tab([settings, self.switches.widget, source, self._make_runs()])
        for index, name in enumerate(_TABS):
            self._tab.set_title(index, text(f"panel.tab_{name}"))
        return self._tab

    def _make_runs(self) -> ipywidgets.VBox:
        self._opening = False
        words = {
            "description": text("panel.open"),
            "tooltip": text("panel.open_help"),
            "style": {"description_width": "84px"},
        }
        self._open = ipywidgets.Dropdown(options=[("", "")], **words)
        self._open.add_class("grpo-lab-open")
        self._open.observe(lambda change: self._opening or self._try(self._panel.open, change["new"]), "value")
        words = {"description": text("panel.name"), "style": {"description_width": "84px"}}
        self._name = ipywidgets.Text(value="A", layout={"width": "220px"}, **words)
        self._kept = ipywidgets.HTML()
        keep = self._button("keep", lambda: self._panel.keep(self._name.value), "clone")
        clear = self._button("clear", self._panel.clear, "eraser")
        export = self._button("export", self._panel.export, "download")
        self._table_on = ipywidgets.ToggleButton(
            description=text("panel.table"), tooltip=text("panel.table_help"), icon="table"
        )
        self._table_on.add_class("grpo-lab-table-on")
        self._table_on.observe(lambda _: self._panel.refresh(), "value")
        overlay = ipywidgets.HTML(f"<h4>{escape(text('panel.overlay'))}</h4>")
        lines = [
            self._open,
            overlay,
            self._name,
            _box("bar", [keep, clear]),
            self._kept,
            _box("bar", [export, self._table_on]),
        ]
        return ipywidgets.VBox(lines)

    def _button(self, name: str, action: Callable[[], Any], icon: str) -> ipywidgets.Button:
        words = {"description": text(f"panel.{name}"), "tooltip": text(f"panel.{name}_help")}
        button = ipywidgets.Button(**words, icon=icon, button_style=_LOOKS.get(name, ""), layout={"width": "auto"})
        button.add_class(f"grpo-lab-{name}")
        button.on_click(lambda _: self._try(action))
        return button

    def _turn(self, name: str, override: str) -> None:
        self._about.value = html.prose(text(f"setting.{name}"), KNOBS[name].setting.help, {})
        self._set(override)

    def _set(self, override: str) -> None:
        self._try(self._panel.set, override)

    def _try(self, action: Callable[..., Any], *values: Any) -> None:
        """Do what was pressed; a mistake of the user's is told in the status line, and the inputs go back."""
        if values == ("",):
            return
        try:
            action(*values)
        except GrpoLabError as error:
            self._panel.tell(str(error))


def _css(size: tuple[int, int]) -> str:
    shape = (
        f".grpo-lab-{size[0]}x{size[1]} {{ aspect-ratio: {size[0]} / {size[1]}; }}"  # nothing jumps before it is drawn
    )
    return f"<style>{_STYLE.read_text(encoding='utf-8')}{shape}</style>"


def _words(name: str) -> ipywidgets.HTML:
    words = ipywidgets.HTML()
    words.add_class(f"grpo-lab-{name}")
    return words


def _box(name: str, children: Sequence[Any], kind: Any = ipywidgets.HBox) -> Any:
    box = kind(list(children))
    box.add_class(f"grpo-lab-{name}")
    return box
