"""The panel: a run in a child process, drawn live, controlled by buttons or by the same methods.

A `Runner` has one run at a time, in a child process of the pool; it is controlled from any thread.
"""

import asyncio
import dataclasses
import math
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from IPython.core.getipython import get_ipython
from IPython.display import HTML, DisplayHandle, display

from grpo_lab.analysis.anatomy import Anatomy, anatomy
from grpo_lab.analysis.run_state import CURVES, Screen, describe, fold
from grpo_lab.config.catalog import preset as preset_config
from grpo_lab.config.schema import LIVE_SECTIONS, Config, live_changes
from grpo_lab.errors import ConfigError, GrpoLabError, RunError, check_known
from grpo_lab.events import Event
from grpo_lab.messages import spoken, text
from grpo_lab.models import loading
from grpo_lab.runs import checkpoints, recordings, run_folder
from grpo_lab.runs.child import Child, give_back, take, warm_up
from grpo_lab.runs.session import Session, View
from grpo_lab.training.registry import check, doubts
from grpo_lab.ui import html, notebook_mode
from grpo_lab.ui.plots.style import GHOST
from grpo_lab.ui.widgets import exports
from grpo_lab.ui.widgets.controls import Controls, History, config_of
from grpo_lab.ui.widgets.live import LiveFigure, RenderThread, png

CHECKPOINT_MINUTES = 0.1


class Run(Session):
    """A session whose representation in a notebook describes its state."""

    before = 0
    """Events that it had when it was begun, or went on."""

    def __repr__(self) -> str:
        return f"{describe(fold(self.events))} ({self.directory})"

    def _repr_html_(self) -> str:
        return html.fill("paragraph", repr(self))  # JupyterLab breaks plain text inside words


class Runner:
    """Starts runs below a folder, one at a time."""

    def __init__(self, runs: Path) -> None:
        self.runs = runs
        self.session: Run | None = None
        self.over: Future[Run] | None = None
        """Resolves at the end of the last run started; None before the first."""
        self._starting = threading.Lock()

    @property
    def running(self) -> bool:
        """Whether a run is going on."""
        return self.over is not None and not self.over.done()

    def start(self, config: Config, view: View, pace: float = 0) -> Future[Run]:
        """Begin a run, shown by a view, and return a future of its end; during a run, that run's future.

        `pace` is the most steps a second; 0 is full speed.

        Raises ConfigError for a config that cannot be run, RunError for a folder that cannot be made.
        """

        def make(child: Child) -> Run:
            directory = run_folder.new_folder(run_folder.default_folder(config.run.name, self.runs))
            settled = notebook_mode.settled(config)
            if config.model.name == "tiny" and config.run.checkpoint_minutes:  # small and quick enough for many
                settled = settled.with_(f"run.checkpoint_minutes={CHECKPOINT_MINUTES}")
            return Run(settled, directory, child=child)

        check(config)
        return self._begin(make, view, pace)

    def fork(self, old: Session, step: int, config: Config, view: View, pace: float = 0) -> Future[Run]:
        """Begin a run that is `old` until a step, and has from there on the settings of `config` that may change.

        Raises RunError for a step that the run did not reach.
        """
        changes = live_changes(old.settings_before(step), config)
        folder = run_folder.default_folder(f"{old.config.run.name}-fork-{step}", self.runs)
        return self._begin(lambda child: Run.fork(old.directory, step, changes, folder, child=child), view, pace)

    def go_on(self, old: Session, config: Config, view: View, pace: float = 0) -> Future[Run]:
        """Go on with a run that is over, from its newest checkpoint, with the settings of `config` that may change.

        Raises RunError for a run that cannot go on.
        """
        recover = live_changes(old.config, config)
        return self._begin(lambda child: Run.resume(old.directory, recover, child=child), view, pace)

    def _begin(self, make: Callable[[Child], Run], view: View, pace: float) -> Future[Run]:
        with self._starting:
            if self.over and self.running:
                return self.over
            child = take()
            try:
                session, over = make(child), Future[Run]()
                session.before = len(session.events)
                session.views.append(view)
                session.command("pace", (str(pace),))
                over.set_running_or_notify_cancel()  # cancelling the wait for it must not end the run
                work = (session, child, over)
                threading.Thread(target=_run, args=work, name=f"run {session.directory.name}", daemon=True).start()
            except BaseException:
                give_back(child)
                raise
            self.session, self.over = session, over
            return over

    def command(self, name: str, *values: str) -> bool:
        """Send a command to the run that is going on; return whether there is one."""
        if not self.running or self.session is None:
            return False
        self.session.command(name, values)
        return True

    def act_now(self, overrides: Sequence[str]) -> str:
        """Apply the settings that a running model accepts; returns in words which settings act when."""
        what = ", ".join(overrides)
        live = [each for each in overrides if each.partition(".")[0].strip() in LIVE_SECTIONS]
        if not (self.running and self.session and live):
            return text("panel.acts_next_run", what=what)
        try:
            self.session.set(*live)
        except ConfigError as error:
            return f"{text('panel.acts_next_run', what=what)} {error}"
        return text("panel.acts_now" if len(live) == len(overrides) else "panel.acts_partly", what=what)


