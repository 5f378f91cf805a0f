"""Settings of Sphinx for the site; the sources are those that `python -m website` puts together."""

import re
from typing import Any

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
html_math_renderer = "mathml"
html_search_language = "en-zh"


class _Search(SearchEnglish):
    """English words, and each pair of neighbouring Chinese characters, since Chinese has no spaces between words."""

    lang = html_search_language

    def split(self, input: str) -> list[str]:
        words = super().split(input)
        runs = re.findall(r"[\u4e00-\u9fff]{2,}", input)
        return words + [run[start : start + 2] for run in runs for start in range(len(run) - 1)]


def _language(app: Any, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Chinese pages say so, for fonts, screen readers and translators."""
    if "zh" in page.replace(".", "/").split("/"):  # labs/zh/…, index.zh, README.zh
        context["language"] = "zh-CN"


def _inline(writer: Any, node: Any) -> None:
    """A formula as MathML, which browsers show without a script from the network."""
    writer.body.append(convert(node.astext()))
    raise nodes.SkipNode


def _block(writer: Any, node: Any) -> None:
    writer.body.append(convert(node.astext(), display="block"))
    raise nodes.SkipNode


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.add_search_language(_Search)
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    app.connect("html-page-context", _language)
