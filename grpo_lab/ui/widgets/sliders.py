"""The settings of a panel: each a slider and a number box, or a menu, bound to its place in the config."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import ipywidgets

from grpo_lab.config.fields import OneOf, Setting, settings_of
from grpo_lab.config.schema import LIVE_SECTIONS, SECTIONS, Config
from grpo_lab.training.guards import GUARDS
from grpo_lab.ui.widgets.messages import text


class Knob(NamedTuple):
    """One setting: where it lives, and the range of its slider. The number box takes what the config takes."""

    path: str
    kind: str
    """`log`, `linear`, `whole`, or `menu`."""
    low: float = 0.0
    high: float = 1.0
    step: float = 0.01

    @property
    def live(self) -> bool:
        """Whether a running model takes it."""
        return self.path.partition(".")[0] in LIVE_SECTIONS

    @property
    def setting(self) -> Setting:
        """The field of the config, or of a guard."""
        section, *rest = self.path.split(".")
        owner = GUARDS[rest[0]] if section == "guards" else SECTIONS[section]
        return settings_of(owner)[rest[-1]]

    def of(self, config: Config) -> Any:
        """Its value; the default of a guard that is off."""
        section, *rest = self.path.split(".")
        if section == "guards":
            return config.guards.get(rest[0], {}).get(rest[1], self.setting.default)
        return getattr(getattr(config, section), rest[0])


KNOBS = {
    "learning_rate": Knob("optimizer.learning_rate", "log", 1e-7, 1e-1),
    "epsilon": Knob("loss.epsilon", "linear", 0.01, 1, 0.01),
    "delta": Knob("guards.dual_clip.delta", "linear", 1.5, 20, 0.5),
    "beta": Knob("loss.beta", "linear", 0, 1, 0.005),
    "max_grad_norm": Knob("guards.clip_gradients.max_norm", "log", 1e-2, 1e3),
    "temperature": Knob("sampling.temperature", "linear", 0.05, 3, 0.05),
    "num_generations": Knob("data.num_generations", "whole", 2, 32, 1),
    "num_iterations": Knob("loss.num_iterations", "whole", 1, 8, 1),
    "precision": Knob("model.precision", "menu"),
    "num_steps": Knob("run.num_steps", "whole", 1, 500, 1),
}
"""By the names that TRL and the reports use; the µ of the paper is `num_iterations`."""


class Row:
    """One knob on the screen. `changed` is told its name and an override when somebody moves it, not by `show`."""

    def __init__(self, name: str, changed: Callable[[str, str], None]) -> None:
        self.name, self.knob = name, KNOBS[name]
        self._changed, self._showing = changed, False
        self._lock = threading.RLock()  # a slider is moved from one thread, `show` may come from another
        self._inputs = _menu(name, self.knob) if self.knob.kind == "menu" else _slider_and_box(name, self.knob)
        for each in self._inputs:
            each.tooltip = self.knob.setting.help
            each.observe(self._moved, "value")
        when = ipywidgets.HTML(text("panel.live" if self.knob.live else "panel.next"))
        when.add_class("grpo-lab-when")
        self.widget = ipywidgets.HBox([*self._inputs, when])
        self.widget.add_class("grpo-lab-row")
        self.widget.add_class(f"grpo-lab-set-{name}")

    def show(self, config: Config) -> None:
        """Stand where the config does; a value off the slider's range is in the box alone."""
        self._put(self.knob.of(config))

    def _moved(self, change: Any) -> None:
        with self._lock:
            if self._showing:
                return
            value = change["new"]
            if isinstance(value, float) and change["owner"] is self._inputs[0]:
                value = float(f"{value:.3g}")  # a slider's place is no exact number
            self._put(value)
        self._changed(self.name, f"{self.knob.path}={value}")

    def _put(self, value: Any) -> None:
        with self._lock:
            self._showing = True
            try:
                for each in self._inputs:
                    on_slider = hasattr(each, "readout")
                    each.value = min(max(value, self.knob.low), self.knob.high) if on_slider else value
            finally:
                self._showing = False


def _slider_and_box(name: str, knob: Knob) -> tuple[Any, Any]:
    words = {"description": text(f"setting.{name}"), "readout": False, "continuous_update": False}
    wide = {"layout": {"flex": "1 1 180px", "min_width": "180px"}, "style": {"description_width": "118px"}}
    box = ipywidgets.IntText if knob.kind == "whole" else ipywidgets.FloatText
    if knob.kind == "log":
        exponents = {"min": round(math.log10(knob.low)), "max": round(math.log10(knob.high)), "step": 0.05}
        slider: Any = ipywidgets.FloatLogSlider(value=knob.low, **exponents, **words, **wide)
    else:
        kind = ipywidgets.IntSlider if knob.kind == "whole" else ipywidgets.FloatSlider
        slider = kind(value=knob.low, min=knob.low, max=knob.high, step=knob.step, **words, **wide)
    number = box(description=text(f"setting.{name}"), continuous_update=False, layout={"width": "78px"})
    number.add_class("grpo-lab-box")
    return slider, number


def _menu(name: str, knob: Knob) -> tuple[Any, ...]:
    limit = knob.setting.limit
    assert isinstance(limit, OneOf)
    style = {"description_width": "118px"}
    return (ipywidgets.Dropdown(options=limit.names, description=text(f"setting.{name}"), style=style),)
