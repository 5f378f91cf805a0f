"""HTML of a notebook in a browser: words stay whole, tables stay in their cell, and pictures fit a dark theme."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from grpo_lab.analysis.run_state import fold
from grpo_lab.course import evaluate
from grpo_lab.course.registry import exercise
from grpo_lab.events import Ended, Started
from grpo_lab.runs.crashes import classify_crash
from grpo_lab.ui.notebook import feedback_view
from grpo_lab.ui.widgets import html
from grpo_lab.ui.widgets.live import LiveFigure

# JupyterLab's own rules for tables and texts of an output, as of 4.6.
STYLE = """
* { box-sizing: border-box; } body { margin: 0; font: 14px/1.5 sans-serif; }
table { border-collapse: collapse; font-size: 12px; table-layout: fixed; margin: 0 auto; }
td, th { padding: 0.5em; overflow-wrap: anywhere; } code { font: 13px monospace; white-space: pre-wrap; }
.jp-OutputArea-output pre { font: 13px monospace; white-space: pre-wrap; word-break: break-all; }
"""
LINES = """node => {
    const range = document.createRange();
    range.selectNodeContents(node);
    return new Set([...range.getClientRects()].map(box => Math.round(box.top))).size
}"""
ANSWER = {"spike_step": 6, "spike_norm": 139.0, "reward_noticed": True}


@pytest.mark.parametrize("width", [500, 900])
def test_no_word_of_the_feedback_is_broken(browser, width):
    asked = exercise("00_start", "reading")
    page = browser.new_page(viewport={"width": width, "height": 600})
    page.set_content(f"<style>{STYLE}</style>{feedback_view.as_html(asked, evaluate.check(asked, ANSWER))}")
    for text in ("True", "reward_noticed", "spike_norm", "✗ not yet"):
        assert page.get_by_text(text, exact=True).first.evaluate(LINES) == 1, text
    box = page.locator(".grpo-lab-feedback").bounding_box()
    assert box and box["width"] <= width
    page.close()


CRASH = "RuntimeError: probability tensor contains either `inf`, `nan` or element < 0"
LINES_OF_WORDS = """pre => { const words = pre.firstChild, range = document.createRange();
    return [...words.data.matchAll(/[^ ]+/g)].map(found => {
        range.setStart(words, found.index); range.setEnd(words, found.index + found[0].length);
        return new Set([...range.getClientRects()].map(box => Math.round(box.top))).size }) }"""


def test_no_word_of_a_crash_is_broken(browser):
    """The banner of labs 3 and 7 said "`n / an`"."""
    page = browser.new_page(viewport={"width": 430, "height": 600})
    crashed = html.banner(fold([Started({}, 1, "cpu"), Ended("crashed", "it", classify_crash(CRASH))]))
    css = (Path(html.__file__).parent / "panel.css").read_text(encoding="utf-8")
    banner = f'<div class="jp-OutputArea-output"><style>{css}</style><div class="grpo-lab-banner">{crashed}</div></div>'
    for width in range(260, 430, 10):
        page.set_viewport_size({"width": width, "height": 600})
        page.set_content(f"<style>{STYLE}</style>{banner}")
        assert set(page.locator("pre").evaluate(LINES_OF_WORDS)) == {1}, width
    page.close()


def test_the_picture_in_a_saved_notebook_fits_a_dark_theme(browser):
    """It was a light card; only the living panel knew the theme."""
    page, screen = browser.new_page(viewport={"width": 1200, "height": 500}), fold([Started({}, 1, "cpu")])
    for light, paper in (("true", 255), ("false", 33)):
        body = html.figure(LiveFigure().both(screen), screen)
        page.set_content(f"<style>figure {{ margin: 0 }}</style><body data-jp-theme-light={light}>{body}</body>")
        pixels = np.asarray(Image.open(io.BytesIO(page.locator("img").screenshot())).convert("RGB"))
        assert np.abs(pixels[2, 2].astype(int) - paper).max() <= 2
        assert (pixels == [240, 228, 66]).all(2).any() and (pixels == [0, 158, 115]).all(2).any(), "yellow stays yellow"
    page.close()
