"""The widgets of a panel and their layout. A click or a change calls a method of the panel by its name."""

import dataclasses
import json
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import anywidget
import ipywidgets
import traitlets

from grpo_lab.analysis.markdown import first_sentence
from grpo_lab.analysis.run_state import Fold, Screen, describe
from grpo_lab.config import algorithms, catalog
from grpo_lab.config.fields import OneOf, Setting, settings_of
from grpo_lab.config.schema import LIVE_SECTIONS, SECTIONS, Config
from grpo_lab.errors import check_known
from grpo_lab.events import Event, Stepped
from grpo_lab.messages import spoken, text
from grpo_lab.paths import data_tables, rows
from grpo_lab.training.guards import GUARDS
from grpo_lab.ui import html
from grpo_lab.ui.described import docstring
from grpo_lab.ui.widgets import parts
from grpo_lab.ui.widgets.microscope import Microscope

SPEEDS = (0.5, 1, 2, 5, 10, 20, 50)
"""Steps a second."""


class History:
    """The events of a run, and its screen after any step; a view of a run that goes on. `came` is called after each."""

    def __init__(self, events: Iterable[Event] = (), came: Callable[[], None] = lambda: None) -> None:
        self._came, self._lock = came, threading.RLock()
        self.events: list[Event] = []
        self._steps: list[int] = []
        """The place of each Stepped among the events."""
        self._fold, self._folded = Fold(), 0
        for event in events:
            self._add(event)

    def __len__(self) -> int:
        """The number of steps."""
        return len(self._steps)

    def show(self, event: Event) -> None:
        """Take the next event of a run that goes on."""
        with self._lock:
            self._add(event)
        self._came()

    def screen(self, steps: int | None = None) -> Screen:
        """The state after so many steps; None: after all events, with those that follow the last step."""
        with self._lock:
            end = len(self.events)
            if steps is not None and steps < len(self._steps):
                end = self._steps[steps - 1] + 1 if steps else self._steps[0]
            if end < self._folded:
                self._fold, self._folded = Fold(), 0
            for event in self.events[self._folded : end]:
                self._fold.add(event)
            self._folded = end
            return self._fold.screen()

    def step(self, near: float) -> Stepped | None:
        """The step with this number, or the nearest one; None before the first."""
        steps = [event for event in reversed(self.events) if isinstance(event, Stepped)]
        return min(steps, key=lambda event: abs(event.step - near), default=None)

    def _add(self, event: Event) -> None:
        if isinstance(event, Stepped):
            self._steps.append(len(self.events))
        self.events.append(event)


