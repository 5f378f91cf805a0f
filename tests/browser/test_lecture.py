"""The lecture in the browser: its keys, its buttons, and what is seen of the code."""

import json
import re

from playwright.sync_api import expect

LATER = 40_000
"""Milliseconds for what waits for a run."""


def says(nb, words: str | re.Pattern) -> None:
    """Wait until the heading names the failure so."""
    expect(nb.find("says")).to_contain_text(words, timeout=LATER)


def shows_step(nb, words: str) -> None:
    """Wait until the slider stands there."""
    expect(nb.find("time").locator(".widget-readout")).to_have_text(words, timeout=LATER)


def test_lecture_by_keys(notebook):
    nb = notebook("from grpo_lab.ui.widgets import Lecture\n\nLecture()", mode="doc")
    nb.run_cell(0)
    says(nb, "A healthy run")
    keys = nb.page.keyboard
    expect(nb.find("lecture")).to_be_focused(timeout=LATER)
    expect(nb.page.locator(".jp-Cell-inputWrapper").first).to_be_hidden()

    keys.press("5")
    says(nb, "From a finite loss")
    keys.press("End")
    expect(nb.find("status")).to_contain_text("crashed in torch.multinomial", timeout=LATER)
    picture = nb.picture()
    keys.press("b")
    keys.press("End")
    expect(nb.find("status")).to_contain_text("done", timeout=LATER)
    assert nb.picture() != picture
    keys.press("ArrowLeft")
    keys.press("ArrowLeft")
    shows_step(nb, "10")
    keys.press("ArrowRight")
    shows_step(nb, "11")
    keys.press("Space")
    expect(nb.find("status")).to_contain_text("done", timeout=LATER)
    keys.press("Space")  # from the start again
    expect(nb.find("play")).to_contain_text("Pause")
    keys.press("Space")
    expect(nb.find("play")).to_contain_text("Play")

    nb.find("scenario-2").click()
    says(nb, "explodes")
    keys.press("Space")  # the key of the lecture, not of the button that the mouse left
    expect(nb.find("play")).to_contain_text("Play")
    says(nb, "explodes")
    keys.press("r")
    says(nb, "A healthy run")
    assert nb.page.locator(".jp-Cell").count() == 1  # JupyterLab's own keys, a and b among them, kept out


def test_lecture_trains_live_in_a_view_of_its_own(notebook):
    nb = notebook("from grpo_lab.ui.widgets import Lecture\n\nLecture()")
    nb.run_cell(0)
    says(nb, "A healthy run")
    nb.command("notebook:create-output-view")
    view = nb.page.locator(".jp-LinkedOutputView")
    view.locator(".grpo-lab-scenario-5").click()
    expect(view.locator(".grpo-lab-says")).to_contain_text("From a finite loss", timeout=LATER)
    expect(view.locator(".grpo-lab-start")).to_be_hidden()
    view.locator(".grpo-lab-live").click()
    view.locator(".grpo-lab-start").click()
    expect(view.locator(".grpo-lab-status")).to_contain_text("crashed in torch.multinomial", timeout=LATER)
    expect(view.locator(".grpo-lab-banner")).to_contain_text("probability tensor contains either", timeout=LATER)


def test_the_words_are_chinese_where_asked(notebook):
    nb = notebook(
        "import os\nos.environ['GRPO_LAB_LANG'] = 'zh'\nfrom grpo_lab.ui.widgets import Panel\n"
        "Panel(recording='lecture-cuda-001')"
    )
    nb.run_cell(0)
    expect(nb.find("status")).to_contain_text("崩溃", timeout=LATER)
    expect(nb.find("start")).to_contain_text("开始")
    words = nb.find("panel").inner_text()
    english = [word for word in json.loads('["Start", "Settings", "crashed", "First break"]') if word in words]
    assert english == []
