"""The panel in JupyterLab: buttons, sliders and frames. Tests wait for texts and frames, never for a time.

With GRPO_LAB_PICTURES=docs/figures the panel after its crash is saved as panel.png.
"""

import os
import re
import signal
from pathlib import Path

import pytest
from playwright.sync_api import expect

IMPORT = "from grpo_lab.ui.widgets import Panel\nfrom grpo_lab.events import Changed, Stepped"
LONG = "panel = Panel(preset='stable', overrides=('run.num_steps=1000',))"
"""A run that goes on until it is stopped."""


def step_shown(nb, which: int = 0) -> int:
    """The step that the status names; -1 while it names none."""
    found = re.search(r"step (\d+)", nb.find("status", which).inner_text())
    return int(found[1]) if found else -1


def status(nb, words: str | re.Pattern, which: int = 0) -> None:
    """Wait until the panel says so."""
    expect(nb.find("status", which)).to_contain_text(words)


def begin(nb, which: int = 0) -> None:
    nb.find("start", which).click()
    expect(nb.find("status", which)).to_contain_text(re.compile(r"step [1-9]"))


def test_start_moves_the_plot_a_slider_acts_and_stop_answers(notebook, wait_until):
    nb = notebook(
        IMPORT + "\n" + LONG + "\npanel",
        "print([event.overrides for event in panel.session.events if isinstance(event, Changed)])",
        "print(panel.session.status, len(panel.session.records))",
    )
    nb.run_cell(0)
    nb.count_frames()
    before = nb.picture()
    begin(nb)
    first = step_shown(nb)
    wait_until("ten new pictures", lambda: nb.frames() >= 10)
    wait_until("a later step", lambda: step_shown(nb) > first)
    assert nb.picture() != before

    number = nb.find("set-learning_rate").locator("input[type=text], input[type=number]").first
    number.fill("1e-5")
    number.press("Enter")
    changed = nb.output(1)
    wait_until("the change is an event", lambda: nb.run_cell(1) or "learning_rate=1e-05" in changed.inner_text())

    nb.find("stop").click()
    status(nb, "stopped")
    nb.run_cell(2)
    expect(nb.output(2)).to_contain_text("stopped")


@pytest.mark.slow
def test_stop_answers_while_a_cell_awaits_and_after_a_reload(notebook, wait_until):
    nb = notebook(
        IMPORT + "\n" + LONG + "\npanel",
        "session = await panel.run()\nprint('over:', session.status)",
        "print('the kernel', 'answers')",
    )
    nb.run_cell(0)
    nb.find("start").wait_for()
    nb.run_cell(1)
    status(nb, re.compile(r"step [1-9]"))
    nb.save()
    nb.load()
    status(nb, "step")
    nb.count_frames()
    wait_until("the plot goes on", lambda: nb.frames() >= 3)
    nb.find("stop").click()
    status(nb, "stopped")
    nb.run_cell(2)
    expect(nb.output(2)).to_contain_text("the kernel answers")


@pytest.mark.slow
def test_an_algorithm_is_chosen_during_a_run(notebook):
    changes = "print([event.overrides for event in panel.session.events if isinstance(event, Changed)])"
    nb = notebook(f"{IMPORT}\n{LONG}\npanel", changes)
    nb.run_cell(0)
    begin(nb)
    nb.find("panel").get_by_role("tab", name="Scenario").click()
    nb.find("set-algorithm").locator("select").select_option("cispo")
    status(nb, "loss.surrogate=cispo")
    expect(nb.find("panel").get_by_text("Clipped importance sampling weights")).to_be_visible()
    nb.find("stop").click()
    status(nb, "stopped")
    nb.run_cell(1)
    expect(nb.output(1)).to_contain_text("loss.surrogate=cispo")


@pytest.mark.slow
def test_the_panel_in_chinese(notebook):
    use = "from grpo_lab import messages\nmessages.use({!r})"
    panel = f"{IMPORT}\n{use.format('zh')}\npanel = Panel(recording='lecture-train-001')\npanel"
    nb = notebook(panel, use.format("en"))
    nb.run_cell(0)
    expect(nb.find("start")).to_have_text("开始")
    expect(nb.find("panel").get_by_role("tab", name="防护")).to_be_visible()
    status(nb, "步")
    nb.run_cell_to_its_end(1)  # other tests share the kernel