class Timeline:
    """A slider over the steps of a run that is over, buttons to play them and `more`, a speed; calls `moved`."""

    def __init__(self, muted: parts.Muted, moved: Callable[[], None], *more: ipywidgets.Button) -> None:
        self._moved, self._muted, self._lock = moved, muted, threading.RLock()
        self._exact, self._ticked, self.playing = 0.0, 0.0, False
        self.history, self.live = History(), False
        self.length = 0
        """The number of steps of a run that is over."""
        self.whole = self.history.screen()
        style = {"description_width": "initial"}
        layout = {"flex": "1 1 200px", "min_width": "160px"}
        words = {"description": text("panel.time"), "tooltip": text("panel.time_help")}
        self.slider = ipywidgets.IntSlider(0, 0, 0, layout=layout, style=style, **words).add_class("grpo-lab-time")
        parts.by_user(self.slider, muted, self.move)
        play = {"tooltip": text("panel.play_help")}
        self._button = parts.button("play", "", lambda: self.pause() if self.playing else self.play(), **play)
        speeds = [(text("panel.steps_a_second", speed=f"{speed:g}"), speed) for speed in SPEEDS]
        words = {"description": text("panel.speed"), "style": style, "layout": {"width": "190px"}}
        self.speed = ipywidgets.Dropdown(options=speeds, value=2, **words).add_class("grpo-lab-speed")
        self._inputs = [self._button, self.slider, self.speed, *more]
        self.widget = parts.box("row", self._inputs)
        self.load(self.history)

    def load(self, history: History, live: bool = False) -> None:
        """Show all of a run; one that is `live` is followed, and cannot be moved in."""
        with self._lock:
            self.history, self.live = history, live
            self.length = 0 if live else len(history)
            self.whole = history.screen()
            self._exact = float(self.length)
            self._set_playing(False)
            self._place()
            for each in self._inputs:
                each.disabled = not self.length
            self.widget.layout.visibility = "hidden" if live else "visible"

    @property
    def position(self) -> int:
        """Number of steps shown."""
        return int(self._exact)

    def screen(self) -> Screen:
        """The state of the run after the steps shown."""
        return self.history.screen(None if self.live else self.position)

    def move(self, position: int) -> None:
        """Stop playing, and show the first `position` steps; with the last step also the events after it."""
        with self._lock:
            self._set_playing(False)
            self._exact = float(min(max(0, position), self.length))
            self._place()
        self._moved()

    def play(self, speed: float | None = None) -> None:
        """Show one step after another, from the first one if all are shown; `speed` in steps a second."""
        if speed is not None:
            self.speed.value = min(SPEEDS, key=lambda each: abs(each - speed))
        with self._lock:
            if self.position >= self.length:
                self._exact = 0.0
            self._set_playing(self.length > 0)
            self._ticked = time.monotonic()
        self._moved()

    def pause(self) -> None:
        """Stop playing."""
        self._set_playing(False)

    def tick(self) -> bool:
        """While playing, advance by the time since the last tick; return whether the position changed."""
        with self._lock:
            if not self.playing:
                return False
            now, before = time.monotonic(), self.position
            self._exact = min(self._exact + (now - self._ticked) * float(self.speed.value or 1), float(self.length))
            self._ticked = now
            self._place()
            if self.position >= self.length:
                self._set_playing(False)
            return self.position != before

    def _set_playing(self, playing: bool) -> None:
        self.playing = playing
        self._button.icon = "pause" if playing else "play"
        self._button.description = text("panel.pause_replay" if playing else "panel.play")

    def _place(self) -> None:
        with self._muted:
            self.slider.max = self.length
            self.slider.value = self.position


class Slider(NamedTuple):
    """One setting: its path in the config and its slider's range. The number box takes any valid value."""

    path: str
    kind: str
    """`log`, `linear`, `whole`, or `menu`."""
    low: float
    high: float
    step: float

    @property
    def setting(self) -> Setting:
        """The field of the config, or of a guard."""
        section, *rest = self.path.split(".")
        owner = GUARDS[rest[0]] if section == "guards" else SECTIONS[section]
        return settings_of(owner)[rest[-1]]

    def of(self, config: Config) -> Any:
        """The setting's value in a config; the default of a guard that is off."""
        section, *rest = self.path.split(".")
        if section == "guards":
            return config.guards.get(rest[0], {}).get(rest[1], self.setting.default)
        return getattr(getattr(config, section), rest[0])


SLIDERS = rows(Slider, data_tables("sliders"))
"""By the names that TRL and the reports use; the µ of the paper is `num_iterations`."""


class SliderRow:
    """A slider on the screen. It calls `changed` with its name and an override when a user moves it, not in `show`."""

    def __init__(self, name: str, muted: parts.Muted, changed: Callable[[str, str], None]) -> None:
        self.name, self.slider = name, SLIDERS[name]
        self._changed, self._muted = changed, muted
        self.inputs = _choices(name, self.slider) if self.slider.kind == "menu" else _slider_and_box(name, self.slider)
        for each in self.inputs:
            each.tooltip = spoken(self.slider.setting.help)
            parts.by_user(each, muted, self._moved)
        key = "live" if self.slider.path.partition(".")[0] in LIVE_SECTIONS else "next"
        when = parts.words("when", text(f"panel.{key}"))
        when.tooltip = text(f"panel.{key}_help")
        self.widget = parts.box("row", [*self.inputs, when]).add_class(f"grpo-lab-set-{name}")

    def show(self, config: Config) -> None:
        """Show the config's value."""
        self._put(self.slider.of(config))

    def _moved(self, value: Any) -> None:
        if isinstance(value, float) and value != self.inputs[-1].value:
            value = float(f"{value:.3g}")  # a slider's position is no exact number
        self._put(value)
        self._changed(self.name, f"{self.slider.path}={value}")

    def _put(self, value: Any) -> None:
        """Show the value; one outside the slider's range appears in the box alone."""
        with self._muted:
            for each in self.inputs:
                on_slider = hasattr(each, "readout")
                each.value = min(max(value, self.slider.low), self.slider.high) if on_slider else value


