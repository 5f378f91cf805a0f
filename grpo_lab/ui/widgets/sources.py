"""The starting point of a run: a preset, a scenario on it, the algorithm, the guards, the model and the seed."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import ipywidgets

from grpo_lab.config import algorithms, catalog
from grpo_lab.config.schema import Config
from grpo_lab.messages import spoken, text
from grpo_lab.ui import html
from grpo_lab.ui.widgets import parts

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
            self.algorithm.tooltip = described(self.algorithm.value)
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
        self._about.value = html.fill("prose", algorithm, described(algorithm))

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


def described(name: str) -> str:
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
