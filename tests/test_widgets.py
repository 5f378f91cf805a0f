"""The panel without a browser: runs in real children, steered by methods and by its widgets."""

import asyncio
import os
import re
import signal
import threading
import time
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from jupyter_client.manager import start_new_kernel

from grpo_lab import messages
from grpo_lab.analysis.run_state import fold
from grpo_lab.config.algorithms import algorithm, algorithm_names
from grpo_lab.config.catalog import preset, scenario
from grpo_lab.config.schema import Config
from grpo_lab.errors import ConfigError, ModelError, RunError
from grpo_lab.events import Changed, Ended, Forked, Resumed, Stepped
from grpo_lab.runs import child as child_pool
from grpo_lab.runs import run_folder
from grpo_lab.runs.child import Child
from grpo_lab.ui import notebook_mode
from grpo_lab.ui.plots.style import GHOST
from grpo_lab.ui.widgets import Panel
from grpo_lab.ui.widgets import panel as panel_module
from grpo_lab.ui.widgets.controls import SLIDERS, SliderRow
from grpo_lab.ui.widgets.parts import Muted
from tests.steps import told

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
    until("the panel knows", lambda: not panel.timeline.live)


def words(panel) -> str:
    assert panel.frames.settle(60)
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
def test_headless_and_watched_it_is_the_same_run(panel, monkeypatch):
    headless = panel(pace=0.001)
    session = run(headless)
    assert (session.status, len(steps(headless)), headless.session) == ("done", 3, session)
    bundle = headless._repr_mimebundle_()
    assert bundle["text/html"].startswith('<figure class="grpo-lab-picture"><img alt="smoke: done')
    assert find(headless, "plot").value == b"", "nothing is drawn"
    assert session._repr_html_() == f"<p>{session!r}</p>", "JupyterLab breaks plain text inside words"

    monkeypatch.setattr(notebook_mode, "headless", lambda: False)
    one = panel(pace=4)
    assert "application/vnd.jupyter.widget-view+json" in one._repr_mimebundle_()
    assert "waiting" in words(one)
    empty, begin = bytes(find(one, "plot").value), time.monotonic()
    assert empty.startswith(b"\x89PNG"), "drawn before a page can ask for it"
    watched = run(one)
    assert time.monotonic() - begin >= 2 / 4  # three steps begin at this pace
    assert "done" in words(one) and "step 2 · 3 of 3 steps" in words(one)
    assert find(one, "plot").value != empty
    find(one, "table-on").value = True
    words(one)
    assert "<td>" in find(one, "samples").value and find(one, "table").value.count("<tr>") == 4
    losses = [[e.metrics["loss"] for e in each.events if isinstance(e, Stepped)] for each in (session, watched)]
    assert losses[0] == losses[1]


@pytest.mark.slow
def test_a_panel_stands_where_its_run_is_awaited(panel, seen, monkeypatch):
    """In one cell it is shown once; in a later cell it moves there, and a picture stays behind."""
    outputs, cell = [], [7]

    def display(what, **_):
        held = [what]
        outputs.append(held)
        return SimpleNamespace(update=held.append)

    monkeypatch.setattr(panel_module, "display", display)
    monkeypatch.setattr(panel_module, "cell", lambda: cell[0])
    one = panel()
    run(one)
    view, picture = outputs
    assert "application/vnd.jupyter.widget-view+json" in view[0]
    until("the picture is there", lambda: '<img alt="smoke: done' in picture[-1].data)
    cell[0] += 1
    run(one)
    assert "moved" in view[-1].data and "<img alt" in picture[-1].data
    assert "application/vnd.jupyter.widget-view+json" in outputs[2][0]
    one._ipython_display_()
    assert len(outputs) == 4, "it stands in this cell already"


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


def test_a_recording_at_its_start_is_not_starting(panel, seen):
    one = panel(recording="mystery-1")
    one.timeline.slider.value = 0
    said = words(one)
    assert "before the first step" in said and "starting" not in said


def test_an_absurd_learning_rate_is_questioned(panel, seen):
    one = panel("train-001")
    one.set("optimizer.learning_rate=1e9")
    assert "learning rate 1e+09" in words(one) and "is it meant?" in words(one)
    one.set("optimizer.learning_rate=0.02")
    assert "is it meant?" not in words(one)