def _slider_and_box(name: str, slider: Slider) -> tuple[Any, ...]:
    words = {"description": text(f"setting.{name}"), "readout": False, "continuous_update": False}
    wide = {"layout": {"flex": "1 1 180px", "min_width": "180px"}, "style": {"description_width": "118px"}}
    low, high, number = slider.low, slider.high, ipywidgets.IntText if slider.kind == "whole" else ipywidgets.FloatText
    if slider.kind == "log":
        exponents = {"min": round(math.log10(low)), "max": round(math.log10(high)), "step": 0.05}
        handle: Any = ipywidgets.FloatLogSlider(value=low, **exponents, **words, **wide).add_class("grpo-lab-log")
    else:
        kind = ipywidgets.IntSlider if slider.kind == "whole" else ipywidgets.FloatSlider
        handle = kind(value=low, min=low, max=high, step=slider.step, **words, **wide)
    box = number(description=text(f"setting.{name}"), continuous_update=False, layout={"width": "78px"})
    return handle, box.add_class("grpo-lab-box")


def _choices(name: str, slider: Slider) -> tuple[Any, ...]:
    limit = slider.setting.limit
    assert isinstance(limit, OneOf)
    style = {"description_width": "118px"}
    return (ipywidgets.Dropdown(options=limit.names, description=text(f"setting.{name}"), style=style),)


STYLE = {"description_width": "84px"}
MODELS = ("tiny", "smollm2-135m")


class Sources:
    """Menus that make a config. They call `chosen` with a whole config and `changed` with overrides."""

    def __init__(self, muted: parts.Muted, chosen: Callable[[Config], None], changed: Callable[..., None]) -> None:
        self._chosen, self._changed, self._muted = chosen, changed, muted
        self._described: tuple[str, str] | None = None
        self.preset = _menu("preset", "panel.none", catalog.preset_names())
        self.scenario = _menu("scenario", "panel.none", catalog.scenario_names())
        self.algorithm = _menu("algorithm", "panel.own_formulas", algorithms.algorithm_names())
        self._loss: dict[str, Any] = {}
        self.guards = _menu("guards_of", "panel.own_guards", catalog.preset_names())
        words = {"style": STYLE, "continuous_update": False}
        names = {"description": text("setting.model"), "tooltip": text("panel.model_help")}
        self.model = ipywidgets.Combobox(options=MODELS, ensure_option=False, **names, **words)
        self.seed = ipywidgets.BoundedIntText(0, 0, 2**31 - 1, description=text("setting.seed"), **words)
        self._about = parts.words("about")
        parts.by_user(self.scenario, muted, self._choose_scenario)
        for menu in (self.preset, self.guards):
            parts.by_user(menu, muted, lambda _: self._choose())
        parts.by_user(self.algorithm, muted, self._take_up)
        parts.by_user(self.model.add_class("grpo-lab-set-model"), muted, partial(self._override, "model.name"))
        parts.by_user(self.seed.add_class("grpo-lab-set-seed"), muted, partial(self._override, "run.seed"))
        self.widgets = [*(self.preset, self.scenario, self.algorithm, self.guards, self.model, self.seed, self._about)]

    def show(self, config: Config, of_preset: str = "", of_scenario: str = "", of_guards: str | None = None) -> None:
        """Show the config's model and seed, and the names of its parts; other names stay."""
        with self._muted:
            if of_preset or of_scenario:
                self.preset.value, self.scenario.value = of_preset, of_scenario
            if of_guards is not None:
                self.guards.value = of_guards
            self.model.value, self.seed.value = config.model.name, config.run.seed
            self._loss = dataclasses.asdict(config.loss)
            self.algorithm.value = algorithms.algorithm_of(self._loss)
            self.algorithm.tooltip = about_algorithm(self.algorithm.value)
        self._describe()

    def _choose_scenario(self, name: str) -> None:
        if name:
            with self._muted:
                self.preset.value = catalog.scenario(name).preset
        self._choose()

    def _choose(self) -> None:
        config = config_of(self.scenario.value or None, self.preset.value or None, self.guards.value or None)
        self._describe()
        self._chosen(config.with_(f"run.seed={self.seed.value}"))

    def _take_up(self, algorithm: str) -> None:
        """Change the formulas to those of an algorithm, or go back to those of scenario and preset."""
        if not algorithm:
            self._choose()
            return
        loss = self._loss | algorithms.settings_for(algorithm, self._loss)
        found = [(name, value) for name, value in loss.items() if self._loss[name] != value]
        self._changed(*(f"loss.{name}={'none' if value is None else value}" for name, value in found))
        self._described = None
        self._about.value = html.fill("prose", algorithm, about_algorithm(algorithm))

    def _override(self, path: str, value: object) -> None:
        if str(value):
            self._changed(f"{path}={value}")

    def _describe(self) -> None:
        """Describe the chosen scenario or preset; files are read only when the choice changes."""
        names = (str(self.preset.value), str(self.scenario.value))
        if names == self._described:
            return
        self._described = names
        found = catalog.scenario(names[1]) if names[1] else catalog.load_preset(names[0]) if names[0] else None
        self._about.value = html.fill("prose", found.name, found.title) if found else ""


