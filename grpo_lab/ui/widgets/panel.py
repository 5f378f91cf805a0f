"""The panel: a run in a warm child, drawn live, steered by its buttons or by the same methods."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from grpo_lab.analysis.run_state import describe, fold
from grpo_lab.config.catalog import preset as preset_config
from grpo_lab.config.schema import LIVE_SECTIONS, Config
from grpo_lab.errors import ConfigError, RunError
from grpo_lab.runs import child_pool, notebook_mode, recordings
from grpo_lab.runs.session import Session
from grpo_lab.training.registry import validated
from grpo_lab.ui.widgets import exports, html, notebook_display
from grpo_lab.ui.widgets.controls_view import Desk
from grpo_lab.ui.widgets.live import TALL, WIDE, LiveFigure
from grpo_lab.ui.widgets.messages import text
from grpo_lab.ui.widgets.render_state import Scene
from grpo_lab.ui.widgets.runner import Run, Runner
from grpo_lab.ui.widgets.sources import config_of
from grpo_lab.ui.widgets.timeline import Timeline

HEALTHY = "stable"
"""The preset of `Panel.healthy`."""


class Panel:
    """A run to watch and to steer. In a notebook, the last expression of a cell shows it.

    `what` is a scenario's name or a whole config; without it `preset` or what was recorded is what Start begins with.
    `guards` puts a preset's guards, or named ones, in place; `overrides` come last. `recording` is a recording's name
    or a run folder, shown at once. `controls` and `guards_shown` name the sliders and switches to show, all where they
    are not given. Runs are kept below `runs`. `scale` makes the figure larger, with its letters; `wide` puts the
    chain beside the curves.

    Nobody has to look: without a kernel, or with GRPO_LAB_HEADLESS=1, runs are the same and nothing is drawn.
    """

    def __init__(
        self,
        what: str | Config | None = None,
        *,
        preset: str | None = None,
        recording: str | Path | None = None,
        guards: str | tuple[str, ...] | None = None,
        overrides: Sequence[str] = (),
        controls: Sequence[str] | None = None,
        guards_shown: Sequence[str] | None = None,
        runs: str | Path = "runs",
        scale: float = 1.0,
        wide: bool = False,
    ) -> None:
        recorded = Session.open(recordings.find(recording)) if recording is not None else None
        base = recorded.config if recorded and what is None and preset is None else what
        self.config = self._made = config_of(base, preset, guards).with_(*overrides)
        self._names = (preset or "", base if isinstance(base, str) else "", guards if isinstance(guards, str) else "")
        self._runs = Path(runs)
        self._runner = Runner(self._runs)
        self._commanding = threading.RLock()  # buttons are heard in threads of their own
        self._shown: Session | None = None
        self._watched, self._shown_in = not notebook_mode.headless(), 0
        figure = LiveFigure(scale, WIDE if wide else TALL)
        first = figure.png(fold(recorded.events if recorded else ())) if self._watched else b""
        self._desk = Desk(self, controls, guards_shown, figure.size, first)
        self._scene = Scene(self._desk, figure, self._watched)
        self.widget = self._desk.widget
        self._show_runs()
        self._desk.sources.show(self.config, *self._names)
        self._refresh()
        if recorded:
            self._show_session(recorded)

    @property
    def session(self) -> Session | None:
        """The session shown last; None before the first."""
        return self._shown

    @property
    def running(self) -> bool:
        """Whether a run of this panel is going on."""
        return self._runner.running

    @property
    def timeline(self) -> Timeline:
        """Where in a run that is over the panel stands: `move`, `play`, `pause`."""
        return self._desk.timeline

    def start(self) -> None:
        """Begin a run; while one is going on, nothing.

        Raises ConfigError for settings that cannot be run.
        """
        with self._commanding:
            if self._runner.running:
                return
            feed = self._scene.feed()
            over = self._runner.start(self.config, feed)
            self._scene.begin(feed)
            self._shown = session = self._runner.session
            assert session is not None
        over.add_done_callback(lambda over: self._over(over, feed, session))
        self._refresh()

    async def run(self) -> Run:
        """Begin a run, wait for its end, and leave its figure in the notebook. Buttons and sliders act meanwhile.

        Where the panel is more than a cell above, the run is shown below this one too.
        """
        self.start()
        over = self._runner.over
        assert over is not None
        out_of_sight = self._watched and notebook_display.cell() - self._shown_in > 1
        with notebook_display.looked_at(self._desk.glance if out_of_sight else None, self._figure):
            try:
                return await asyncio.wrap_future(over)
            except asyncio.CancelledError:
                self.stop()
                raise

    def pause(self) -> None:
        """Wait at the top of the next step; of a recording, play no further."""
        self._desk.timeline.pause()
        self._scene.paused = self._command("pause")
        self._refresh()

    def resume(self) -> None:
        """Go on after `pause`."""
        self._command("resume")
        self._scene.paused = False
        self._refresh()

    def toggle(self) -> None:
        """`pause`, or `resume` after it."""
        if self._scene.paused:
            self.resume()
        else:
            self.pause()

    def step(self) -> None:
        """One step, and pause; of a run that is over, show one step more. Where there is no run, begin one."""
        timeline = self._desk.timeline
        if not self._scene.live and timeline.length:
            timeline.pause()
            timeline.move(timeline.position + 1)
            return
        self.start()
        if not self._scene.paused:
            self.pause()
        self._command("step")

    def stop(self) -> None:
        """End the run after the current step; pressed again, at once."""
        self._desk.timeline.pause()
        self._command("stop")

    def reset(self) -> None:
        """Stop, empty the plot, and go back to the settings that the panel was made with. Overlays stay."""
        self._begin_anew(self._made)
        self._desk.sources.show(self._made, *self._names)
        self._refresh()

    def healthy(self) -> None:
        """Stop, empty the plot, and take the settings of a healthy run: the preset `stable`."""
        self._begin_anew(preset_config(HEALTHY))
        self._desk.sources.show(self.config, HEALTHY, "", "")
        self._refresh()

    def choose(self, config: Config) -> None:
        """Take a whole config for the next run."""
        self.config = config
        self.tell(text("panel.chosen") if self._runner.running else "")

    def set(self, *overrides: str) -> None:
        """Change settings: of the running model at its next step where it can take them, and of the next run.

        Raises ConfigError for what is no setting or lies outside its limits.
        """
        with self._commanding:
            changed = self.config.with_(*overrides)
            validated(changed)
            self.config = changed
            self.tell(self._act_now(overrides))

    def switch(self, guard: str, on: bool) -> None:
        """Switch a guard on or off, as `set` does."""
        self.set(f"guards.{guard}={'on' if on else 'off'}")

    def keep(self, name: str) -> None:
        """Keep the run shown as an overlay of this name: the next one is drawn over it.

        Raises RunError when there is none.
        """
        self._scene.keep(name)

    def clear(self) -> None:
        """Drop all overlays."""
        self._scene.clear()

    def open(self, run: str | Path) -> Session:
        """Show a recording or a run folder, all of it; its time slider goes back to any step.

        Raises RunError when the folder holds no run.
        """
        session = Session.open(recordings.find(run))
        self._show_session(session)
        return session

    def play(self, speed: float | None = None) -> None:
        """Play the run shown, step by step, from its start when all of it was shown; `speed` in steps a second."""
        self._desk.timeline.play(speed)

    def export(self) -> Path:
        """The folder of the run shown and a PNG of its figure, as one zip file: its path.

        Raises RunError when there is none.
        """
        if self._shown is None:
            raise RunError(text("panel.nothing_to_keep"))
        png = LiveFigure().png(*self._scene.screens())
        path = exports.zipped(self._shown.directory, png, self._runs)
        self.tell(text("panel.exported", path=path))
        return path

    def tell(self, note: str) -> None:
        """Say something in the status line; sliders and switches go back to what the config says."""
        self._scene.note = note
        self._refresh()

    def refresh(self) -> None:
        """Draw again what is on screen."""
        self._scene.refresh()

    def _act_now(self, overrides: Sequence[str]) -> str:
        """Hand what a running model can take to it; what was done with them, in words."""
        what = ", ".join(overrides)
        live = [each for each in overrides if each.partition(".")[0].strip() in LIVE_SECTIONS]
        session = self._runner.session
        if not (self._runner.running and session and live):
            return text("panel.acts_next_run", what=what)
        try:
            session.set(*live)
        except ConfigError as error:
            return f"{text('panel.acts_next_run', what=what)} {error}"
        return text("panel.acts_now" if len(live) == len(overrides) else "panel.acts_partly", what=what)

    def _command(self, name: str) -> bool:
        """Tell the run that is going on, if there is one; whether there is."""
        session = self._runner.session
        if not self._runner.running or session is None:
            return False
        session.command(name)
        return True

    def _begin_anew(self, config: Config) -> None:
        self.stop()
        with self._commanding:
            if self._runner.running:  # it ends by itself; the next run does not wait for that
                self._runner = Runner(self._runs)
            self.config, self._shown = config, None
            self._scene.load(())

    def _over(self, over: Future[Run], feed: Any, session: Run) -> None:
        """A run is over: its time can be gone through, and it can be opened again."""
        error = over.exception()
        self._scene.end(feed, session.events, repr(error) if error else "")
        self._show_runs()
        self._refresh()

    def _show_runs(self) -> None:
        self._desk.show_runs(recordings.recording_names(), exports.run_folders(self._runs))

    def _show_session(self, session: Session) -> None:
        self._shown = session
        self._scene.load(session.events)
        self._refresh()

    def _refresh(self) -> None:
        """Buttons, sliders and menus as things stand."""
        self._desk.show_config(self.config)
        self._desk.show_running(self._runner.running, self._scene.paused)
        self._scene.refresh()

    def _figure(self) -> str:
        screens = self._scene.screens()
        return html.figure(LiveFigure().png(*screens), screens[0])

    def _repr_mimebundle_(self, **keywords: Any) -> Any:
        if self._watched:
            self._shown_in = notebook_display.cell()
            child_pool.warm_up()
            self._scene.refresh()
            return self.widget._repr_mimebundle_(**keywords)
        words = {"text/plain": f"Panel: {describe(self._scene.screens()[0])}"}
        return words | ({"text/html": self._figure()} if self._shown else {})
