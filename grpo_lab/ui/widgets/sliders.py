"""The settings of a panel: each a slider and a number box, or a menu, bound to its place in the config."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import ipywidgets

from grpo_lab.config.fields import OneOf, Setting, settings_of
from grpo_lab.config.schema import LIVE_SECTIONS, SECTIONS, Config
from grpo_lab.messages import spoken, text
from grpo_lab.paths import data_tables, rows
from grpo_lab.training.guards import GUARDS
from grpo_lab.ui.widgets import parts


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

    def help(self) -> str:
        """The setting's help in the panel's language."""
        return spoken(self.setting.help)

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
        self.inputs = _menu(name, self.slider) if self.slider.kind == "menu" else _slider_and_box(name, self.slider)
        for each in self.inputs:
            each.tooltip = self.slider.help()
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


def _menu(name: str, slider: Slider) -> tuple[Any, ...]:
    limit = slider.setting.limit
    assert isinstance(limit, OneOf)
    style = {"description_width": "118px"}
    return (ipywidgets.Dropdown(options=limit.names, description=text(f"setting.{name}"), style=style),)
