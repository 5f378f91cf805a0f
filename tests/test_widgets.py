"""The panel without a browser: runs in real children, steered by methods and by its widgets."""

import asyncio
import os
import signal
import threading
import time
import zipfile

import pytest
from IPython.core.formatters import DisplayFormatter

from grpo_lab import messages
from grpo_lab.analysis.run_state import fold
from grpo_lab.analysis.screen_words import describe
from grpo_lab.config.algorithms import algorithm, algorithm_names
from grpo_lab.config.catalog import preset, scenario
from grpo_lab.config.schema import Config
from grpo_lab.core.hooks import Verdict
from grpo_lab.errors import ConfigError, ModelError, RunError
from grpo_lab.events import Changed, Ended, Resumed, Stepped
from grpo_lab.runs import child_pool
from grpo_lab.training.guards import GUARDS
from grpo_lab.ui import notebook_mode
from grpo_lab.ui.widgets import Panel, notebook_display, runner
from grpo_lab.ui.widgets.runner import Run, Runner
from grpo_lab.ui.widgets.sliders import SLIDERS, SliderRow

LONG = ("run.num_steps=100000",)
"""More than any test waits for."""


@pytest.fixture(scope="module", autouse=True)
def none_left():
    """Tests share warm children; none outlives them."""
    yield
    child_pool._close_all()


@pytest.fixture
def seen(monkeypatch):
    """Somebody looks: widgets are drawn."""
    monkeypatch.setattr(notebook_mode, "headless", lambda: False)


@pytest.fixture
def panel(tmp_path):
    """Makes panels with the smallest runs; what still goes on at the end is stopped."""
    made = []

    def make(*what, **options) -> Panel:
        if not what and "recording" not in options:
            options.setdefault("preset", "smoke")
        made.append(Panel(*what, runs=tmp_path / "runs", **options))
        return made[-1]

    yield make
    for each in made:
        each.stop()
        finish(each)


def until(what, true):
    """Wait for what another thread does."""
    end = time.monotonic() + 180  # a busy machine may take long over what takes a blink
    while not (answer := true()):
        assert time.monotonic() < end, what
        time.sleep(0.01)
    return answer


def steps(panel) -> list[Stepped]:
    return [event for event in panel.session.events if isinstance(event, Stepped)]


def finish(panel) -> None:
    over = panel._runner.over
    if over is not None:
        over.result(60)
    until("the panel knows", lambda: not panel._render_state.live)


def words(panel) -> str:
    assert panel._render_state.settle()
    return panel._controls._status.value


def find(panel, css):
    """The widget with this CSS class."""
    waiting = [panel.widget]
    while waiting:
        widget = waiting.pop()
        if f"grpo-lab-{css}" in getattr(widget, "_dom_classes", ()):
            return widget
        waiting += getattr(widget, "children", ())
    raise AssertionError(css)


def run(panel):
    return asyncio.run(panel.run())


@pytest.mark.slow
def test_headless_it_is_the_same_run(panel):
    one = panel()
    session = run(one)
    assert (session.status, len(steps(one)), one.session) == ("done", 3, session)
    assert one._controls.image.value == b""
    bundle = one._repr_mimebundle_()
    assert bundle["text/html"].startswith('<figure class="grpo-lab-picture"><img alt="smoke: done after 3 steps')
    assert repr(session).startswith("smoke: done after 3 steps")


@pytest.mark.slow
def test_watched_it_is_drawn_and_told(panel, seen):
    one = panel()
    assert "application/vnd.jupyter.widget-view+json" in one._repr_mimebundle_()
    assert "waiting" in words(one)
    empty = bytes(one._controls.image.value)
    assert empty.startswith(b"\x89PNG")  # drawn before a page can ask for it
    run(one)
    assert "done" in words(one)
    assert "step 2 · 3 of 3 steps" in words(one)
    assert bytes(one._controls.image.value).startswith(b"\x89PNG")
    assert one._controls.image.value != empty
    assert "<td>" in find(one, "samples").value
    find(one, "table-on").value = True
    assert one._render_state.settle()
    assert find(one, "table").value.count("<tr>") == 4
    assert find(one, "below").children[1] is find(one, "table"), "beside the controls, above the samples"


class Output:
    """What a cell displays, as IPython's handle of it."""

    def __init__(self, what, **_):
        self.holds = [what]
        self.update = self.holds.append

    @property
    def html(self) -> str:
        return getattr(self.holds[-1], "data", "") or ""


