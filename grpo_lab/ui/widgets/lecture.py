"""The panel for a lecture: ten recorded failures in teaching order, in large type, controlled by single keys."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import anywidget
import ipywidgets
import traitlets

from grpo_lab.config.catalog import Heal, preset, scenario
from grpo_lab.config.schema import Config
from grpo_lab.messages import spoken, text, use
from grpo_lab.paths import data_tables
from grpo_lab.ui import html
from grpo_lab.ui.widgets import parts
from grpo_lab.ui.widgets.panel import Panel

SCENARIOS = tuple(data_tables("lecture")["scenarios"])
"""In teaching order."""
KEYS = "0123456789D"
"""The key of each place in the order, from the healthy run on."""
LEGEND = {"1–9 D": "scenario", "0 R": "healthy", "␣": "play", "← →": "step", "Home End": "ends", "A B": "compare"}
"""The keys as people name them, and the word for their action."""
FRAME = "grpo-lab-lecture"
GUARDS = "stable"
HEALTHY = "healthy"
SPEED, FIRST_SPEED = 5, 2
"""Steps a second at the start: sixty steps play in twelve seconds; of a learner's first screen."""
_STYLE = Path(__file__).with_name("lecture.css")


def training(name: str, healed: bool = False) -> Config:
    """The config of a run of the lecture: A, or with `healed` B. Both have the scenario's trial as length and batch."""
    if name == HEALTHY:
        config = preset(GUARDS).with_("run.num_steps=40")
    elif healed:
        config = scenario(name).config(guards=GUARDS, heal=True)
    else:
        config = scenario(name).config().merged(scenario(name).trial)
    return config.with_("run.num_eval=250", "run.threads=1")


def recording(name: str, healed: bool = False) -> str:
    """The name of the recording of such a run."""
    return f"lecture-{name}-healed" if healed else f"lecture-{name}"


class Keyboard(anywidget.AnyWidget):
    """A line that lists the keys. It handles them wherever the focus is inside its frame, and focuses the frame.

    `actions` maps a key as browsers name it ("1", " ", "ArrowLeft") to its action, `legend` a key as people name it to
    its action in words; `frame` is the CSS class of the widget around it. A number box keeps its digits, a slider its
    arrows, a focused button its space.
    """

    _esm = Path(__file__).with_name("keyboard.js")
    _css = Path(__file__).with_name("keyboard.css")
    legend = traitlets.List(traitlets.List(traitlets.Unicode())).tag(sync=True)
    frame = traitlets.Unicode().tag(sync=True)
    focused = traitlets.Bool().tag(sync=True)
    """Whether the frame takes the focus at once; otherwise with a click into it."""
    wanted = traitlets.List(traitlets.Unicode()).tag(sync=True)

    def __init__(
        self, actions: Mapping[str, Callable[[], object]], frame: str, legend: Mapping[str, str], focused: bool
    ) -> None:
        keys = [list(pair) for pair in legend.items()]
        super().__init__(wanted=list(actions), frame=frame, legend=keys, focused=focused)
        self._actions = dict(actions)
        self.on_msg(lambda widget, content, buffers: self.press(str(content.get("key", ""))))

    def press(self, key: str) -> None:
        """Run the action of the key; a key without an action is ignored."""
        if key in self._actions:
            self._actions[key]()


