"""The widgets of a panel and their layout: pictures and words that a run changes, and the inputs beside them."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import ipywidgets

from grpo_lab.analysis.run_state import Screen
from grpo_lab.analysis.screen_words import describe
from grpo_lab.ui.widgets import html, parts
from grpo_lab.ui.widgets.browser_part import BrowserPart
from grpo_lab.ui.widgets.inputs import Inputs
from grpo_lab.ui.widgets.timeline import Timeline

_CSS = Path(__file__).with_name("panel.css")


class ControlsView:
    """Pictures, texts and inputs of a panel. Raises ConfigError for an unknown slider.

    A click calls `call` with the name of a method and its arguments. `sizes` are those of the pictures of curves and
    chain; a page that still loads shows those of `first`.
    """

    def __init__(
        self,
        call: Callable[..., None],
        controls: Sequence[str] | None,
        guards: Sequence[str] | None,
        sizes: Sequence[tuple[int, int]],
        first: Sequence[bytes] = (b"", b""),
        pace: float = 0,
    ) -> None:
        self.inputs = Inputs(call, controls, guards, pace)
        self.image, self._chain = map(_picture, ("plot", "chain"), sizes, first)
        self.browser = BrowserPart()
        self._status, self._samples, self._acted = map(parts.words, ("status", "samples", "guards"))
        self._table = parts.words("table")
        self.timeline = Timeline(partial(call, "refresh"))
        style = ipywidgets.HTML(_css(sizes), layout={"display": "none"})
        figure = parts.box("figure", [self.image, self._chain])
        below = parts.box("below", [self.inputs.banner, self._table, self._acted, self._samples], ipywidgets.VBox)
        columns = parts.box("columns", [self.inputs.tabs, below])
        rows = [style, self.inputs.bar, self._status, figure, self.timeline.widget, columns, self.browser]
        self.widget = parts.box("panel", rows, ipywidgets.VBox)

    def show_running(self, running: bool, paused: bool, can_go_on: bool) -> None:
        """Enable the buttons that can be pressed, here and for the keys of the browser."""
        self.browser.running = running
        self.inputs.show_running(running, paused, can_go_on)

    def show_pictures(self, curves: bytes, chain: bytes) -> None:
        """Replace the two pictures."""
        self.image.value, self._chain.value = curves, chain

    def show_words(self, screen: Screen, own: str, note: str) -> None:
        """Update status, banner, samples, guards that acted and, where it is open, the table."""
        self._status.value = html.status(screen, own, note)
        self.browser.alt = describe(screen)
        self.inputs.show_banner(html.banner(screen))
        self._samples.value = html.samples(screen)
        self._acted.value = html.guards(screen)
        self._table.value = html.numbers(screen) if self.inputs.table_on.value else ""


def _picture(name: str, size: tuple[int, int], first: bytes) -> ipywidgets.Image:
    picture = ipywidgets.Image(value=first, format="png", layout={"max_width": f"{size[0]}px"})
    return picture.add_class(f"grpo-lab-{name}").add_class(f"grpo-lab-{size[0]}x{size[1]}")


def _css(sizes: Sequence[tuple[int, int]]) -> str:
    """The style sheet, with the shapes of the pictures, so that nothing moves when the first frames come."""
    shapes = "".join(f".grpo-lab-{w}x{h} {{ aspect-ratio: {w} / {h}; flex: {w} 1 0; }}" for w, h in sizes)
    return f"<style>{_CSS.read_text(encoding='utf-8')}{shapes}</style>"
