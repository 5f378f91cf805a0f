"""The course in other languages: what one language has, every other has, and only the words differ."""

import dataclasses
import json
import re
from pathlib import Path

import jupytext
import pytest

from grpo_lab import messages
from grpo_lab.course import pages, registry
from grpo_lab.course.editions import build, nbgrader, prose, release
from grpo_lab.course.editions.solutions import NOTEBOOK
from grpo_lab.errors import ConfigError, DataError
from grpo_lab.paths import data_directory, data_tables
from grpo_lab.ui.notebook.lab import Lab

ROOT = Path(__file__).parents[1]
LABS = ROOT / "labs"
OTHERS = [language for language in messages.languages() if language != messages.ENGLISH]
NAMES = build.lab_names(LABS)
HAN = re.compile(r"[\u4e00-\u9fff]")
ENGLISH_SENTENCE = re.compile(r"(?:\b[A-Za-z]+\b[ ,]){6}")
"""Six English words in a row, outside of code: a sentence that was forgotten."""
CODE = re.compile(r"^```.*?^```|``.+?``|`[^`]+`|\$[^$]+\$|\]\([^)]*\)|\*[A-Z][^*]*\*", re.DOTALL | re.MULTILINE)


def cells(name, language, edition="instructor"):
    return json.loads(build.notebook(LABS, name, edition if name in registry.course_labs() else "learner", language))[
        "cells"
    ]


def without_words(source):
    """Code without its comments and docstrings, and without the language that a notebook begins with."""
    lines = source.split("\n")
    for span in reversed(prose._spans(source)):
        (row, column), (last, end) = span.start, span.end
        lines[row - 1 : last] = [lines[row - 1][:column] + lines[last - 1][end:]]
    return re.sub(r',? ?language="\w+"', "", "\n".join(line.rstrip() for line in lines))


def test_the_labs_have_the_languages_of_the_panel():
    assert build.languages(LABS) == ["en", *OTHERS] and OTHERS
    for language in OTHERS:
        assert sorted(path.parents[1].name for path in LABS.glob(f"*/{language}/{NOTEBOOK}")) == NAMES
        assert {path.parents[1].name for path in LABS.glob(f"*/{language}/{pages.FILE}")} == set(registry.course_labs())


@pytest.mark.parametrize("language", OTHERS)
@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_has_the_same_cells_in_every_language(name, language):
    english, other = cells(name, "en"), cells(name, language)
    assert [(each["id"], each["cell_type"], each["metadata"]) for each in english] == [
        (each["id"], each["cell_type"], each["metadata"]) for each in other
    ]
    for mine, said in zip(english, other, strict=True):
        one, two = "".join(mine["source"]), "".join(said["source"])
        if mine["cell_type"] == "code":
            assert without_words(one) == without_words(two), mine["id"]
        else:
            assert list(prose.unlike(one, two)) == [], mine["id"]


@pytest.mark.parametrize("name", NAMES)
def test_every_text_of_a_chinese_notebook_is_chinese(name):
    for cell in cells(name, "zh"):
        source = "".join(cell["source"])
        texts = [span.string for span in prose._spans(source)] if cell["cell_type"] == "code" else [source]
        for text in texts:
            bare = CODE.sub("", text)
            assert HAN.search(text) or not re.search(r"[a-z]{4,} [a-z]{4,}", bare), text
            assert not ENGLISH_SENTENCE.search(bare), ENGLISH_SENTENCE.search(bare)


@pytest.mark.parametrize("name", registry.course_labs())
def test_a_page_keeps_numbers_and_checks(name):
    english = registry.lab_page(name)
    said = pages.in_language(english, "zh")
    assert (said.minutes, said.difficulty, list(said.exercises)) == (
        english.minutes,
        english.difficulty,
        list(english.exercises),
    )
    for mine, other in zip(english.exercises.values(), said.exercises.values(), strict=True):
        assert (mine.points, mine.kind, mine.check) == (other.points, other.kind, other.check)
        for one, two in zip((mine.title, *mine.hints), (other.title, *other.hints), strict=True):
            assert list(prose.unlike(one, two)) == [] and HAN.search(two), two
    for mine, other in zip(english.questions, said.questions, strict=True):
        assert mine.right == other.right
        mine_texts = [mine.text, *(text for option in mine.options for text in option)]
        other_texts = [other.text, *(text for option in other.options for text in option)]
        for one, two in zip(mine_texts, other_texts, strict=True):
            assert list(prose.unlike(one, two)) == [], two


@pytest.fixture
def sources(tmp_path):
    """A small lab with Chinese prose; `sources(a, b)` after a change of that prose."""
    english = (
        '# %% [markdown]\n# # T\n# See `x` and 3.\n\n# %% tags=["slow"]\nlab = gl.Lab("t")  # begin\n\n'
        '# %%\ndef f(x):\n    """Twice x."""\n    # a step\n    return 2 * x\n\n# %%\nprint(1)\n'
    )
    chinese = (
        '# %% [markdown]\n# # 题\n# 见 `x` 和 3。\n# 又一行。\n\n# %% tags=["slow"]\n# 开始\n\n'
        '# %%\n"""x 的两倍。"""\n# 一步\n'
    )
    (tmp_path / "t" / "zh").mkdir(parents=True)

    def made(old="", new=""):
        assert old in chinese
        text = chinese.replace(old, new, 1)
        (tmp_path / "t" / "zh" / NOTEBOOK).write_text(text, encoding="utf-8")
        source = jupytext.reads(english, fmt="py:percent").cells
        return [cell.source for cell in prose.in_language(source, tmp_path / "t", "zh")]

    return made


