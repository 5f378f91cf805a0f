"""The table of feedback in a browser: words stay whole, and the table stays inside its cell of the notebook."""

import pytest

from grpo_lab.course import evaluate
from grpo_lab.course.registry import exercise
from grpo_lab.ui.notebook import feedback_view

# JupyterLab's own rules for tables of an output, as of 4.6.
STYLE = """
* { box-sizing: border-box; } body { margin: 0; font: 14px/1.5 sans-serif; }
table { border-collapse: collapse; font-size: 12px; table-layout: fixed; margin: 0 auto; }
td, th { padding: 0.5em; overflow-wrap: anywhere; } code { font: 13px monospace; white-space: pre-wrap; }
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