def _run(session: Run, child: Child, over: Future[Run]) -> None:
    """The thread of a run. The future resolves last, when the child can take the next run."""
    failure: BaseException | None = None
    try:
        session.run()
        if session.status == "done":
            shutil.rmtree(session.directory / checkpoints.FOLDER, ignore_errors=True)
    except GrpoLabError:
        pass  # the view has it: the last event is `failed`, with the reason
    except BaseException as error:
        failure = error
    finally:
        give_back(child)
    if failure:
        over.set_exception(failure)
    else:
        over.set_result(session)


def cell() -> int:
    """The number of the cell that runs; 0 outside a notebook."""
    ipython = get_ipython()
    return ipython.execution_count if ipython else 0


class Place:
    """A panel stands in one cell at a time. Below it, and where it stood before, is a picture as ordinary HTML.

    The picture is hidden beside a living panel; it is seen where a saved notebook is read without its kernel.
    """

    def __init__(self) -> None:
        self._cell = -1
        self._panel: DisplayHandle | None = None
        self._picture: DisplayHandle | None = None

    def show(self, bundle: dict[str, Any], picture: str) -> None:
        """Show the panel in the cell that runs, unless it stands there; it leaves the cell where it stood."""
        if self._cell == cell():
            return
        if self._panel:
            self._panel.update(HTML(html.fill("paragraph", text("panel.moved"))))
        self._cell = cell()
        self._panel = display(bundle, raw=True, display_id=True)
        self._picture = display(HTML(picture), display_id=True)

    def update(self, picture: str) -> None:
        """Replace the picture."""
        if self._picture:
            self._picture.update(HTML(picture))


HIGHEST_BAR = 64
"""Pixels of the highest bar of a histogram."""
AWAKE = 0.2
"""Seconds after which a cell that waits for a run looks for an interrupt."""
HEALTHY = "stable"
"""The preset of `Panel.healthy`."""
WORDS_EVERY = 1.0
"""Seconds between two updates of the words beside the figure during a run."""


class AnatomyView:
    """What a cell of the chain shows in a notebook, as text where there is no HTML."""

    def __init__(self, anatomy: Anatomy) -> None:
        self.anatomy = anatomy

    def __repr__(self) -> str:
        return str(self.anatomy)

    def _repr_html_(self) -> str:
        found, bars = self.anatomy, self.anatomy.bars()
        most = math.log1p(max((count for _, count in bars), default=0)) or 1.0
        heights = [(name, count, round(HIGHEST_BAR * math.log1p(count) / most)) for name, count in bars]
        total = sum(count for _, count in bars)
        return html.fill("anatomy", found.title, found.rows(), spoken(found.explanation), heights, total, found.sources)


