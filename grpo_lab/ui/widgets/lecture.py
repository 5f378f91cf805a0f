"""The panel for a lecture room: nine failures in teaching order, from recordings, in big type and by single keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Any

import ipywidgets

from grpo_lab.config.catalog import preset, scenario
from grpo_lab.config.schema import Config
from grpo_lab.runs import recordings
from grpo_lab.ui.widgets.keyboard import Keys
from grpo_lab.ui.widgets.messages import text
from grpo_lab.ui.widgets.panel import Panel

SCENARIOS = (
    "bad-batch",
    "train-001",
    "zero-times-infinity",
    "clip-spreads-nan",
    "cuda-001",
    "fp16-adam-epsilon",
    "nan-passes-threshold",
    "verl-nan-logprob",
    "accumulation-zeroed",
)
"""In teaching order: a spike, an explosion, NaN out of finite numbers, its way to the weights, the crash, three that
hide, and one that no guard sees."""
FRAME = "grpo-lab-lecture"
GUARDED = "stable"
_STYLE = Path(__file__).with_name("lecture.css")
HEALTHY = "healthy"


class Lecture:
    """Failures to show one after another: each as it happens (A), and under the guards of `stable` drawn over it (B).

    What has a recording named lecture-<scenario>, and with guards lecture-<scenario>-stable, is replayed at any speed;
    anything can be trained live in the same panel. Keys: 1 to 9 and 0 for the healthy run, space plays and pauses, the
    arrows go step by step, Home and End to the ends, A and B compare, R goes back to the healthy run. No code is seen.
    """

    def __init__(self, scenarios: Sequence[str] = SCENARIOS, runs: str | Path = "runs/lecture") -> None:
        self.scenarios = (HEALTHY, *scenarios)
        self.panel = Panel(recording=_recording(HEALTHY), runs=runs, scale=1.5, wide=True)
        self.name, self.guarded = HEALTHY, False
        self._make_widgets()
        self.show(0)

    def show(self, number: int) -> None:
        """Show a failure, by its place in the order, as it happens; 0 is the healthy run."""
        if number < len(self.scenarios):
            self._present(self.scenarios[number], guarded=False)

    def compare(self, guarded: bool) -> None:
        """The same again: as it happens, or under guards and drawn over that."""
        if not guarded or self.name != HEALTHY:
            self._present(self.name, guarded)

    def play(self) -> None:
        """Play or pause: what is recorded, or the run that is going on."""
        timeline = self.panel.timeline
        if self.panel.running:
            self.panel.toggle()
        elif timeline.playing:
            timeline.pause()
        else:
            timeline.play()

    def move(self, steps: int) -> None:
        """So many steps on, or back."""
        timeline = self.panel.timeline
        timeline.pause()
        timeline.move(timeline.position + steps)

    def reset(self) -> None:
        """Stop whatever goes on, and show the healthy run."""
        self.panel.reset()
        self._live.value = False
        self.show(0)

    def _present(self, name: str, guarded: bool) -> None:
        if self.panel.running:
            self.panel.reset()
        self.name, self.guarded = name, guarded
        self.panel.clear()
        self.panel.choose(self._config())
        if guarded and self._replay(name):
            self.panel.keep(text("lecture.kept"))
        replayed = self._replay(f"{name}-{GUARDED}" if guarded else name)
        self._tell(replayed)
        if replayed and not self._live.value:
            self.panel.timeline.move(0)
            self.panel.timeline.play()

    def _replay(self, name: str) -> bool:
        recorded = _recording(name) in recordings.recording_names()
        if recorded:
            self.panel.open(_recording(name))
        return recorded

    def _config(self) -> Config:
        """What Start trains."""
        if self.name == HEALTHY:
            return preset(GUARDED)
        return scenario(self.name).config(GUARDED if self.guarded else None)

    def _tell(self, replayed: bool) -> None:
        """Say what is shown, and mark its buttons."""
        known = self.name == HEALTHY or self.name in SCENARIOS
        words = text(f"lecture.says.{self.name}") if known else scenario(self.name).title
        if not replayed:
            words = text("lecture.of_your_own", name=words)
        self._says.value = f"<div role='status'>{escape(words)}</div>"
        for name, button in self._buttons.items():
            _mark(button, name == self.name)
        for guarded, button in self._sides.items():
            _mark(button, guarded == self.guarded)
        self._sides[True].disabled = self.name == HEALTHY

    def _make_widgets(self) -> None:
        self._says = ipywidgets.HTML()
        self._says.add_class("grpo-lab-says")
        self._buttons = {name: self._scenario_button(n, name) for n, name in enumerate(self.scenarios)}
        self._sides = {
            guarded: _button(text(f"lecture.{key}"), f"side-{side}", lambda guarded=guarded: self.compare(guarded))
            for guarded, side, key in ((False, "a", "as_it_happens"), (True, "b", "guarded"))
        }
        self._live = ipywidgets.ToggleButton(description=text("lecture.live"), layout={"width": "auto"})
        self._live.add_class("grpo-lab-live")
        self._live.observe(lambda change: self._show_controls(change["new"]), "value")
        order = ipywidgets.HBox([*list(self._buttons.values())[1:], self._buttons[HEALTHY]])
        order.add_class("grpo-lab-order")
        heading = ipywidgets.HBox([self._says, *self._sides.values(), self._live])
        heading.add_class("grpo-lab-heading")
        style = ipywidgets.HTML(f"<style>{_STYLE.read_text(encoding='utf-8')}</style>", layout={"display": "none"})
        self.widget = ipywidgets.VBox([style, order, heading, self.panel.widget, self._make_keys()])
        self.widget.add_class(FRAME)

    def _make_keys(self) -> Keys:
        actions: dict[str, Callable[[], object]] = {
            str(number): lambda number=number: self.show(number) for number in range(10)
        }
        for names, action in (
            ((" ",), self.play),
            (("ArrowLeft",), lambda: self.move(-1)),
            (("ArrowRight",), lambda: self.move(1)),
            (("Home",), lambda: self.move(-self.panel.timeline.length)),
            (("End",), lambda: self.move(self.panel.timeline.length)),
            (("a", "A"), lambda: self.compare(False)),
            (("b", "B"), lambda: self.compare(True)),
            (("r", "R"), self.reset),
        ):
            actions |= dict.fromkeys(names, action)
        legend = {"1–9": "scenario", "0 R": "healthy", "␣": "play", "← →": "step", "Home End": "ends", "A B": "compare"}
        return Keys(actions, [(key, text(f"lecture.key.{what}")) for key, what in legend.items()], FRAME)

    def _scenario_button(self, number: int, name: str) -> ipywidgets.Button:
        short = text(f"lecture.button.{name}") if name in (HEALTHY, *SCENARIOS) else name
        return _button(f"{number} {short}", f"scenario-{number}", lambda: self.show(number))

    def _show_controls(self, live: bool) -> None:
        """The panel's own buttons and settings are for training; a replay has no use for them."""
        (self.widget.add_class if live else self.widget.remove_class)("grpo-lab-training")
        self.panel.timeline.pause()

    def _repr_mimebundle_(self, **keywords: Any) -> Any:
        self.panel.refresh()
        return self.widget._repr_mimebundle_(**keywords)


def _recording(name: str) -> str:
    return f"lecture-{name}"


def _button(words: str, name: str, action: Callable[[], object]) -> ipywidgets.Button:
    button = ipywidgets.Button(description=words, tooltip=words, layout={"width": "auto"})
    button.add_class(f"grpo-lab-{name}")
    button.on_click(lambda _: action())
    return button


def _mark(button: ipywidgets.Button, chosen: bool) -> None:
    """The chosen one differs by more than its colour."""
    button.button_style = "primary" if chosen else ""
    button.style.font_weight = "bold" if chosen else "normal"
