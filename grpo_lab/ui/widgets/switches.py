"""A check box for each guard with a sentence on what it does, and on demand its `Stops`, `Costs` and `Hides`."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import ipywidgets

from grpo_lab.analysis.markdown import first_sentence
from grpo_lab.config.schema import Config
from grpo_lab.errors import unknown
from grpo_lab.messages import spoken, text
from grpo_lab.training.guards import GUARDS
from grpo_lab.ui import html
from grpo_lab.ui.described import docstring
from grpo_lab.ui.widgets import parts


class Switches:
    """Check boxes of guards. They call `switched` with a name and whether it is on when a user clicks, not in `show`.

    A guard that a user switches on says below its sentence what it stops.

    A user's own guard, which has no class in GUARDS, gets a switch when a config with it is first shown.
    Raises ConfigError for an unknown name.
    """

    def __init__(self, names: Sequence[str] | None, muted: parts.Muted, switched: Callable[[str, bool], None]) -> None:
        for name in names or ():
            if name not in GUARDS:
                raise unknown("guard", name, GUARDS)
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
        about, (_, rest, sections) = self.about[name], described(name)
        whole = html.fill("prose", "", rest, sections)
        about.value = "" if about.value == whole else whole

    def _clicked(self, name: str, on: bool) -> None:
        if name in GUARDS:
            _, _, sections = described(name)
            self.about[name].value = html.fill("prose", "", "", {"Stops": sections["Stops"]}) if on else ""
        self._switched(name, on)

    def _add(self, names: Sequence[str]) -> None:
        if names:
            self.widget.children = (*self.widget.children, *(self._row(name) for name in names))

    def _row(self, name: str) -> ipywidgets.VBox:
        short = name.rpartition(":")[2]
        box = self.boxes[name] = ipywidgets.Checkbox(description=short, indent=False, layout={"width": "auto"})
        parts.by_user(box, self._muted, partial(self._clicked, name))
        row: list[Any] = [box]
        about = self.about[name] = parts.words("about")
        if name in GUARDS:
            sentence, _, sections = described(name)
            tip = text("guard.about", name=name)
            row.append(parts.button("ask", "?", lambda: self.explain(name), tooltip=tip, layout={"width": "24px"}))
            row.append(
                parts.words("does", html.fill("hinted", sentence, f"{text('guard.Stops')}: {sections['Stops']}"))
            )
        return parts.box(f"guard-{short}", [parts.box("row", row), about], ipywidgets.VBox)


def described(name: str) -> tuple[str, str, dict[str, str]]:
    """The first sentence on a guard, the rest of its description, and its `Stops`, `Costs` and `Hides`."""
    english, sections = docstring(GUARDS[name])
    does = spoken(english)
    sentence = first_sentence(does)
    rest = does.removeprefix(sentence).lstrip(".。 ")
    return sentence, rest, {word: spoken(it) for word, it in sections.items()}
