"""The lecture in the browser: its keys, its buttons, and the hidden code."""

import re

import pytest
from playwright.sync_api import expect

LECTURE = "from grpo_lab.ui.widgets import Lecture\n\nLecture()"


def says(nb, words: str | re.Pattern) -> None:
    """Wait until the heading contains the words."""
    expect(nb.find("says")).to_contain_text(words)


def shows_step(nb, words: str) -> None:
    """Wait until the slider shows this step."""
    expect(nb.find("time").locator(".widget-readout")).to_have_text(words)


@pytest.mark.slow
def test_lecture_trains_live_in_a_view_of_its_own(notebook):
    nb = notebook(LECTURE)
    nb.run_cell(0)
    says(nb, "A healthy run")
    nb.command("notebook:create-output-view")
    view = nb.page.locator(".jp-LinkedOutputView")
    view.locator(".grpo-lab-scenario-5").click()
    expect(view.locator(".grpo-lab-says")).to_contain_text("From a finite loss")
    expect(view.locator(".grpo-lab-start")).to_be_hidden()
    view.locator(".grpo-lab-live").click()
    view.locator(".grpo-lab-start").click()
    expect(view.locator(".grpo-lab-status")).to_contain_text("crashed in torch.multinomial")
    expect(view.locator(".grpo-lab-banner")).to_contain_text("probability tensor contains either")


@pytest.mark.slow
def test_lecture_by_keys(notebook):
    nb = notebook(LECTURE, document=True)
    nb.run_cell(0)
    says(nb, "A healthy run")
    keys = nb.page.keyboard
    expect(nb.find("lecture")).to_be_focused()
    expect(nb.page.locator(".jp-Cell-inputWrapper").first).to_be_hidden()

    keys.press("5")
    says(nb, "From a finite loss")
    keys.press("End")
    expect(nb.find("status")).to_contain_text("crashed in torch.multinomial")
    picture = nb.picture()
    keys.press("b")
    keys.press("End")
    expect(nb.find("status")).to_contain_text("done")
    assert nb.picture() != picture
    expect(nb.find("heal")).to_contain_text("loss.log_ratio=old")
    keys.press("ArrowLeft")
    keys.press("ArrowLeft")
    shows_step(nb, "58")
    keys.press("ArrowRight")
    shows_step(nb, "59")
    expect(nb.find("status")).not_to_contain_text("done")
    keys.press("Space")
    expect(nb.find("status")).to_contain_text("done")
    keys.press("Space")  # from the start again
    expect(nb.find("play")).to_contain_text("Pause")
    keys.press("Space")
    expect(nb.find("play")).to_contain_text("Play")

    nb.find("scenario-1").click(position={"x": 3, "y": 3})  # no strip of JupyterLab's lies over its left edge
    says(nb, "One corrupt sample")
    nb.find("scenario-2").click()
    says(nb, "explodes")
    keys.press("Space")  # the key of the lecture, not of the button that the mouse left
    expect(nb.find("play")).to_contain_text("Play")
    says(nb, "explodes")
    keys.press("d")
    says(nb, "Two objectives")
    keys.press("b")
    expect(nb.find("heal")).to_contain_text("loss.combination=separate")
    keys.press("r")
    says(nb, "A healthy run")
    assert nb.page.locator(".jp-Cell").count() == 1  # JupyterLab's own keys, a and b among them, kept out