@pytest.fixture
def cells(monkeypatch):
    """The outputs of cells; `number` is the cell that runs."""

    class Cells:
        number, outputs = 7, []

    Cells.outputs = []
    monkeypatch.setattr(notebook_display, "cell", lambda: Cells.number)
    made = lambda what, **_: Cells.outputs.append(Output(what)) or Cells.outputs[-1]  # noqa: E731
    monkeypatch.setattr(notebook_display, "display", made)
    return Cells


@pytest.mark.slow
def test_a_panel_stands_where_its_run_is_awaited(panel, seen, cells):
    """In one cell it is shown once; in a later cell it moves there, and a picture stays behind."""
    one = panel()
    run(one)
    view, picture = cells.outputs
    assert "application/vnd.jupyter.widget-view+json" in view.holds[0]
    until("the picture is there", lambda: '<img alt="smoke: done after 3 steps' in picture.html)
    cells.number += 1
    run(one)
    assert "moved" in view.html and "<img alt" in picture.html
    assert "application/vnd.jupyter.widget-view+json" in cells.outputs[2].holds[0]
    one._ipython_display_()
    assert len(cells.outputs) == 4, "it stands in this cell already"


def test_a_recording_leaves_a_picture_where_the_notebook_is_read_without_a_kernel(panel, seen, cells):
    panel(recording="kl-explosion-smollm2")._ipython_display_()
    assert (
        "step 7" not in cells.outputs[1].html
        and 'class="grpo-lab-picture"><img alt="train-001' in cells.outputs[1].html
    )


def test_the_browser_is_told_when_a_run_begins_and_what_the_picture_shows(panel, seen):
    one = panel(overrides=LONG)
    front, told = one._controls.browser, []
    front.observe(lambda change: told.append(change["new"]), "running")
    one.start()
    until("it trains", lambda: steps(one))
    one.stop()
    finish(one)
    until("it is over", lambda: told == [True, False])
    words(one)
    assert front.alt.startswith("smoke: stopped after ")
    light = bytes(one._controls.image.value)
    front.dark = True
    words(one)
    assert one._controls.image.value != light
    front.dark = False
    words(one)
    assert one._controls.image.value == light


@pytest.mark.slow
def test_a_pace_slows_a_run_and_changes_no_number(panel, seen):
    fast, slow = panel(), panel(pace=4)
    begin = time.monotonic()
    ran = run(slow)
    assert time.monotonic() - begin >= 2 / 4  # three steps begin at this pace
    assert find(slow, "pace-menu").value == 4
    numbers = [
        [event.metrics["loss"] for event in session.events if isinstance(event, Stepped)]
        for session in (ran, run(fast))
    ]
    assert numbers[0] == numbers[1]


def test_the_pace_of_a_running_model_is_changed(panel, seen):
    one = panel(overrides=LONG, pace=0.01)
    one.start()
    until("the first step", lambda: len(steps(one)) == 1)
    find(one, "pace-menu").value = 0.0
    until("it goes on at full speed", lambda: len(steps(one)) > 5)


def test_a_run_pauses_where_the_panel_says_so(panel, seen):
    one = panel(overrides=LONG, pause_at=2)
    one.start()
    until("two steps", lambda: len(steps(one)) == 2)
    assert "paused" in words(one)
    assert find(one, "pause").description == "Resume"
    one.switch("clamp_kl", True)
    find(one, "pause").click()
    until("it goes on", lambda: len(steps(one)) > 4)
    assert [event.step for event in one.session.events if isinstance(event, Changed)] == [2]


def test_headless_nobody_could_resume(panel):
    assert run(panel(pause_at=1, pace=0.001)).status == "done"


@pytest.mark.slow
def test_a_recording_of_a_model_that_is_not_here_stays_on_screen(panel, seen, monkeypatch, tmp_path):
    monkeypatch.setenv("GRPO_LAB_CACHE", str(tmp_path))
    one = panel(recording="kl-explosion-smollm2")
    find(one, "start").click()
    assert "models fetch smollm2-135m" in words(one) and "step 7" in words(one)
    assert not one.running
    with pytest.raises(ModelError):
        one.start()
    one.choose(preset("smoke"))
    run(one)
    assert "step 7" not in words(one)
    one.reset()
    assert "step 7" in words(one), "Reset brings the recording back"


