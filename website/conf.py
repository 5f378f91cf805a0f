"""Settings of Sphinx for the site; the sources are those that `python -m website` puts together."""

import gettext
import posixpath
import re
from pathlib import Path
from typing import Any

import pydata_sphinx_theme
import sphinx
import sphinx_book_theme
from docutils import nodes
from latex2mathml.converter import convert
from sphinx.search.en import SearchEnglish

project = "grpo_lab"
author = "The grpo_lab developers"
extensions = ["myst_nb"]
nb_execution_mode = "off"  # the labs are executed before, once for each state of the code
nb_merge_streams = True
myst_enable_extensions = ["dollarmath", "attrs_block"]
myst_heading_anchors = 4
suppress_warnings = ["myst.header"]  # the README begins its tables of contents where it likes
html_theme = "sphinx_book_theme"
html_title = "grpo_lab"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {
    "show_toc_level": 2,
    "use_download_button": False,
    "use_fullscreen_button": False,
    "navbar_start": [],
    "navbar_center": [],
    "navbar_end": [],
    "navbar_persistent": [],  # the search stands in the sidebar
}
html_copy_source = False
html_use_index = False
html_context = {"default_mode": "auto"}
html_math_renderer = "mathml"
html_search_language = "en-zh"


class _Search(SearchEnglish):
    """English words, and each pair of neighbouring Chinese characters, since Chinese has no spaces between words."""

    lang = html_search_language

    def split(self, input: str) -> list[str]:
        words = super().split(input)
        runs = re.findall(r"[\u4e00-\u9fff]{2,}", input)
        return words + [run[start : start + 2] for run in runs for start in range(len(run) - 1)]


_CATALOGUES = (
    (sphinx_book_theme, "theme/sphinx_book_theme/static/locales/zh_CN/LC_MESSAGES/booktheme.mo"),
    (pydata_sphinx_theme, "locale/zh/LC_MESSAGES/sphinx.mo"),
    (sphinx, "locale/zh_CN/LC_MESSAGES/sphinx.mo"),
)


def _catalogues() -> list[gettext.GNUTranslations]:
    """The Chinese words that the themes and Sphinx have for the frame of a page."""
    found = []
    for package, place in _CATALOGUES:
        with (Path(str(package.__file__)).parent / place).open("rb") as file:
            found.append(gettext.GNUTranslations(file))
    return found


_WORDS = _catalogues()


def _chinese(words: str) -> str:
    """Words of a page's frame in Chinese; in English where no catalogue has them."""
    return next((said for each in _WORDS if (said := each.gettext(words)) != words), words)


def _language(app: Any, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Chinese pages say so, for fonts, screen readers and translators."""
    if _is_chinese(page):
        context["language"] = "zh-CN"
        context["_"] = context["gettext"] = context["translate"] = _chinese
    for way in ("prev", "next"):
        if (other := context.get(way)) and _is_chinese(_page_of(page, other["link"])) != _is_chinese(page):
            context[way] = None


def _is_chinese(page: str) -> bool:
    return "zh" in page.replace(".", "/").split("/")  # labs/00_start/zh/…, index.zh, README.zh


def _page_of(page: str, link: str) -> str:
    """The name of the page that a relative link on a page leads to."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), link))


def _latex(node: Any) -> str:
    """The source of a formula; in a text the converter takes an underscore as it is, and would show its backslash."""
    return node.astext().replace(r"\_", "_")


def _inline(writer: Any, node: Any) -> None:
    """A formula as MathML, which browsers show without a script from the network."""
    writer.body.append(convert(_latex(node)))
    raise nodes.SkipNode


def _block(writer: Any, node: Any) -> None:
    writer.body.append(convert(_latex(node), display="block"))
    raise nodes.SkipNode


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.add_search_language(_Search)
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    app.connect("html-page-context", _language, priority=900)  # after the themes, which set their own translator