def about_algorithm(name: str) -> str:
    """An algorithm's title and what differs from GRPO, in the panel's language; for "" the help of the menu."""
    if not name:
        return text("panel.algorithm_help")
    found = algorithms.algorithm(name)
    return spoken(f"{found.title}. {found.differs}")


def config_of(base: str | Config | None, preset: str | None, guards: str | tuple[str, ...] | None) -> Config:
    """The config of a scenario, a whole config or a preset, with these guards where any are given."""
    if isinstance(base, str):
        return catalog.scenario(base).config(guards, preset)
    config = base or catalog.preset(preset or "stable")
    if guards is None:
        return config
    table = catalog.preset(guards).guards if isinstance(guards, str) else {name: {} for name in guards}
    return config.with_guards(table)


def _menu(name: str, nothing: str, names: list[str]) -> ipywidgets.Dropdown:
    """A menu of names, the first of which stands for none."""
    words = {"description": text(f"setting.{name}"), "tooltip": text(f"panel.{name}_help"), "style": STYLE}
    options = [(text(nothing), ""), *((each, each) for each in names)]
    return ipywidgets.Dropdown(options=options, value="", **words).add_class(f"grpo-lab-set-{name}")


class Switches:
    """Check boxes of guards. They call `switched` with a name and whether it is on when a user clicks, not in `show`.

    A guard that a user switches on says below its sentence what it stops and costs.

    A user's own guard, which has no class in GUARDS, gets a switch when a config with it is first shown.
    Raises ConfigError for an unknown name.
    """

    def __init__(self, names: Sequence[str] | None, muted: parts.Muted, switched: Callable[[str, bool], None]) -> None:
        check_known("guard", names or (), GUARDS)
        self._switched, self._muted = switched, muted
        self.boxes: dict[str, ipywidgets.Checkbox] = {}
        self.about: dict[str, ipywidgets.HTML] = {}
        self.widget = parts.box("switches", (), ipywidgets.VBox)
        self._add(list(GUARDS) if names is None else names)

    def show(self, config: Config) -> None:
        """Check the boxes of the config's guards."""
        self._add([name for name in config.guards if name not in self.boxes and name not in GUARDS])
        for name, box in self.boxes.items():
            box.value = name in config.guards

    def explain(self, name: str) -> None:
        """Show the rest of the guard's description, or hide it again."""
        about, (_, rest, sections) = self.about[name], about_guard(name)
        whole = html.fill("prose", "", rest, sections)
        about.value = "" if about.value == whole else whole

    def _clicked(self, name: str, on: bool) -> None:
        if name in GUARDS:
            shown = {word: said for word, said in about_guard(name)[2].items() if word in ("Stops", "Costs")}
            self.about[name].value = html.fill("prose", "", "", shown) if on else ""
        self._switched(name, on)

    def _add(self, names: Sequence[str]) -> None:
        self.widget.children = (*self.widget.children, *(self._row(name) for name in names))

    def _row(self, name: str) -> ipywidgets.VBox:
        short = name.rpartition(":")[2]
        box = self.boxes[name] = ipywidgets.Checkbox(description=short, indent=False, layout={"width": "auto"})
        parts.by_user(box, self._muted, partial(self._clicked, name))
        row: list[Any] = [box]
        about = self.about[name] = parts.words("about")
        if name in GUARDS:
            sentence, _, sections = about_guard(name)
            tip = text("guard.about", name=name)
            row.append(parts.button("ask", "?", lambda: self.explain(name), tooltip=tip, layout={"width": "24px"}))
            stops = f"{text('guard.Stops')}: {sections['Stops']}"
            row.append(parts.words("does", html.fill("hinted", sentence, stops)))
        return parts.box(f"guard-{short}", [parts.box("row", row), about], ipywidgets.VBox)