def test_pause_step_and_stop(panel, seen):
    one = panel(overrides=LONG)
    one.step()  # where there is no run it begins one, and waits after a step
    until("the first step", lambda: len(steps(one)) == 1)
    assert "paused" in words(one)
    assert find(one, "pause").description == "Resume"
    one.step()
    until("the second step", lambda: len(steps(one)) == 2)
    find(one, "pause").click()
    until("it goes on", lambda: len(steps(one)) > 4)
    one.pause()
    one.stop()
    finish(one)
    assert one.session is not None
    assert one.session.events[-1] == Ended("stopped", "by the user")
    assert "stopped" in words(one)
    assert find(one, "start").disabled is False


def test_settings_act_on_the_running_model(panel, seen):
    one = panel(overrides=LONG)
    one.step()
    until("the first step", lambda: len(steps(one)) == 1)
    row = find(one, "set-learning_rate")
    row.children[1].value = 1e-5
    assert row.children[0].value == pytest.approx(1e-5)
    assert "Peak learning rate" in one._controls.inputs.about.value
    find(one, "guard-clamp_kl").children[0].children[0].value = True
    one.set("data.num_generations=2", "loss.beta=0.5")
    assert "data.num_generations=2" in words(one)
    one.step()
    until("the second step", lambda: len(steps(one)) == 2)
    changes = [event.overrides for event in one.session.events if isinstance(event, Changed)]  # type: ignore
    assert changes == [("optimizer.learning_rate=1e-05", "guards.clamp_kl=on", "loss.beta=0.5")]
    assert steps(one)[1].metrics["learning_rate"] == 1e-5
    assert one.config.data.num_generations == 2
    one.switch("clamp_kl", False)
    assert "clamp_kl" not in one.config.guards
    assert find(one, "guard-clamp_kl").children[0].children[0].value is False
    assert one._render_state.screens()[0].marked("changed") == [1]


def test_an_algorithm_acts_on_the_running_model(panel, seen):
    one = panel(overrides=LONG)
    one.step()
    until("the first step", lambda: len(steps(one)) == 1)
    one._controls.inputs.sources.algorithm.value = "cispo"
    assert "loss.surrogate=cispo" in words(one) and "from the next step" in words(one)
    one.step()
    until("the second step", lambda: len(steps(one)) == 2)
    assert "cispo_clip_ratio" in steps(one)[1].metrics and "cispo_clip_ratio" not in steps(one)[0].metrics
    one._controls.inputs.sources.algorithm.value = "gspo"
    one.step()
    until("the third step", lambda: len(steps(one)) == 3)
    changes = [text for event in one.session.events if isinstance(event, Changed) for text in event.overrides]  # type: ignore
    assert one.session.config.with_(*changes).loss == one.config.loss  # type: ignore


@pytest.mark.slow
def test_what_a_running_model_cannot_take_acts_in_the_next_run(panel, seen):
    one = panel(overrides=(*LONG, "loss.beta=0"))
    one.step()
    until("the first step", lambda: len(steps(one)) == 1)
    one.set("loss.beta=0.1")
    assert "no reference model" in words(one)
    assert one.config.loss.beta == 0.1


def test_a_mistake_is_told_and_taken_back(panel, seen):
    one = panel()
    with pytest.raises(ConfigError, match="epsilon"):
        one.set("loss.epsilon=7")
    box = find(one, "set-epsilon").children[1]
    box.value = 7.0
    assert "must be above 0 and at most 1" in words(one)
    assert box.value == one.config.loss.epsilon == 0.2
    with pytest.raises(ConfigError, match="did you mean 'beta'"):
        panel(controls=("betta",))
    with pytest.raises(ConfigError, match="unknown guard"):
        panel(guards_shown=("clamp",))


@pytest.mark.slow
def test_a_crash_is_explained_and_healed_in_one_click(panel, seen):
    one = panel("cuda-001")
    session = run(one)
    assert session.status == "crashed"
    assert "crashed in torch.multinomial" in words(one)
    banner = find(one, "banner")
    assert banner.layout.display == "flex"
    assert "every probability is finite" in banner.children[0].value
    find(one, "healthy").click()
    assert one.config == preset("stable")
    words(one)
    assert banner.layout.display == "none"
    one.set("run.num_steps=2")
    assert run(one).status == "done"


@pytest.mark.slow
def test_a_killed_child_leaves_the_panel_usable(panel, seen):
    one = panel(overrides=LONG)
    one.start()
    until("it trains", lambda: steps(one))
    os.kill(one._runner.session._child.process.pid, signal.SIGKILL)  # type: ignore
    finish(one)
    assert "crashed" in words(one)
    assert "SIGKILL" in find(one, "banner").children[0].value
    one.reset()
    one.set("run.num_steps=1")
    assert run(one).status == "done"