def test_prose_takes_the_place_of_comments_and_docstrings(sources):
    heading, begin, function, unchanged = sources()
    assert heading == "# 题\n见 `x` 和 3。又一行。", "a browser shows a line break as a space, which Chinese has not"
    assert begin == 'lab = gl.Lab("t", language="zh")  # 开始'
    assert function == 'def f(x):\n    """x 的两倍。"""\n    # 一步\n    return 2 * x'
    assert unchanged == "print(1)"


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        (
            "和 3",
            "和 4",
            "number '3': 1 in English, 0 in the translation; .*number '4': 0 in English, 1 in the translation",
        ),
        ("`x`", "`y`", "code span '`x`': 1 in English, 0 in the translation"),
        ("# 一步\n", "", "it has 2 comments and docstrings, and in the other language 1"),
        ('tags=["slow"]', "", r"its kind, exercise and tags are \('code', '', 'slow'\)"),
        (
            "# %% [markdown]\n# # 题\n# 见 `x` 和 3。\n# 又一行。\n\n",
            "",
            "2 cells with prose; the source has 3; the first",
        ),
    ],
)
def test_prose_that_does_not_fit_is_refused_with_its_place(sources, old, new, fault):
    with pytest.raises(DataError, match=fault):
        sources(old, new)


def test_a_lab_without_the_prose_of_a_language_is_named(tmp_path):
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / NOTEBOOK).write_text("# %% [markdown]\n# # T\n")
    with pytest.raises(ConfigError, match="unknown language of t 'zh'"):
        build.notebook(tmp_path, "t", "learner", "zh")


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("title = ", "points = 3\ntitle = ", "unknown key of the page 'points'"),
        ("[exercises.order]", "[exercises.orders]", "unknown exercise 'orders'; did you mean 'order'"),
        ("[[questions]]", "[[question]]", "unknown key of the page 'question'"),
    ],
)
def test_words_that_do_not_fit_a_page_are_refused(tmp_path, old, new, fault):
    text = (LABS / "03_error_chain" / "zh" / pages.FILE).read_text(encoding="utf-8")
    assert old in text
    (tmp_path / "zh").mkdir()
    (tmp_path / "zh" / pages.FILE).write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(DataError, match=fault):
        pages.in_language(dataclasses.replace(registry.lab_page("03_error_chain"), folder=tmp_path), "zh")


def test_a_lab_in_chinese_sets_the_language_of_its_process(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(messages.VARIABLE, "en")
    assert Lab("03_error_chain", language="zh").page.title == "错误链"
    assert messages.language() == "zh"
    with pytest.raises(ConfigError, match="'fr'"):
        Lab("03_error_chain", language="fr")


def test_a_class_gets_its_notebooks_in_chinese(tmp_path):
    files = release.edition(build.LEARNER, LABS, tmp_path, ["05_kl"], "zh")
    assert "KL：数值与拉力" in files[tmp_path / "README.md"] and "| 实验 | 分钟 |" in files[tmp_path / "README.md"]
    notebook = files[tmp_path / "05_kl.ipynb"]
    assert "加引号" in notebook and "# your answer" in notebook and "BEGIN SOLUTION" not in notebook
    course = nbgrader.course(LABS, tmp_path, ["05_kl"], language="zh")
    assert "练习：" in course[tmp_path / "source" / "05_kl" / "05_kl.ipynb"]


def sections(text):
    """The sections of a page; the line that leads to the other language is left out."""
    text = re.sub(r"^.*README(\.zh)?\.md\).*$|^.*\.\./README\.md.*$", "", text, count=1, flags=re.MULTILINE)
    return re.split(r"^(?=#+ )", text, flags=re.MULTILINE)[1:]


PAGES = {"README.md": "README.zh.md"}


@pytest.mark.parametrize("page", PAGES)
def test_a_page_in_chinese_has_the_same_sections_links_and_numbers(page):
    english, chinese = (sections((ROOT / name).read_text(encoding="utf-8")) for name in (page, PAGES[page]))
    assert len(english) == len(chinese) > 3
    for mine, said in zip(english, chinese, strict=True):
        assert list(prose.unlike(mine, said)) == [], said[:40]
        assert HAN.search(said) or not said.strip()


def chinese_texts():
    """Every file with Chinese prose, but the glossary itself."""
    data = data_directory()
    found = [path for name in (NOTEBOOK, pages.FILE) for path in LABS.glob(f"*/zh/{name}")]
    found += [
        LABS / "README.zh.md",
        ROOT / "README.zh.md",
        data / "locale/zh/LC_MESSAGES/grpo_lab.po",
    ]
    return [*found, *(data / "templates").glob("*.zh.md")]


@pytest.mark.parametrize("path", chinese_texts(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_chinese_texts_use_the_words_of_the_glossary(path):
    text = path.read_text(encoding="utf-8")
    terms = data_tables("glossary").values()
    assert [(word, term["zh"]) for term in terms for word in term["rejected"] if word in text] == []


def test_the_glossary_rejects_no_word_that_it_uses():
    terms = data_tables("glossary").values()
    used = " ".join(f"{term['zh']} {term['zh_means']}" for term in terms)
    assert [word for term in terms for word in term["rejected"] if word in used] == []
    everywhere = "".join(path.read_text(encoding="utf-8") for path in chinese_texts())
    assert [term["zh"] for term in terms if not any(word in everywhere for word in term["zh"].split("，"))] == []