def about_guard(name: str) -> tuple[str, str, dict[str, str]]:
    """The first sentence on a guard, the rest of its description, and its `Stops`, `Costs` and `Hides`."""
    english, sections = docstring(GUARDS[name])
    does = spoken(english)
    sentence = first_sentence(does)
    rest = does.removeprefix(sentence).lstrip(".。 ")
    return sentence, rest, {word: spoken(it) for word, it in sections.items()}


_BAR = {
    "start": "play",
    "go_on": "repeat",
    "pause": "pause",
    "step": "step-forward",
    "stop": "stop",
    "reset": "refresh",
}
"""The buttons above the figure with their icons; each calls the method of its name, and `pause` calls `toggle`."""
_ICONS = _BAR | {"healthy": "heart", "keep": "clone", "clear": "eraser", "export": "download", "fork": "code-fork"}
_LOOKS = {"start": "primary", "stop": "danger"}
_PACES = (10.0, 5.0, 2.0, 1.0, 0.5)
"""Steps a second to choose from."""
_CSS = Path(__file__).with_name("panel.css")


class BrowserPart(anywidget.AnyWidget):
    """The invisible part in the browser: scrolling into view, alternative text, values of sliders, clicks, theme."""

    _esm = Path(__file__).with_name("panel.js")
    alt = traitlets.Unicode().tag(sync=True)
    """The alternative text of the panel's picture."""
    clicked = traitlets.Dict().tag(sync=True)
    """The last click on a picture: its `half`, `curves` or `chain`, `x` and `y` from its upper left corner as fractions
    of its size, and `n`, the number of clicks so far. An arrow key on the curves gives `by`, -1 or 1, for x and y."""
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
        check_known("setting of a panel", controls or (), SLIDERS)
        self._call, self._muted, set_ = call, parts.Muted(), partial(call, "set")
        self.rows = [SliderRow(name, self._muted, self._slide) for name in (SLIDERS if controls is None else controls)]
        self.switches = Switches(guards, self._muted, lambda name, on: set_(f"guards.{name}={'on' if on else 'off'}"))
        self.sources = Sources(self._muted, partial(call, "choose"), set_)
        self.timeline = Timeline(self._muted, partial(call, "refresh"), self._button("fork", "fork"))
        self.browser, self.microscope = BrowserPart(), Microscope(partial(call, "refresh"))
        self.curves, self.chain = map(_picture, ("plot", "chain"), sizes, first)
        self._buttons = {name: self._button(name, {"pause": "toggle"}.get(name, name)) for name in _BAR}
        menu, looks = ipywidgets.Dropdown, {"style": {"description_width": "initial"}, "options": _paces(pace)}
        self._pace = self._input(menu, "pace", "pace-menu", partial(call, "pace"), value=pace, **looks)
        opened = {"style": STYLE, "options": [("", "")]}
        self._open = self._input(menu, "open", "open", lambda run: run and call("open", run), **opened)
        switch = ipywidgets.ToggleButton
        self._table_on = self._input(switch, "table", "table-on", lambda _: call("refresh"), icon="table")
        self.name = ipywidgets.Text(value="A", layout={"width": "220px"}, description=text("panel.name"), style=STYLE)
        self._about, self._kept, self._broken = parts.words("about"), parts.words("kept"), ipywidgets.HTML()
        self._status, self._samples, self._acted = map(parts.words, ("status", "samples", "guards"))
        self._table, self.anatomy, self._answers = map(parts.words, ("table", "opened", "answers"))
        self._banner = parts.box("banner", [self._broken, self._button("healthy", "healthy")], ipywidgets.VBox)
        self._banner.layout.display = "none"
        # The style sheet has the shapes of the pictures, so that nothing moves when the first frames come.
        shapes = "".join(f".grpo-lab-{w}x{h} {{ aspect-ratio: {w} / {h}; flex: {w} 1 0; }}" for w, h in sizes)
        gone = f".grpo-lab-panel {{ --gone: {json.dumps(text('panel.gone'), ensure_ascii=False)} }}"
        style = ipywidgets.HTML(f"<style>{_CSS.read_text(encoding='utf-8')}{shapes}{gone}</style>")
        style.layout.display = "none"
        tabs = parts.box("controls", [self._tabs(bool(guards))], ipywidgets.VBox)
        below = parts.box("below", [self._banner, self._table, self._acted, self._samples], ipywidgets.VBox)
        rows = [
            *(style, parts.box("bar", [*self._buttons.values(), self._pace]), self._status),
            *(parts.box("figure", [self.curves, self.chain]), self.timeline.widget, self._answers),
            *(self.anatomy, self.microscope.widget, parts.box("columns", [tabs, below]), self.browser),
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
        self.name.value = next(free, "Z")

    def show_words(self, screen: Screen, paused: bool, own: str, note: str, kept: Mapping[str, Screen]) -> None:
        """Update status, banner, samples, guards that acted and, where it is open, the table."""
        self._show_paused(paused)
        self._status.value = html.status(screen, own, note)
        self.browser.alt = describe(screen)
        broken = html.banner(screen)
        self._broken.value = broken or self._broken.value
        self._banner.layout.display = "flex" if broken else "none"
        self._answers.value = answers = html.answers(screen, kept)
        self._samples.value = "" if answers else html.samples(screen)
        self._acted.value = html.guards(screen)
        self._table.value = html.numbers(screen) if self._table_on.value else ""

    def _show_paused(self, paused: bool) -> None:
        self._buttons["pause"].description = text("panel.resume" if paused else "panel.pause")
        self._buttons["pause"].icon = "play" if paused else "pause"

    def _tabs(self, guards: bool) -> ipywidgets.Tab:
        """The tabs that have content; guards that a lab asks for are seen first, and without sliders the last tab."""
        overlay = ipywidgets.HTML(html.fill("heading", text("panel.overlay")))
        keep = self._button("keep", "keep", lambda: (self.name.value,))
        looks = {"value": True, "indent": False, "layout": {"width": "auto"}}
        ghost = self._input(ipywidgets.Checkbox, "ghost", "ghost", partial(self._call, "ghost"), **looks)
        keeping = parts.box("bar", [keep, self._button("clear", "clear"), ghost])
        exporting = parts.box("bar", [self._button("export", "export"), self._table_on])
        tabs = {"settings": [*(row.widget for row in self.rows), self._about]} if self.rows else {}
        tabs |= {"guards": [self.switches.widget]} if self.switches.widget.children else {}
        tabs |= {"source": self.sources.widgets}
        tabs |= {"runs": [self._open, overlay, self.name, keeping, self._kept, exporting]}
        titles = [text(f"panel.tab_{name}") for name in tabs]
        pages = [ipywidgets.VBox(children) for children in tabs.values()]
        opened = "guards" if guards else "settings" if self.rows else "runs"
        return ipywidgets.Tab(pages, titles=titles, selected_index=list(tabs).index(opened))

    def _input(self, kind: Any, name: str, css: str, act: Callable[[Any], object], **looks: Any) -> Any:
        """An input with the texts panel.<name> and panel.<name>_help, which acts with each value by a user."""
        made = kind(description=text(f"panel.{name}"), tooltip=text(f"panel.{name}_help"), **looks)
        parts.by_user(made, self._muted, act)
        return made.add_class(f"grpo-lab-{css}")

    def _button(self, name: str, method: str, values: Callable[[], tuple[Any, ...]] = tuple) -> ipywidgets.Button:
        looks = {"tooltip": text(f"panel.{name}_help"), "icon": _ICONS[name], "button_style": _LOOKS.get(name, "")}
        return parts.button(name, text(f"panel.{name}"), lambda: self._call(method, *values()), **looks)

    def _slide(self, name: str, override: str) -> None:
        self._about.value = html.fill("prose", text(f"setting.{name}"), spoken(SLIDERS[name].setting.help))
        self._call("set", override)


def _paces(pace: float) -> list[tuple[str, float]]:
    """The options of the menu, full speed first, with this pace among them."""
    steps = sorted({*_PACES, pace} - {0}, reverse=True)
    return [(text("panel.full_speed"), 0.0), *((text("panel.steps_a_second", speed=f"{n:g}"), n) for n in steps)]


def _picture(name: str, size: tuple[int, int], first: bytes) -> ipywidgets.Image:
    picture = ipywidgets.Image(value=first, format="png", layout={"max_width": f"{size[0]}px"})
    return picture.add_class(f"grpo-lab-{name}").add_class(f"grpo-lab-{size[0]}x{size[1]}")