@pytest.mark.slow
def test_a_killed_run_goes_on_with_the_guard_that_was_switched_on_since(panel, seen, monkeypatch):
    monkeypatch.setattr(runner, "CHECKPOINT_MINUTES", 0)
    one = panel(overrides=("run.num_steps=12",))
    button = find(one, "go_on")
    assert button.layout.display == "none"
    with pytest.raises(RunError, match="no run of this panel was cut off"):
        one.go_on()
    one.start()
    until("it has trained", lambda: len(steps(one)) > 5)
    os.kill(one._runner.session._child.process.pid, signal.SIGKILL)  # type: ignore
    finish(one)
    before, folder = len(steps(one)), one.session.directory  # type: ignore
    until("it can go on", lambda: button.layout.display == "")
    assert "crashed" in words(one)
    one.switch("clamp_kl", True)
    button.click()
    finish(one)
    assert one.session is not None and one.session.status == "done" and one.session.directory == folder
    (event,) = (event for event in one.session.events if isinstance(event, Resumed))
    assert 0 < event.step <= before and event.overrides == ("guards.clamp_kl=on",)
    assert [step.step for step in steps(one)] == list(range(12))
    assert button.layout.display == "none" and "resumed" in str(one._render_state.screens()[0].marks)
    assert not (folder / "checkpoints").exists()
    one.open("cuda-001-smollm2-135m-original")
    assert button.layout.display == "none", "a recording does not go on"


