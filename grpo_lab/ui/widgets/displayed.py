"""How a panel appears in a notebook's cell: as widgets, as a picture, or in words."""

from typing import Any

from grpo_lab.analysis.screen_words import describe
from grpo_lab.runs import child_pool
from grpo_lab.runs.session import Session
from grpo_lab.ui.widgets import html, notebook_display
from grpo_lab.ui.widgets.live import LiveFigure
from grpo_lab.ui.widgets.render_state import RenderState


class Displayed:
    """The part of a panel that IPython asks for its representation."""

    session: Session | None
    widget: Any
    _watched: bool
    _render_state: RenderState
    _place: notebook_display.Place

    @property
    def running(self) -> bool:
        """Whether a run of this panel is going on."""
        raise NotImplementedError

    def _figure(self) -> str:
        screens = self._render_state.screens()
        return html.figure(LiveFigure().both(*screens), screens[0])

    def _show(self) -> None:
        """Show the panel in the cell that runs."""
        self._place.show(self._repr_mimebundle_(), self._figure() if self.session and not self.running else "")

    def _ipython_display_(self) -> None:
        if not self._watched:
            raise NotImplementedError("IPython then asks for the bundle")
        self._show()

    def _repr_mimebundle_(self, **keywords: Any) -> Any:
        words = {"text/plain": f"Panel: {describe(self._render_state.screens()[0])}"}
        if self._watched:
            child_pool.warm_up()
            self._render_state.refresh()
            return {**(self.widget._repr_mimebundle_(**keywords) or {}), **words}
        return words | ({"text/html": self._figure()} if self.session else {})