def test_pause_step_and_stop(panel, seen):
    one = panel(overrides=LONG, pace=10)
    one.step()  # where there is no run it begins one, and waits after a step
    until("the first step", lambda: len(steps(one)) == 1)
    assert "paused" in words(one)
    assert find(one, "pause").description == "Resume"
    one.step()
    until("the second step", lambda: len(steps(one)) == 2)
    find(one, "pace-menu").value = 0.0
    find(one, "pause").click()
    until("it goes on", lambda: len(steps(one)) > 9)
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
    assert "Peak learning rate" in one._controls._about.value
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
    assert one.screens()[0].marked("changed") == [1]


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
def test_a_killed_run_goes_on_with_the_guard_that_was_switched_on_since(panel, seen, monkeypatch):
    monkeypatch.setattr(panel_module, "CHECKPOINT_MINUTES", 0)
    one = panel(overrides=("run.num_steps=12",))
    button = find(one, "go_on")
    assert button.layout.display == "none"
    with pytest.raises(RunError, match="no run of this panel was cut off"):
        one.go_on()
    one.start()
    until("it has trained", lambda: len(steps(one)) > 1)
    os.kill(one._runner.session._child.process.pid, signal.SIGKILL)  # type: ignore
    finish(one)
    before, folder = len(steps(one)), one.session.directory  # type: ignore
    until("it can go on", lambda: button.layout.display == "")
    assert "crashed" in words(one) and "SIGKILL" in find(one, "banner").children[0].value
    one.switch("clamp_kl", True)
    button.click()
    finish(one)
    assert one.session is not None and one.session.status == "done" and one.session.directory == folder
    (event,) = (event for event in one.session.events if isinstance(event, Resumed))
    assert 0 < event.step <= before and event.overrides == ("guards.clamp_kl=on",)
    assert [step.step for step in steps(one)] == list(range(12))
    assert button.layout.display == "none" and "resumed" in str(one.screens()[0].marks)
    assert not (folder / "checkpoints").exists()
    one.open("cuda-001-smollm2-135m-original")
    assert button.layout.display == "none", "a recording does not go on"


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
    assert one.screens()[0].completed == 2  # nothing of the run that was left


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
def test_a_fork_goes_on_beside_the_run_that_it_left(panel, seen):
    one = panel(overrides=("run.num_steps=6",))
    button = find(one, "fork")
    assert button.disabled
    with pytest.raises(RunError, match="no run on screen"):
        one.fork()
    with pytest.raises(RunError, match="no run on screen"):
        asyncio.run(one.wait())
    first = run(one)
    until("there is a step to fork at", lambda: not button.disabled)
    one.timeline.slider.value = 4
    one.switch("clamp_kl", True)
    button.click()
    assert asyncio.run(one.wait()) is one.session
    finish(one)
    second = one.session
    assert second is not None and second.directory != first.directory and second.status == "done"
    (event,) = (event for event in second.events if isinstance(event, Forked))
    assert (event.parent, event.at) == (first.directory.name, 4)
    assert [told(step) for step in steps(one)][:4] == [
        told(each) for each in first.events if isinstance(each, Stepped)
    ][:4]
    assert [(e.step, e.overrides) for e in second.events if isinstance(e, Changed)] == [(4, ("guards.clamp_kl=on",))]
    screen, others, _ = one.screens()
    assert screen.marked("forked") == [4] and list(others) == ["A"] and others["A"].step == 5
    words(one)
    assert [each.get_text() for each in one.figure._figure.legends[0].get_texts()] == ["fork at step 4", "A"]
    one.fork(2)
    finish(one)
    assert list(one.screens()[1]) == ["A", "B"] and one.screens()[0].marked("forked") == [2]
    with pytest.raises(RunError, match="from 0 to 5"):
        one.fork(6)
    assert list(one.screens()[1]) == ["A", "B"], "a mistake leaves all as it was"


@pytest.mark.slow
def test_the_last_run_stays_as_a_ghost(panel, seen):
    one = panel(pace=50)
    first = run(one)
    assert one.screens()[1] == {}
    find(one, "pace-menu").value = 0.0
    find(one, "reset").click()
    assert find(one, "pace-menu").value == 50, "Reset brings the pace back"
    ghost = one.screens()[1]
    assert list(ghost) == [GHOST] and ghost[GHOST] == fold(first.events)
    one.set("run.num_steps=2", "loss.beta=0.3")
    second = run(one)
    assert one.screens()[1] == ghost, "the plot was empty, and it stays the last run"
    words(one)
    x = one.figure._axes["reward"].get_xlim()
    assert x[1] >= 2.5 and "last run" in one.figure._figure.legends[0].get_texts()[1].get_text()
    run(one)
    assert one.screens()[1] == {GHOST: fold(second.events)}
    find(one, "ghost").value = False
    assert one.screens()[1] == {}
    find(one, "ghost").value = True
    one.keep("second")
    run(one)
    assert list(one.screens()[1]) == ["second"], "an overlay is no ghost too"
    one.healthy()
    assert GHOST not in one.screens()[1]


