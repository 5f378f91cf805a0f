"""The static site: its pages, links, pictures and animation."""

import importlib.util
import json
import re

import nbformat
import pytest
from PIL import Image

from grpo_lab.course.registry import lab_page
from grpo_lab.messages import languages, text_in
from grpo_lab.ui import html as macros
from website import animation, checks, pages
from website.__main__ import main, site

LAB = "01_grpo_by_hand"
ASKED = lab_page(LAB).questions
PICTURE = (
    '<figure class="grpo-lab-picture"><img alt="a run" src="data:image/png;base64,bGlnaHQ="'
    ' style="max-width:100%; --dark:url(data:image/png;base64,ZGFyaw==)"><figcaption>a run</figcaption></figure>'
    "<style>p { color: red }</style>"
)


def executed(*outputs, source="panel", cell="cell"):
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source, id=cell)])
    book.cells[0].outputs = [nbformat.v4.new_output("display_data", data=data) for data in outputs]
    return book


def made(tmp_path, book):
    learner = nbformat.from_dict({**book, "cells": [{**cell, "outputs": []} for cell in book.cells]})
    return pages.page(learner, book, tmp_path, 1).cells[0].outputs


def test_a_panel_is_a_picture_for_light_pages_and_one_for_dark_ones(tmp_path):
    widget = {pages.WIDGET: {"model_id": "1"}, "text/plain": "Panel"}
    (shown,) = made(tmp_path, executed(widget, {"text/html": PICTURE, "text/plain": "a run"}))
    html = shown.data["text/html"]
    assert "<style>" not in html and "base64" not in html
    assert html.count('alt="a run"') == 2
    for theme, content in (("light", b"light"), ("dark", b"dark")):
        source = html.partition(f'class="only-{theme}"')[2].partition('src="../_static/')[2].partition('"')[0]
        assert (tmp_path / source).read_bytes() == content


def test_a_line_of_progress_that_was_wiped_leaves_no_empty_box(tmp_path):
    (shown,) = made(tmp_path, executed({"text/plain": ""}, {"text/plain": "1"}))
    assert shown.data == {"text/plain": "1"}


def test_questions_are_shown_with_folded_replies(tmp_path):
    below = {"text/html": macros.fill("questions", ASKED), "text/plain": ""}
    (shown,) = made(tmp_path, executed({pages.WIDGET: {"model_id": "1"}}, below, source="lab.questions()"))
    html = shown.data["text/html"]
    assert html.count("<details>") == sum(len(question.options) for question in ASKED)
    assert html.count("✓") == len(ASKED)
    assert "<style>" not in html


@pytest.mark.parametrize("language", languages())
def test_where_a_panel_was_before_stands_nothing(tmp_path, language):
    moved = {
        "text/html": f"<p>{text_in(language, 'panel.moved')}</p>",
        "text/plain": "<IPython.core.display.HTML object>",
    }
    (shown,) = made(tmp_path, executed(moved, {"text/plain": "1"}))
    assert shown.data == {"text/plain": "1"}


def test_a_figure_is_named_by_the_title_that_its_cell_gives_it(tmp_path):
    drawn = executed({"image/png": "bGlnaHQ="}, source='draw(log["both"], "Two objectives, no controller")')
    page = pages.page(nbformat.from_dict(drawn), drawn, tmp_path, 1)
    assert page.cells[0].metadata.mystnb.image.alt == "Two objectives, no controller"


def test_a_lab_links_to_itself_in_the_other_language(tmp_path):
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# Lab 1. By hand\n\n*40 minutes*")])
    page = pages.page(book, None, tmp_path, 1, {"中文": "zh/01_grpo_by_hand.ipynb"})
    assert page.cells[0].source == "# Lab 1. By hand\n\n[中文](zh/01_grpo_by_hand.ipynb)\n\n*40 minutes*"


def test_a_lab_that_was_not_executed_has_no_outputs(tmp_path):
    book = executed({"text/plain": "1"})
    assert pages.page(book, None, tmp_path, 1).cells[0].outputs == []


def test_a_sound_site_has_no_faults(tmp_path):
    (tmp_path / "a.html").write_text(
        '<a href="b/c.html#here">c</a><a href="#top" id="top"></a><a href="https://x.y">x</a>'
    )
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "c.html").write_text('<p id="here"><img src="../p.png" alt="a plot"></p>')
    (tmp_path / "p.png").write_bytes(b"")
    assert list(checks.faults(tmp_path)) == []


@pytest.mark.parametrize(
    ("html", "fault"),
    [
        ('<a href="gone.html">x</a>', "'gone.html' leads to no file"),
        ('<a href="#gone">x</a>', "'#gone' leads to no such place"),
        ('<a href="../../etc">x</a>', "'../../etc' leads out of the site"),
        ('<img src="page.html">', "the picture 'page.html' has no text"),
        ('<img src="page.html" alt=" ">', "the picture 'page.html' has no text"),
        ('<img src="page.html" alt="_images/1f.png">', "the picture 'page.html' has no text"),
    ],
)
def test_a_fault_of_a_page_is_named(tmp_path, html, fault):
    (tmp_path / "page.html").write_text(html)
    assert list(checks.faults(tmp_path)) == [f"page.html: {fault}"]


def test_a_site_without_pages_is_a_fault(tmp_path):
    assert list(checks.faults(tmp_path)) == [f"{tmp_path}: no pages"]


def test_an_unknown_lab_is_a_mistake_of_the_user(capsys, tmp_path):
    assert main(["--lab", "01_grpo", "--out", str(tmp_path)]) == 2
    assert "unknown lab '01_grpo'" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("myst_nb"), reason="the extra `site` is not installed")
def test_the_site_is_built_with_a_lab_that_was_executed(tmp_path, monkeypatch):
    monkeypatch.setenv("GRPO_LAB_FAST", "1")
    monkeypatch.setattr(animation, "STEPS", 16)
    monkeypatch.setattr(animation, "BREAKS_IN", 4)
    assert site(tmp_path, [LAB], jobs=1) == 0
    html = tmp_path / "html"
    lab = (html / "labs" / LAB / f"{LAB}.html").read_text(encoding="utf-8")
    assert lab.count('class="only-dark"') >= 2 and "grpo-lab-feedback" in lab and "widget-view" not in lab
    chinese = (html / "labs" / LAB / "zh" / f"{LAB}.html").read_text(encoding="utf-8")
    assert '<html lang="zh-CN"' in chinese and "显示参考答案" in chinese and "Show a model answer" not in chinese
    assert "<math" in lab and 'src="http' not in lab, "formulas need no script from the network"
    assert "old_logprobs</mtext>" in lab and r"old\_logprobs" not in lab
    for page, link, name in ((lab, f"zh/{LAB}", "中文"), (chinese, f"../{LAB}", "English")):
        assert re.search(rf'href="{link}\.html"><[^>]*>{name}<', page)
    assert "上一页" in chinese and "上一页" not in lab
    index = (html / "searchindex.js").read_text(encoding="utf-8")
    assert {"docs/diagnose", "docs/matrix/findings", f"labs/{LAB}/{LAB}"} <= set(
        json.loads(index.partition("(")[2].rpartition(")")[0])["docnames"]
    )
    for language in animation.ALT:
        with Image.open(html / "_static" / f"saved.{language}.png") as moving:
            assert getattr(moving, "n_frames", 1) > 10, "up to the crash, and to the end of the saved run"