@pytest.mark.slow
def test_an_awaited_run_is_steered_on_one_screen_in_both_themes_and_leaves_a_picture(notebook, server):
    """With Shift+Enter the panel was above the view for the whole run, and a dark theme hid its labels."""
    options = "guards=('clamp_log_ratio',), guards_shown=('clamp_log_ratio', 'clamp_kl'), pause_at=4, pace=20"
    made = f"panel = Panel('zero-times-infinity', preset='plain', overrides=('run.num_steps=8',), {options})"
    below = "\n".join(f"print({number})" for number in range(30))
    nb = notebook(f"{IMPORT}\n{made}\nrun = await panel.run()\nprint('over:', run.status)", below)
    nb.page.set_viewport_size({"width": 1440, "height": 900})
    nb.page.evaluate("jupyterapp.shell.currentWidget.content.activeCellIndex = 0")
    nb.command("notebook:run-cell-and-select-next")
    status(nb, "paused")
    nb.page.evaluate("document.querySelector('.jp-WindowedPanel-outer').scrollBy(0, 300)")  # as JupyterLab does
    for part in ("status", "plot", "chain", "pause", "guard-clamp_log_ratio", "guard-clamp_kl"):
        expect(nb.find(part)).to_be_in_viewport(ratio=1)
    nb.page.mouse.move(700, 400)
    nb.page.mouse.wheel(0, 600)
    expect(nb.find("status")).not_to_be_in_viewport()
    for theme in ("Dark", "Light"):
        nb.page.evaluate(
            "theme => jupyterapp.commands.execute('apputils:change-theme', {theme})", f"JupyterLab {theme}"
        )
        nb.page.wait_for_function(
            """dark => { const ink = document.querySelector('.grpo-lab-panel .widget-label');
                const paper = document.querySelector('.grpo-lab-panel');
                const light = (style) => Math.max(...style.match(/[0-9]+/g).slice(0, 3).map(Number)) > 127;
                const words = light(getComputedStyle(ink).color), page = light(getComputedStyle(paper).backgroundColor);
                return words === dark && page === !dark }""",
            arg=theme == "Dark",
        )
    nb.find("guard-clamp_kl").locator("input").check()
    nb.find("pause").click()
    expect(nb.output(0)).to_contain_text("over: done")
    alt = nb.find("plot").evaluate("plot => (plot.matches('img') ? plot : plot.querySelector('img')).alt")
    assert "clamp_log_ratio acted from step 1 on" in alt
    expect(nb.find("picture")).not_to_be_visible()
    nb.save()
    server.call(f"kernels/{nb.kernel}/restart", restart=True)
    nb.load()
    expect(nb.find("picture").locator("img")).to_be_visible()
    expect(nb.page.get_by_text("model not found")).not_to_be_visible()
    nb.page.set_viewport_size({"width": 1280, "height": 1000})
    nb.page.goto(f"{server.url}/lab?reset")  # for the next test, whose page must not open this notebook again
    nb.page.wait_for_function("globalThis.jupyterapp?.restored.then(() => true)")


@pytest.mark.slow
def test_run_all_goes_through_a_crash_and_a_killed_child_leaves_the_kernel_usable(notebook, server, wait_until):
    nb = notebook(
        IMPORT + "\npanel = Panel('cuda-001', controls=('learning_rate', 'beta', 'temperature', 'precision'))\npanel",
        "run = await panel.run()\nprint('the kernel answers:', run.status)",
        "panel.set('run.num_steps=1000')\nprint('long', 'enough')",  # the healthy run must not end before it is killed
    )
    nb.run_all()
    status(nb, "crashed in torch.multinomial")
    expect(nb.find("banner")).to_contain_text("probability tensor contains either")
    expect(nb.output(1)).to_contain_text("the kernel answers: crashed")
    expect(nb.output(2)).to_contain_text("long enough")
    expect(nb.find("plot")).to_be_visible()
    if folder := os.environ.get("GRPO_LAB_PICTURES"):
        nb.page.set_viewport_size({"width": 1380, "height": 1800})
        nb.find("panel").screenshot(path=Path(folder) / "panel.png")
        nb.page.set_viewport_size({"width": 1280, "height": 1000})

    nb.find("healthy").click()
    expect(nb.find("banner")).not_to_be_visible()
    nb.run_cell(2)
    nb.idle()
    begin(nb)
    for pid in server.workers():
        os.kill(pid, signal.SIGKILL)
    status(nb, "crashed")
    expect(nb.find("banner")).to_contain_text("SIGKILL")

    nb.find("reset").click()
    status(nb, "waiting")
    expect(nb.find("banner")).not_to_be_visible()


@pytest.mark.slow
def test_a_recording_is_scrubbed_and_two_panels_run_at_once(notebook, server, wait_until):
    nb = notebook(
        IMPORT + "\npanel = Panel(recording='kl-explosion-smollm2')\npanel",
        "one = Panel(preset='stable', overrides=('run.num_steps=1000',))\none",
        "two = Panel('train-001', overrides=('run.num_steps=1000',))\ntwo",
        "print('the kernel', 'answers')",
    )
    nb.run_cell(0)
    status(nb, "step 7")
    before = nb.picture()
    handle = nb.find("time").locator("[role=slider]")
    for _ in range(4):
        handle.press("ArrowLeft")
    status(nb, "step 3")
    wait_until("another picture", lambda: nb.picture() != before)

    nb.run_cell(1)
    nb.run_cell(2)
    begin(nb, 1)
    begin(nb, 2)
    assert len(server.workers()) >= 2
    nb.find("stop", 1).click()
    status(nb, "stopped", 1)
    now = step_shown(nb, 2)
    wait_until("the other goes on", lambda: step_shown(nb, 2) > now)
    old = set(server.workers())
    nb.command("kernelmenu:restart")
    nb.page.get_by_role("button", name="Confirm Kernel Restart").click()
    wait_until("a restart leaves no child behind", lambda: not old & set(server.workers()))
    nb.idle()
    nb.run_cell(3)
    expect(nb.output(3)).to_contain_text("the kernel answers")