@pytest.mark.slow
@pytest.mark.parametrize("again", ["start", "go_on", "fork"])
def test_a_click_clears_badge_and_banner_of_the_run_before(panel, seen, monkeypatch, again):
    one = panel(overrides=LONG)
    one.start()
    until("it has trained", lambda: len(steps(one)) > 2)
    os.kill(one._runner.session._child.process.pid, signal.SIGKILL)  # type: ignore
    finish(one)
    banner = find(one, "banner")
    assert "crashed" in words(one) and banner.layout.display == "flex"
    child = child_pool.take()  # its run begins when the test lets it
    monkeypatch.setattr(child, "begin", lambda *_: gate.wait(60) and Child.begin(child, *_))
    monkeypatch.setattr(panel_module, "take", lambda: child)
    gate = threading.Event()
    try:
        find(one, again).click()
        shown = until("the badge is cleared", lambda: "starting" in words(one) and words(one))
        assert "crashed" not in shown and "SIGKILL" not in shown and banner.layout.display == "none"
    finally:
        gate.set()
    until("it trains", lambda: len(steps(one)) > 3)
    assert "starting" not in until("a later word", lambda: "step" in words(one) and words(one))


def answer(client, asked):
    """A kernel's reply to a request."""
    replies = iter(lambda: client.get_shell_msg(timeout=180), None)
    return next(each["content"] for each in replies if each["parent_header"].get("msg_id") == asked)