class Lecture:
    """Failures to show in turn: each as it happens (A), and healed, under the guards of `stable`, drawn over it (B).

    Recordings are replayed at any speed; every scenario can be trained live in the same panel. Keys: 1 to 9 and D show
    a failure and 0 the healthy run, space plays and pauses, arrows move one step, Home and End go to the ends, A and B
    compare, R returns to the healthy run. The code is hidden. `language` is `en` or `zh`, by default the one in use.

    With `only`, it is the first screen of a learner: this failure alone, slowly, with a chain of four rows.
    """

    def __init__(self, runs: str | Path = "runs/lecture", language: str | None = None, only: str = "") -> None:
        if language:
            use(language)
        self.name, self.healed, self._only = only or HEALTHY, False, bool(only)
        self.panel = Panel(recording=recording(self.name), runs=runs, scale=1.0 if only else 1.5, grouped=bool(only))
        self.panel.timeline.speed.value = FIRST_SPEED if only else SPEED
        self._says, self._heal = parts.words("says"), parts.words("heal")
        self._buttons = {
            name: _button(f"scenario-{number}", f"{KEYS[number]} {text(f'lecture.button.{name}')}", self.show, number)
            for number, name in enumerate((HEALTHY, *SCENARIOS))
        }
        self._sides = {
            False: _button("side-a", text("lecture.as_it_happens"), self.compare, False),
            True: _button("side-b", text("lecture.healed"), self.compare, True),
        }
        self._live = ipywidgets.ToggleButton(description=text("lecture.live"), layout={"width": "auto"})
        self._live.add_class("grpo-lab-live").observe(lambda change: self._show_controls(change["new"]), "value")
        order = parts.box("order", [*list(self._buttons.values())[1:], self._buttons[HEALTHY]])
        heading = parts.box("heading", [self._says, *self._sides.values(), self._live])
        style = ipywidgets.HTML(f"<style>{_STYLE.read_text(encoding='utf-8')}</style>", layout={"display": "none"})
        children = [style, order, heading, self._heal, self.panel.widget, self._make_keyboard()]
        self.widget = ipywidgets.VBox(children).add_class(FRAME)
        if only:
            self.widget.add_class("grpo-lab-first")
        self._present(self.name, healed=False)

    def show(self, number: int) -> None:
        """Show a failure as it happens, by its place in the order; 0 is the healthy run."""
        self._present((HEALTHY, *SCENARIOS)[number], healed=False)

    def compare(self, healed: bool) -> None:
        """Show the same failure as it happens, or healed and drawn over that."""
        if not healed or self._heals():
            self._present(self.name, healed)

    def play(self) -> None:
        """Play or pause the recording, or the run that is going on."""
        timeline = self.panel.timeline
        if self.panel.running:
            self.panel.toggle()
        elif timeline.playing:
            timeline.pause()
        else:
            timeline.play()

    def move(self, steps: int) -> None:
        """Move forward by so many steps; a negative number moves back. Tokens that are open follow."""
        timeline = self.panel.timeline
        timeline.move(timeline.position + steps)
        step = timeline.screen().step
        if self.panel.tokens_open and not timeline.live and step >= 0:
            self.panel.tokens(step)

    def reset(self) -> None:
        """Stop a live run, and show the healthy run."""
        self.panel.reset()
        self._live.value = False
        self.show(0)

    def _present(self, name: str, healed: bool) -> None:
        if self.panel.running:
            self.panel.reset()
        self.name, self.healed = name, healed
        self.panel.clear()
        self.panel.choose(training(name, healed))
        if healed:
            self.panel.open(recording(name))
            self.panel.keep(text("lecture.as_it_happens"))
        self.panel.open(recording(name, healed))
        first = "first-healed" if healed else "first"
        self._says.value = html.fill("announced", text(f"lecture.says.{first if self._only else name}"))
        self._heal.value = html.fill("healing", *self._heal_in_words())
        for key, button in {**self._buttons, **self._sides}.items():
            chosen = key in (name, healed)  # marked by weight too, not by colour alone
            button.button_style, button.style.font_weight = ("primary", "bold") if chosen else ("", "normal")
        self._sides[True].disabled = not self._heals()
        if not self._live.value:
            self.panel.timeline.move(0)
            self.panel.timeline.play()

    def _heals(self) -> tuple[Heal, ...]:
        """The heals of the scenario shown; B is the run after the first one."""
        return () if self.name == HEALTHY else scenario(self.name).heals

    def _heal_in_words(self) -> tuple[list[tuple[str, str]], str]:
        """The first change that stops the failure of B, the one that heals it, and the reason; nothing for A."""
        if not self.healed:
            return [], ""
        heal, cures = self._heals()[0], scenario(self.name).cures
        stops = [cure for cure in cures[:1] if cure != heal.change]
        changes = [*(("stop", stop) for stop in stops), ("heal", heal.change)]
        said = [(text(f"lecture.{kind}"), ", ".join(change)) for kind, change in changes]
        return said, spoken(heal.why)

    def _make_keyboard(self) -> Keyboard:
        actions: dict[str, Callable[[], object]] = {}
        if not self._only:
            actions |= {key: partial(self.show, n) for n, key in enumerate(KEYS)} | {"R": self.reset}
        actions |= {" ": self.play, "ArrowLeft": lambda: self.move(-1), "ArrowRight": lambda: self.move(1)}
        actions["Home"] = lambda: self.move(-self.panel.timeline.length)
        actions["End"] = lambda: self.move(self.panel.timeline.length)
        actions |= {"A": partial(self.compare, False), "B": partial(self.compare, True)}
        actions |= {key.lower(): action for key, action in actions.items() if key in "ABDR"}
        keys = list(LEGEND.items())[2 * self._only :]
        return Keyboard(actions, FRAME, {key: text(f"lecture.key.{what}") for key, what in keys}, not self._only)

    def _show_controls(self, live: bool) -> None:
        """Show the panel's own buttons and settings, which a replay does not need."""
        (self.widget.add_class if live else self.widget.remove_class)("grpo-lab-training")
        self.panel.timeline.pause()

    def _repr_mimebundle_(self, **keywords: Any) -> Any:
        self.panel.refresh()
        return self.widget._repr_mimebundle_(**keywords)


def _button(name: str, words: str, action: Callable[[Any], None], value: Any) -> ipywidgets.Button:
    """A button that calls an action with a value; its tooltip repeats its words, which may be cut off."""
    return parts.button(name, words, partial(action, value), tooltip=words)