def test_started_twice_quickly_it_starts_once(panel, tmp_path):
    one = panel(overrides=LONG)
    threads = [threading.Thread(target=one.start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    one.stop()
    finish(one)
    assert len(list((tmp_path / "runs").iterdir())) == 1


@pytest.mark.slow
def test_two_panels_at_once(panel):
    both = [panel(overrides=LONG), panel(overrides=LONG)]
    for one in both:
        one.start()
    for one in both:
        until("both train", lambda one=one: len(steps(one)) > 1)
    assert len({one._runner.session._child.process.pid for one in both}) == 2
    both[0].stop()
    finish(both[0])
    now = len(steps(both[1]))
    until("the other goes on", lambda: len(steps(both[1])) > now)


@pytest.mark.slow
def test_reset_while_it_runs_does_not_wait(panel, seen):
    one = panel(overrides=LONG)
    one.set("loss.beta=0.3")
    one.start()
    until("it trains", lambda: steps(one))
    left = one._runner
    find(one, "reset").click()
    assert (one.session, one.config.loss.beta) == (None, preset("smoke").loss.beta)
    assert "waiting" in words(one)
    one.set("run.num_steps=2")
    assert run(one).status == "done"
    assert left.over is not None
    left.over.result(60)
    assert one._render_state.screens()[0].completed == 2  # nothing of the run that was left


@pytest.mark.slow
def test_giving_up_waiting_stops_the_run(panel):
    one = panel(overrides=LONG)

    async def impatient():
        task = asyncio.create_task(one.run())
        while not one.session or not steps(one):
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(impatient())
    finish(one)
    assert one.session is not None
    assert one.session.status == "stopped"


@pytest.mark.slow
def test_runs_are_kept_opened_and_exported(panel, tmp_path, seen):
    one = panel()
    with pytest.raises(RunError, match="no run on screen"):
        one.keep("A")
    first = run(one)
    one.keep("unguarded")
    one.set("loss.beta=0.3")
    second = run(one)
    assert list(one._render_state.screens()[1]) == ["unguarded"]
    assert "unguarded" in one._controls.inputs.kept.value
    path = one.export()
    with zipfile.ZipFile(path) as archive:
        names = {name.rpartition("/")[2] for name in archive.namelist()}
    assert names == {"config.json", "environment.json", "events.jsonl", "figure.png"}
    one.clear()
    assert one._render_state.screens()[1] == {}
    options = dict(find(one, "open").options)
    assert options[first.directory.name] == str(first.directory)
    find(one, "open").value = str(first.directory)
    assert one.session is not None
    assert one.session.directory == first.directory != second.directory
    again = panel(recording=first.directory)  # as after a restart of the kernel
    assert again.config == first.config
    assert repr(again.session.events) == repr(first.events)


@pytest.mark.slow
def test_a_recording_is_scrubbed(panel, seen):
    one = panel(recording="kl-explosion-smollm2")
    assert "step 7" in words(one)
    find(one, "time").value = 4
    assert "step 3" in words(one)
    one.step()
    assert "step 4" in words(one)
    session = one.open("cuda-001-smollm2-135m-original")
    assert "crashed in torch.multinomial" in words(one)
    assert one.session is session
    with pytest.raises(RunError, match="holds no run"):
        one.open("nowhere")


@pytest.mark.parametrize(
    ("options", "config"),
    [
        ({}, preset("stable")),
        ({"preset": "plain"}, preset("plain")),
        ({"what": "cuda-001"}, scenario("cuda-001").config()),
        ({"what": "cuda-001", "guards": "stable"}, scenario("cuda-001").config("stable")),
        ({"what": "cuda-001", "guards": ("clamp_kl",)}, scenario("cuda-001").config(("clamp_kl",))),
        ({"what": Config(), "guards": ("clamp_kl",)}, Config().with_("guards.clamp_kl=on")),
        ({"preset": "smoke", "overrides": ("run.seed=3",)}, preset("smoke").with_("run.seed=3")),
    ],
)
def test_what_a_panel_begins_with(options, config):
    assert Panel(**options).config == config


def test_menus_make_configs(panel):
    one = panel()
    sources = one._controls.inputs.sources
    sources.scenario.value = "cuda-001"
    assert sources.preset.value == scenario("cuda-001").preset
    assert one.config == scenario("cuda-001").config()
    sources.guards.value = "stable"
    assert one.config == scenario("cuda-001").config("stable")
    sources.seed.value = 7
    assert one.config.run.seed == 7
    sources.scenario.value = ""
    sources.guards.value = ""
    sources.preset.value = "plain"
    assert one.config == preset("plain").with_("run.seed=7")
    one.reset()
    assert (sources.preset.value, sources.seed.value) == ("smoke", 0)


def test_the_menu_of_algorithms_changes_the_formulas_and_shows_which_they_are(panel):
    one = panel()
    sources, made = one._controls.inputs.sources, one.config
    names = [value for _, value in sources.algorithm.options]
    assert names == ["", *algorithm_names()] and sources.algorithm.value == ""
    for name in algorithm_names():
        sources.algorithm.value = name
        assert one.config == made.with_algorithm(name)
        assert sources.algorithm.value == name
        assert algorithm(name).differs in sources.algorithm.tooltip
    sources.algorithm.value = ""
    assert one.config == made
    sources.scenario.value = "cuda-001"
    assert sources.algorithm.value == "grpo"
    one.set("loss.surrogate=sapo")
    assert sources.algorithm.value == "sapo"
    one.reset()
    assert (one.config, sources.algorithm.value) == (made, "")


def test_an_algorithm_that_makes_a_guard_idle_says_so(panel):
    one = panel()
    one.switch("dual_clip", True)
    assert "no effect" not in one._render_state.note
    one._controls.inputs.sources.algorithm.value = "cispo"
    assert "guards.dual_clip has no effect under loss.surrogate=cispo" in one._render_state.note


def test_an_algorithm_that_the_groups_do_not_allow_is_refused(panel):
    one = panel()
    one.set("data.num_generations=1", "data.allow_single_generation=true")
    one._controls.inputs.sources.algorithm.value = "rloo"
    assert "leave_one_out" in one._render_state.note
    assert one._controls.inputs.sources.algorithm.value == ""


def test_only_what_a_lab_asks_for_is_shown(panel):
    one = panel(controls=("beta",), guards_shown=("clamp_kl",))
    assert [row.slider.path for row in one._controls.inputs.rows] == ["loss.beta"]
    assert list(one._controls.inputs.switches._boxes) == ["clamp_kl", "clip_gradients"][:1]


def titles(panel, **options):
    """The titles of a panel's tabs, the open one first."""
    tabs = find(panel(**options), "controls").children[0]
    return tabs.titles[tabs.selected_index], *tabs.titles


def test_a_tab_without_content_is_left_out(panel):
    """Lab 8 shows its recordings without sliders and switches; an empty tab stood open."""
    assert titles(panel) == ("Settings", "Settings", "Guards", "Scenario", "Runs")
    assert titles(panel, guards_shown=("clamp_kl",)) == ("Guards", "Settings", "Guards", "Scenario", "Runs")
    assert titles(panel, recording="mystery-1", controls=(), guards_shown=()) == ("Runs", "Scenario", "Runs")


def test_a_guard_switched_on_says_why_without_a_pointer(panel, seen):
    """The reason was a tooltip alone."""
    one = panel()
    box, about = (getattr(one._controls.inputs.switches, each)["clamp_kl"] for each in ("_boxes", "_about"))
    one.switch("clip_gradients", True)
    assert about.value == "" and not box.value
    box.value = True
    assert "an infinite KL loss" in about.value and "Costs" not in about.value
    one._controls.inputs.switches.explain("clamp_kl")
    assert "<dt>Costs</dt>" in about.value, "the button still shows everything"
    one._controls.inputs.switches.explain("clamp_kl")
    assert about.value == ""
    box.value = False
    assert about.value == ""


@pytest.mark.parametrize("name", SLIDERS)
def test_every_slider_has_its_place_and_its_help(name):
    told = []
    row = SliderRow(name, lambda name, override: told.append(override))
    row.show(Config())
    assert told == []
    assert row.slider.setting.help
    assert all(each.description and each.tooltip for each in row._inputs)
    assert row._inputs[-1].value == row.slider.of(Config())
    if row.slider.kind != "menu":
        row._inputs[0].value = row.slider.high
        assert row._inputs[1].value == pytest.approx(row.slider.high)
        (override,) = told
        assert row.slider.of(Config().with_(override)) == pytest.approx(row.slider.high)


def test_every_guard_says_what_it_stops_costs_and_hides(panel):
    switches = panel()._controls.inputs.switches
    for name in GUARDS:
        switches.explain(name)
        about = switches._about[name].value
        assert "<dt>Stops</dt>" in about, name
        assert "<dt>Costs</dt>" in about, name
        assert "<dt>Hides</dt>" in about, name
        switches.explain(name)
        assert switches._about[name].value == ""


def test_a_config_that_cannot_run_gives_the_child_back(tmp_path):
    child_pool.warm_up()
    runner = Runner(tmp_path)
    with pytest.raises(ConfigError):
        runner.start(Config().with_("loss.kl_estimator=k9"), panel)  # type: ignore
    assert not runner.running
    assert len(child_pool._idle) == 1


def test_a_run_below_its_cell_breaks_no_word(tmp_path):
    """JupyterLab cuts a long line of text anywhere: "rewar / d", "0. / 25"."""
    run = Run(preset("smoke"), tmp_path / "run")
    values = {"grad_norm": 1.0, "kl": 0.5, "reward": 0.25, "ratio/max": 1.0}
    run.events = [Stepped(step, 1, Verdict.KEEP, {k: v + step for k, v in values.items()}, (), ()) for step in (0, 1)]
    words = f"{describe(fold(run.events))} ({run.directory})"
    assert repr(run) == words
    shown, _ = DisplayFormatter().format(run)  # type: ignore[no-untyped-call]
    assert shown["text/html"] == f"<p>{words}</p>", "text of a page breaks between words"


@pytest.mark.parametrize("part", ["Run", "threading.Thread"])
def test_a_run_that_cannot_be_made_gives_its_child_back(monkeypatch, panel, tmp_path, part):
    child_pool.warm_up()
    (child,) = child_pool._idle

    def refuse(*_, **__):
        raise RunError("no run")

    shown, runner = panel(), Runner(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(f"grpo_lab.ui.widgets.runner.{part}", refuse)
        with pytest.raises(RunError, match="no run"):
            runner.start(preset("smoke"), shown)
    assert not runner.running and runner.session is None
    assert child_pool._idle == [child] and child.alive


def said(panel) -> list[str]:
    """Every description, tooltip, title, option and text of a panel's widgets, but its figure's numbers."""
    found = []

    def look(widget):
        for name in ("description", "tooltip", "titles", "_options_labels"):
            value = getattr(widget, name, None)
            found.extend([value] if isinstance(value, str) else value or ())
        for child in getattr(widget, "children", ()):
            look(child)

    look(panel.widget)
    return [text for text in found if text]


def test_in_chinese_every_word_is_there(panel, seen, monkeypatch):
    monkeypatch.setenv(messages.VARIABLE, "en")
    english = said(panel(recording="cuda-001-smollm2-135m-original"))
    messages.use("zh")
    one = panel(recording="cuda-001-smollm2-135m-original")
    assert "crashed" not in words(one)
    assert "Start" in english and "开始" in said(one) and len(said(one)) == len(english)
    assert not [each for each in said(one) if each in english and " " in each and "★" not in each]
    one.step()
    find(one, "guard-clamp_kl").children[0].children[1].click()
    with pytest.raises(RunError):
        panel().keep("A")
