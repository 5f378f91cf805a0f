"""Where a run begins: a preset, a scenario on it, whose guards, which model and seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ipywidgets

from grpo_lab.config.catalog import load_preset, preset_names, scenario, scenario_names
from grpo_lab.config.catalog import preset as preset_of
from grpo_lab.config.schema import Config
from grpo_lab.ui.widgets import html
from grpo_lab.ui.widgets.messages import text

_STYLE = {"description_width": "84px"}
_OWN = ""
MODELS = ("tiny", "smollm2-135m")


class Sources:
    """Menus that make a config. `chosen` is told a whole config, `changed` an override."""

    def __init__(self, chosen: Callable[[Config], None], changed: Callable[[str], None]) -> None:
        self._chosen, self._changed, self._showing = chosen, changed, False
        self._told: tuple[Any, Any] | None = None
        nothing = (text("panel.none"), "")
        self.preset = _menu("preset", [nothing, *((name, name) for name in preset_names())])
        self.scenario = _menu("scenario", [nothing, *((name, name) for name in scenario_names())])
        guards = [(text("panel.own_guards"), _OWN), *((name, name) for name in preset_names())]
        self.guards = _menu("guards_of", guards)
        words = {"style": _STYLE, "continuous_update": False}
        self.model = ipywidgets.Combobox(
            options=MODELS,
            ensure_option=False,
            description=text("setting.model"),
            tooltip=text("panel.model_help"),
            **words,
        )
        self.model.add_class("grpo-lab-set-model")
        self.seed = ipywidgets.BoundedIntText(0, 0, 2**31 - 1, description=text("setting.seed"), **words)
        self.seed.add_class("grpo-lab-set-seed")
        self._story = ipywidgets.HTML()
        self._story.add_class("grpo-lab-about")
        for menu in (self.preset, self.scenario, self.guards):
            menu.observe(self._choose, "value")
        self.model.observe(lambda change: self._say("model.name", change), "value")
        self.seed.observe(lambda change: self._say("run.seed", change), "value")
        self.widgets = [self.preset, self.scenario, self.guards, self.model, self.seed, self._story]

    def show(self, config: Config, of_preset: str = "", of_scenario: str = "", of_guards: str | None = None) -> None:
        """Stand as the config does; a name stays where none is given."""
        self._showing = True
        try:
            if of_preset or of_scenario:
                self.preset.value, self.scenario.value = of_preset, of_scenario
            if of_guards is not None:
                self.guards.value = of_guards
            self.model.value, self.seed.value = config.model.name, config.run.seed
        finally:
            self._showing = False
        self._tell()

    def _choose(self, change: Any) -> None:
        if self._showing:
            return
        if self.scenario.value and change["owner"] is self.scenario:
            self._quietly(self.preset, scenario(self.scenario.value).preset)
        if self.scenario.value:
            config = scenario(self.scenario.value).config(self.guards.value or None, self.preset.value or None)
        else:
            config = preset_of(self.preset.value or "stable")
            if self.guards.value:
                config = config.with_guards(preset_of(self.guards.value).guards)
        self._tell()
        self._chosen(config.with_(f"run.seed={self.seed.value}"))

    def _say(self, path: str, change: Any) -> None:
        if not self._showing and str(change["new"]):
            self._changed(f"{path}={change['new']}")

    def _quietly(self, menu: ipywidgets.Dropdown, value: str) -> None:
        self._showing = True
        try:
            menu.value = value
        finally:
            self._showing = False

    def _tell(self) -> None:
        """What the chosen scenario or preset is; files are read only when another is chosen."""
        names = (self.preset.value, self.scenario.value)
        if names == self._told:
            return
        self._told = names
        found: Any = None
        if self.scenario.value:
            found = scenario(self.scenario.value)
        elif self.preset.value:
            found = load_preset(self.preset.value)
        self._story.value = html.prose(found.name, found.title, {}) if found else ""


def config_of(base: str | Config | None, preset: str | None, guards: str | tuple[str, ...] | None) -> Config:
    """What a panel begins with: a scenario, a whole config or a preset; with these guards, if any are given."""
    if isinstance(base, str):
        return scenario(base).config(guards, preset)
    config = base or preset_of(preset or "stable")
    if guards is None:
        return config
    table = preset_of(guards).guards if isinstance(guards, str) else {name: {} for name in guards}
    return config.with_guards(table)


def _menu(name: str, options: list[tuple[str, str]]) -> ipywidgets.Dropdown:
    words = {"description": text(f"setting.{name}"), "tooltip": text(f"panel.{name}_help"), "style": _STYLE}
    menu = ipywidgets.Dropdown(options=options, value=options[0][1], **words)
    menu.add_class(f"grpo-lab-set-{name}")
    return menu