@pytest.mark.slow
def test_an_interrupt_of_the_kernel_stops_the_run_after_its_step(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    manager, client = start_new_kernel(cwd=str(tmp_path), kernel_name="python3")
    try:
        cell = (
            "from grpo_lab.ui.widgets import Panel\npanel = Panel(preset='smoke', overrides=('run.num_steps=99999',))\n"
        )
        # A kernel aborts the cells that come right after an error, the next one of this test too.
        asked = client.execute(f"{cell}await panel.run()\nprint('not reached')", stop_on_error=False)
        until("it trains", lambda: any(run_folder.num_lines(each) > 3 for each in tmp_path.glob("runs/*")))
        manager.interrupt_kernel()
        reply = answer(client, asked)
        assert (reply["status"], reply["ename"]) == ("error", "RunError")
        (line,) = reply["traceback"]
        assert re.fullmatch(r"RunError: you interrupted the kernel: the run was stopped after \d+ steps; .*", line)
        asked = client.execute("assert panel.session.status == 'stopped' and not panel.running")
        assert answer(client, asked)["status"] == "ok"
        (events,) = tmp_path.glob("runs/*/events.jsonl")
        assert '"Ended","status":"stopped","message":"by the user"' in events.read_text(encoding="utf-8")
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


@pytest.mark.slow
def test_runs_are_kept_opened_and_exported(panel, tmp_path, seen):
    one = panel()
    with pytest.raises(RunError, match="no run on screen"):
        one.keep("A")
    first = run(one)
    one.keep("unguarded")
    one.set("loss.beta=0.3")
    second = run(one)
    assert list(one.screens()[1]) == ["unguarded"]
    assert "unguarded" in find(one, "kept").value
    path = one.export()
    with zipfile.ZipFile(path) as archive:
        names = {name.rpartition("/")[2] for name in archive.namelist()}
    assert names == {"config.json", "environment.json", "events.jsonl", "figure.png"}
    one.clear()
    assert one.screens()[1] == {}
    options = dict(find(one, "open").options)
    assert options[first.directory.name] == str(first.directory)
    find(one, "open").value = str(first.directory)
    assert one.session is not None
    assert one.session.directory == first.directory != second.directory
    again = panel(recording=first.directory)  # as after a restart of the kernel
    assert again.config == first.config
    assert repr(again.session.events) == repr(first.events)


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
    made = one.config
    preset_, scenario_, guards, algorithms_, seed = (
        find(one, f"set-{name}") for name in ("preset", "scenario", "guards_of", "algorithm", "seed")
    )
    scenario_.value = "cuda-001"
    assert (preset_.value, algorithms_.value) == (scenario("cuda-001").preset, "grpo")
    assert one.config == scenario("cuda-001").config()
    guards.value = "stable"
    assert one.config == scenario("cuda-001").config("stable")
    seed.value = 7
    assert one.config.run.seed == 7
    scenario_.value = guards.value = ""
    preset_.value = "plain"
    assert one.config == preset("plain").with_("run.seed=7")
    one.reset()
    assert (preset_.value, seed.value, one.config) == ("smoke", 0, made)
    assert [value for _, value in algorithms_.options] == ["", *algorithm_names()]
    for name in algorithm_names():
        algorithms_.value = name
        assert one.config == made.with_algorithm(name)
        assert algorithms_.value == name and algorithm(name).differs in algorithms_.tooltip


def test_only_what_a_lab_asks_for_is_shown(panel):
    """Lab 8 shows its recordings without sliders and switches; an empty tab stood open."""

    def titles(**options):
        tabs = find(panel(**options), "controls").children[0]
        return tabs.titles[tabs.selected_index], *tabs.titles

    assert titles() == ("Settings", "Settings", "Guards", "Scenario", "Runs")
    assert titles(guards_shown=("clamp_kl",)) == ("Guards", "Settings", "Guards", "Scenario", "Runs")
    assert titles(recording="mystery-1", controls=(), guards_shown=()) == ("Runs", "Scenario", "Runs")
    one = panel(controls=("beta",), guards_shown=("clamp_kl",))
    assert find(one, "set-beta") and len(find(one, "switches").children) == 1
    with pytest.raises(AssertionError):
        find(one, "set-epsilon")


def test_a_panel_for_a_mystery_names_no_first_break(panel, seen):
    """Before: the badge and the frame in the strip gave the answer of lab 8 away."""
    named, unnamed = (panel(recording="mystery-4", break_shown=shown) for shown in (True, False))
    assert "First break: old logprobs" in words(named)
    assert "logprobs" not in words(unnamed) and "crashed" in words(unnamed)
    assert "logprobs" not in unnamed._controls.browser.alt
    assert bytes(find(named, "chain").value) != bytes(find(unnamed, "chain").value)


def test_a_guard_switched_on_says_why_without_a_pointer(panel):
    """The reason was a tooltip alone."""
    one = panel()
    row, about = find(one, "guard-clamp_kl").children
    box, ask, _ = row.children
    one.switch("clip_gradients", True)
    assert about.value == "" and not box.value
    box.value = True
    assert "an infinite KL loss" in about.value and "<dt>Costs</dt>" in about.value and "Hides" not in about.value
    ask.click()
    assert "<dt>Hides</dt>" in about.value, "the button still shows everything"
    ask.click()
    assert about.value == ""


@pytest.mark.parametrize("name", SLIDERS)
def test_every_slider_has_its_place_and_its_help(name):
    told = []
    row = SliderRow(name, Muted(), lambda name, override: told.append(override))
    row.show(Config())
    assert told == []
    assert row.slider.setting.help
    assert all(each.description and each.tooltip for each in row.inputs)
    assert row.inputs[-1].value == row.slider.of(Config())
    if row.slider.kind != "menu":
        row.inputs[0].value = row.slider.high
        assert row.inputs[1].value == pytest.approx(row.slider.high)
        (override,) = told
        assert row.slider.of(Config().with_(override)) == pytest.approx(row.slider.high)


def test_in_chinese_every_word_is_there(panel, monkeypatch):
    """No description, tooltip, title, option or text of a widget but names stays English."""

    def said(widget) -> list[str]:
        values = [getattr(widget, name, "") for name in ("description", "tooltip", "titles", "_options_labels")]
        own = [text for each in values for text in ([each] if isinstance(each, str) else each or ()) if text]
        return own + [text for child in getattr(widget, "children", ()) for text in said(child)]

    found = {}
    for language in ("en", "zh"):
        monkeypatch.setenv(messages.VARIABLE, language)
        found[language] = said(panel(recording="cuda-001-smollm2-135m-original").widget)
    assert "Start" in found["en"] and "开始" in found["zh"] and len(found["en"]) == len(found["zh"])
    assert not [each for each in found["zh"] if each in found["en"] and " " in each and "★" not in each]