class Panel:
    """A run to watch and control. In a notebook, the last expression of a cell shows it.

    Start trains `what`, a scenario's name or a whole config; without it, `preset` or the config of the recording.
    `guards` sets a preset's guards, or named ones; `overrides` come last. `recording` is a recording's name or a run
    folder, shown at once. `controls` and `guards_shown` name the sliders and switches to show, by default all. Runs
    are saved below `runs`. `scale` enlarges the figure with its letters. `pace` is the most steps a second of a run, 0
    for full speed. The chain of a `grouped` panel has four rows instead of one for each link. Without `break_shown`,
    no first break is named: the learner is asked for it.

    Without a kernel, or with GRPO_LAB_HEADLESS=1, runs are the same, at full speed, and nothing is drawn. Its language
    is that of `messages.language()` when it is made.

    Raises ConfigError for an unknown name, RunError for a recording that does not exist.
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
        pace: float = 0,
        grouped: bool = False,
        break_shown: bool = True,
    ) -> None:
        self._break_shown = break_shown
        self._recorded = recorded = Session.open(recordings.find(recording)) if recording is not None else None
        base = recorded.config if recorded and what is None and preset is None else what
        self.config = self._made = config_of(base, preset, guards).with_(*overrides)
        self._names = (preset or "", base if isinstance(base, str) else "", guards if isinstance(guards, str) else "")
        self._runs = Path(runs)
        self._runner = Runner(self._runs)
        self._commanding = threading.RLock()  # callbacks of buttons run in other threads
        self.session: Session | None = None
        """The session shown last; None before the first."""
        self._watched, self._place = not notebook_mode.headless(), Place()
        self._pace = self._made_pace = pace
        self._paused, self._note, self._words_at = False, "", float("-inf")
        self._kept: dict[str, Screen] = {}
        self._ghost: dict[str, Screen] = {}
        self._haunted, self._named = True, History()
        self._make_figure = partial(LiveFigure, grouped=grouped)
        self.figure, self.frames = self._make_figure(scale), RenderThread(self._render)
        begun = self._seen(fold(recorded.events if recorded else ()))
        first = self.figure.halves(begun) if self._watched else (b"", b"")
        self._controls = Controls(self._call, controls, guards_shown, self.figure.sizes, first, pace)
        self.widget, self.timeline = self._controls.widget, self._controls.timeline
        self._controls.browser.observe(lambda change: self._set_dark(change["new"]), "dark")
        self._controls.browser.observe(lambda change: self._clicked(change["new"]), "clicked")
        self._show_runs()
        self._controls.sources.show(self.config, *self._names)
        self._refresh()
        if recorded:
            self._show_session(recorded)

    @property
    def running(self) -> bool:
        """Whether a run of this panel is going on."""
        return self._runner.running

    def start(self) -> None:
        """Begin a run; without effect during a run.

        Raises ConfigError for settings that cannot be run, ModelError for a model that is not here; the run on screen
        stays.
        """
        loading.locate(self.config.model.name)
        self._begin(partial(self._runner.start, self.config), self._leave_ghost)

    def go_on(self) -> None:
        """Go on with the run on screen, which crashed or was stopped or killed, from its newest checkpoint.

        Settings that may change while a model trains are those of the panel: switch a guard on before.
        Raises RunError where there is no such run.
        """
        if self.session is None or not self._can_go_on():
            raise RunError(text("panel.nothing_to_go_on_with"))
        self._begin(partial(self._runner.go_on, self.session, self.config), lambda old: None)

    def fork(self, step: int | None = None) -> None:
        """Begin a run that is the one on screen until `step`, by default that of the slider; without effect during one.

        Settings that may change while a model trains are those of the panel from there on: switch a guard on before.
        The run on screen stays as an overlay. Raises RunError where there is none, and for a step not reached.
        """
        if self.session is None:
            raise RunError(text("panel.nothing_to_keep"))
        loading.locate(self.session.config.model.name)
        at = min(self.timeline.position, self.timeline.length - 1) if step is None else step
        self._begin(partial(self._runner.fork, self.session, at, self.config), self._leave_overlay)

    def _begin(self, start: Callable[..., Future[Run]], leave: Callable[[History], None]) -> None:
        with self._commanding:
            if self._runner.running:
                return
            history = History(came=self.refresh)
            over = start(history, self._pace if self._watched else 0)
            leave(self.timeline.history)
            self._paused, self._note, self._words_at = False, "", float("-inf")
            self.timeline.load(history, live=True)
            self._controls.microscope.close()
            self._close_anatomy()
            self.session = session = self._runner.session
            assert session is not None
        over.add_done_callback(lambda over: self._over(over, history, session))
        self._refresh()

    async def run(self) -> Run:
        """Begin a run in the cell that awaits it, and wait for its end. Buttons and sliders work meanwhile."""
        self.start()
        return await self.wait()

    async def wait(self) -> Run:
        """Wait in a cell for the end of the run that goes on; of the last one where none does.

        A panel that stands in another cell comes here, and leaves a picture of its last run there. An interrupt of the
        kernel stops the run after its step; RunError says so, also where there is no run.
        """
        if (over := self._runner.over) is None:
            raise RunError(text("panel.nothing_to_keep"))
        if self._watched:
            self._show()
        waited = asyncio.wrap_future(over)
        try:
            while not waited.done():  # another thread may take the signal: the loop sees it when it wakes
                await asyncio.wait([waited], timeout=AWAKE)
            return waited.result()
        except asyncio.CancelledError:
            self.stop()
            if not get_ipython():
                raise
            await waited  # ipykernel cancels a cell where the kernel is interrupted
            raise RunError(text("panel.interrupted", count=self.screens()[0].completed)) from None
        finally:
            if not self._watched and get_ipython():
                display(HTML(self._picture()))

    def pause(self) -> None:
        """Pause the run before its next step, or the replay of a recording."""
        self.timeline.pause()
        self._paused = self._runner.command("pause")
        self._refresh()

    def resume(self) -> None:
        """Continue after `pause`."""
        self._runner.command("resume")
        self._paused = False
        self._refresh()

    def toggle(self) -> None:
        """Pause, or resume a paused run."""
        (self.resume if self._paused else self.pause)()

    def step(self) -> None:
        """Train one step and pause; begin a run if there is none. Of a finished run, show one step more."""
        timeline = self.timeline
        if timeline.length:
            timeline.move(timeline.position + 1)
            return
        self.start()
        if not self._paused:
            self.pause()
        self._runner.command("step")

    def pace(self, steps_a_second: float) -> None:
        """Train at most so many steps a second, from the next step on; 0 is full speed. Results stay the same."""
        self._pace = steps_a_second
        self._controls.show_pace(steps_a_second)
        self._runner.command("pace", str(steps_a_second))

    def stop(self) -> None:
        """End the run after the current step; pressed again, at once."""
        self.timeline.pause()
        self._runner.command("stop")

    def reset(self) -> None:
        """Stop, and restore what the panel was made with: settings, pace and recording. Overlays stay."""
        if self.session is not self._recorded:
            self._leave_ghost(self.timeline.history)
        self._begin_anew(self._made)
        self.pace(self._made_pace)
        self._controls.sources.show(self._made, *self._names)
        if self._recorded:
            self._show_session(self._recorded)
        self._refresh()

    def healthy(self) -> None:
        """Stop, empty the plot, and use the settings of a healthy run: the preset `stable`."""
        self._ghost = {}
        self._begin_anew(preset_config(HEALTHY))
        self._controls.sources.show(self.config, HEALTHY, "", "")
        self._refresh()

    def choose(self, config: Config) -> None:
        """Use a whole config for the next run."""
        self.config, now = config, [text("panel.chosen")] if self._runner.running else []
        self.tell(" · ".join([*now, *map(spoken, doubts(config))]))

    def set(self, *overrides: str) -> None:
        """Change settings of the next run, and of a running model at its next step where it accepts them.

        Raises ConfigError for an unknown setting and for a value outside its limits.
        """
        with self._commanding:
            changed = self.config.with_(*overrides)
            check(changed)
            self.config = changed
            self.tell(" · ".join([self._runner.act_now(overrides), *map(spoken, doubts(changed))]))

    def switch(self, guard: str, on: bool) -> None:
        """Switch a guard on or off, as `set` does."""
        self.set(f"guards.{guard}={'on' if on else 'off'}")

    def keep(self, name: str) -> None:
        """Keep the run shown as an overlay of this name; the next run is drawn over it.

        Raises RunError when there is none.
        """
        screen = self.timeline.history.screen()
        if screen.step < 0:
            raise RunError(text("panel.nothing_to_keep"))
        self._named = self.timeline.history
        self._set_kept({**self._kept, name: screen})

    def ghost(self, on: bool) -> None:
        """Show the run before the one on screen as a faint curve, or hide it."""
        self._haunted = on
        self.refresh()

    def clear(self) -> None:
        """Drop all overlays."""
        self._set_kept({})

    def open(self, run: str | Path) -> Session:
        """Show all of a recording or a run folder; its time slider goes back to any step.

        Raises RunError when the folder holds no run.
        """
        self._show_session(session := Session.open(recordings.find(run)))
        return session

    def play(self, speed: float | None = None) -> None:
        """Play the run shown, from its start if all of it is shown; `speed` in steps a second."""
        self.timeline.play(speed)

    def export(self) -> Path:
        """Write the folder of the run shown and a PNG of its figure into one zip file, and return its path.

        Raises RunError when there is none.
        """
        if self.session is None:
            raise RunError(text("panel.nothing_to_keep"))
        path = exports.zipped(self.session.directory, self._make_figure().png(*self.screens()), self._runs)
        self.tell(text("panel.exported", path=path))
        return path

    def anatomy(self, link: str, step: int | None = None, update: int | None = None) -> AnatomyView:
        """Show a link of the chain below the figure: its numbers, and the lines that computed it; also return it.

        Without a step it is that of the first break, or the last one shown. A click on a cell of the chain does the
        same, a second click closes it. Raises RunError for an unknown link, and where the step did not get so far.
        """
        view = AnatomyView(anatomy(self.timeline.history.events, link, step, update))
        self._controls.anatomy.value = view._repr_html_()
        self.figure.opened_cell = link, view.anatomy.step, update
        self.refresh()
        return view

    def _close_anatomy(self) -> None:
        self.figure.opened_cell = None
        self._controls.anatomy.value = ""

    def _open_cell(self, click: Mapping[str, Any]) -> None:
        screen, _, whole = self.screens()
        cell = self.figure.cell(screen, whole, click["x"], click["y"])
        if cell is None or not cell[0]:
            return
        again = cell == self.figure.opened_cell
        self._close_anatomy()
        if again:
            self.refresh()
        else:
            self._call("anatomy", *cell)

    def tell(self, note: str) -> None:
        """Show a note in the status line; sliders and switches return to the values of the config."""
        self._note = note
        self._refresh()

    def refresh(self) -> None:
        """Request a frame."""
        if self._watched:
            self.frames.request()

    def screens(self) -> tuple[Screen, dict[str, Screen], tuple[Screen, ...]]:
        """The arguments of `LiveFigure.png`: the screen, the overlays, and the whole run where a part is shown."""
        timeline = self.timeline
        others = {**self._kept, **(self._ghost if self._haunted else {})}
        return self._seen(timeline.screen()), others, () if timeline.live else (timeline.whole,)

    def _seen(self, screen: Screen) -> Screen:
        return screen if self._break_shown else dataclasses.replace(screen, first_break=None)

    def _call(self, method: str, *values: Any) -> None:
        """Call a method for a widget; a user's mistake appears in the status line, and the inputs go back."""
        try:
            getattr(self, method)(*values)
        except GrpoLabError as error:
            self.tell(str(error))

    def _clicked(self, click: Mapping[str, Any]) -> None:
        """Open what a click on a half of the figure asks for; see `BrowserPart.clicked`."""
        (self._look if click["half"] == "curves" else self._open_cell)(click)

    def _look(self, click: Mapping[str, Any]) -> None:
        """Open the tokens of the step that was clicked, or, by an arrow key, of the next one."""
        microscope, timeline = self._controls.microscope, self.timeline
        if "by" in click:
            step = microscope.event.step + click["by"] if microscope.event else math.inf
            place = microscope.curve, min(step, len(timeline.history))
        else:
            place = self.figure.place("curves", click["x"], click["y"])
        if place:
            self._call("tokens", place[1], place[0])

    @property
    def tokens_open(self) -> bool:
        """Whether the tokens of a step are shown."""
        return self._controls.microscope.event is not None

    def tokens(self, step: float, curve: str = "") -> None:
        """Show the tokens of the step nearest to `step` below the figure, with the number that explains a curve.

        Without a curve it is that of before. Raises RunError where there is no step, ConfigError for an unknown curve.
        """
        microscope, timeline = self._controls.microscope, self.timeline
        check_known("curve", [curve] if curve else [], CURVES)
        if (event := timeline.history.step(step)) is None:
            raise RunError(text("panel.nothing_to_keep"))
        settings = (timeline.screen() if timeline.live else timeline.whole).settings
        configs = [self.config, *(Config.from_dict(tree) for since, tree in settings if since <= event.step)]
        microscope.open(event, configs[-1], curve or microscope.curve)
        self.refresh()

    def _begin_anew(self, config: Config) -> None:
        self.stop()
        with self._commanding:
            if self._runner.running:  # it ends by itself; the next run need not wait
                self._runner = Runner(self._runs)
            self.config, self.session = config, None
            self._controls.microscope.close()
            self._load(())

    def _over(self, over: Future[Run], history: History, session: Run) -> None:
        """Fill the timeline after a run, unless another one is on screen, and list the run among those to open."""
        error = over.exception()
        with self._commanding:
            if history is self.timeline.history:
                self._load(session.events, repr(error) if error else "")
        self._show_runs()
        self._refresh()
        self._place.update(self._picture())

    def _can_go_on(self) -> bool:
        """Whether the run on screen is one of this panel's that ended before its last step."""
        session = self.session
        return session is not None and session.directory.parent == self._runs and session.status not in ("new", "done")

    def _load(self, events: Sequence[Event], note: str = "") -> None:
        self._close_anatomy()
        self._paused, self._note = False, note
        self.timeline.load(History(events))
        self.refresh()

    def _show_runs(self) -> None:
        self._controls.show_runs(recordings.recording_names(), exports.run_folders(self._runs))

    def _show_session(self, session: Session) -> None:
        self._controls.microscope.close()
        self.session = session
        self._load(session.events)
        self._refresh()

    def _leave_ghost(self, old: History) -> None:
        """Keep a run that leaves the screen as a ghost, unless it is an overlay."""
        if len(old):
            self._ghost = {} if old is self._named else {GHOST: old.screen()}

    def _leave_overlay(self, old: History) -> None:
        """Keep a run that leaves the screen as an overlay."""
        self._ghost = {}
        if old is not self._named:
            self.keep(self._controls.name.value)

    def _set_kept(self, kept: dict[str, Screen]) -> None:
        self._kept = kept
        self._controls.show_kept(list(kept))
        self.refresh()

    def _set_dark(self, dark: bool) -> None:
        self.figure.dark = dark
        self.refresh()

    def _refresh(self) -> None:
        self._controls.show_config(self.config)
        self._controls.show_running(self._runner.running, self._paused, self._can_go_on())
        self.refresh()

    def _render(self, asked: bool) -> bool:
        """Draw one frame; return whether to draw the next without a request: to play on, or to update the words."""
        timeline = self.timeline
        moved = timeline.tick()
        live, paused, session = timeline.live, self._paused, self._runner.session
        begun = len(timeline.history.events) > (session.before if live and session else -1)
        screens = self.screens()
        if asked or moved:
            opened = self._controls.microscope.event
            self.figure.opened = opened and opened.step
            self._controls.curves.value, self._controls.chain.value = self.figure.halves(*screens)
        due = time.monotonic() - self._words_at >= WORDS_EVERY or not live or paused
        if due:
            own = "paused" if paused else "" if begun else "starting"
            own = own or "before the first step" * (not live and screens[0].status == "starting")
            self._controls.show_words(screens[0] if begun else fold(()), paused, own, self._note, screens[1])
            self._words_at = time.monotonic()
        return timeline.playing or not due

    def _picture(self) -> str:
        screens = self.screens()
        pixels = np.asarray(self._make_figure().draw(*screens))
        return html.figure((png(pixels), png(pixels, dark=True)), describe(screens[0]))

    def _show(self) -> None:
        self._place.show(self._repr_mimebundle_(), self._picture() if self.session and not self.running else "")

    def _ipython_display_(self) -> None:
        if not self._watched:
            raise NotImplementedError("IPython then asks for the bundle")
        self._show()

    def _repr_mimebundle_(self, **keywords: Any) -> Any:
        words = {"text/plain": f"Panel: {describe(self.screens()[0])}"}
        if self._watched:
            warm_up()
            self.refresh()
            return {**(self.widget._repr_mimebundle_(**keywords) or {}), **words}
        return words | ({"text/html": self._picture()} if self.session else {})
