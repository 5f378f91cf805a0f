"""The page with the terms of the course in two languages, from data/glossary.toml."""

from grpo_lab.analysis.markdown import render
from grpo_lab.paths import data_tables

_HEAD = ("English", "中文", "meaning", "含义", "not · 不用")


def page() -> str:
    """The glossary."""
    terms = data_tables("glossary").values()
    rows = [(each["en"], each["zh"], each["en_means"], each["zh_means"], "、".join(each["rejected"])) for each in terms]
    return render("glossary", count=len(rows), terms=[_HEAD, *rows])
