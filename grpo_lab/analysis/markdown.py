"""Markdown for the pages that are made from code, data and measurements: templates, tables, values."""

import functools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, UndefinedError, select_autoescape

from grpo_lab.messages import ENGLISH
from grpo_lab.paths import data_directory


def render(template: str, language: str = ENGLISH, /, **values: Any) -> str:
    """The page that a template in data/templates gives; `table` and `escaped` are its filters.

    Another language has a template of its own, or the page is in English.
    """
    names = [] if language == ENGLISH else [f"{template}.{language}.md"]
    return templates().select_template([*names, f"{template}.md"]).render(values)


def cells(columns: Mapping[str, str], runs: Iterable[Any], **values: Any) -> list[list[str]]:
    """A row for each run: the templates of the columns, of which each reads `run`."""
    made = [templates().from_string(column) for column in columns.values()]
    return [[template.render(run=run, **values) for template in made] for run in runs]


def filled(template: str, **values: Any) -> str:
    """A template's text."""
    return templates().from_string(template).render(values)


def holds(rule: str, **values: Any) -> bool | None:
    """Whether an expression of jinja2 is true; None where it reads a number that was not measured.

    >>> holds("run.kl < 2", run={"kl": 1}), holds("run.kl < 2", run={})
    (True, None)
    """
    try:
        return bool(_compiled(rule)(**values))
    except (LookupError, UndefinedError):
        return None


@functools.cache
def _compiled(rule: str) -> Callable[..., Any]:
    return templates().compile_expression(rule, undefined_to_none=False)


@functools.cache
def templates() -> Environment:
    """The templates of data/templates; values in those of HTML are escaped."""
    loader = FileSystemLoader(data_directory() / "templates")
    # Markdown is not HTML: the filter `escaped` escapes names from runs and users there.
    environment = Environment(
        loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.autoescape = select_autoescape(default_for_string=False)
    for each in (table, cell, escaped, one_line, first_sentence, code, switch, assignments, overrides, number):
        environment.filters[each.__name__] = each
    return environment


def table(rows: Iterable[Sequence[str]], literal: bool = False) -> str:
    """A table whose first row is the header; `literal` shows the cells as they are instead of as Markdown.

    >>> print(table([["a", "b"], ["1|2", ""]]))
    | a | b |
    |---|---|
    | 1\\|2 |  |
    """
    header, *body = [list(map(escaped if literal else cell, row)) for row in rows]
    lines = ["| " + " | ".join(row) + " |" for row in (header, *body)]
    return "\n".join([lines[0], "|" + "---|" * len(header), *lines[1:]])


def cell(text: str) -> str:
    """Markdown in a cell of a table, which no bar of it ends."""
    return text.replace("|", "\\|")


def escaped(text: str) -> str:
    """Text that Markdown shows as it is, on one line.

    >>> print(escaped("a|b * <c>\\n_d_ adam_eps"))
    a\\|b \\* \\<c> \\_d\\_ adam_eps
    """
    return re.sub(r"([\\`*\[\]<|]|(?<!\w)_|_(?!\w))", r"\\\1", one_line(text))


def number(value: float, digits: int = 3) -> str:
    """A value to a few digits, or a dash for NaN.

    >>> number(113818385.0), number(float("nan"))
    ('1.14e+08', '-')
    """
    return "-" if math.isnan(value) else f"{value:.{digits}g}"


def plain(value: Any) -> str:
    """A setting's value as it is written on a command line.

    >>> plain(None), plain(True), plain(1e-05), plain(("a", "b"))
    ('none', 'true', '1e-05', 'a,b')
    """
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return ",".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) and math.isfinite(value) else str(value)


def code(value: Any) -> str:
    """A setting's value in backticks."""
    return f"`{plain(value)}`"


def switch(name: str, values: Mapping[str, Any]) -> str:
    """A guard or fault with the settings that were given to it.

    >>> switch("warm_up", {}), switch("warm_up", {"steps": 10})
    ('`warm_up`', '`warm_up` (`steps=10`)')
    """
    return f"`{name}`" + (f" ({assignments(values)})" if values else "")


def assignments(values: Mapping[str, Any]) -> str:
    """Settings and their values, each in backticks."""
    return ", ".join(f"`{key}={plain(value)}`" for key, value in values.items())


def overrides(texts: Iterable[str]) -> str:
    """Overrides that belong together."""
    return " with ".join(f"`{text}`" for text in texts)


def one_line(text: str | None) -> str:
    """A text without its line ends."""
    return " ".join((text or "").split())


def first_sentence(text: str | None) -> str:
    """The first sentence of a docstring, in English or Chinese, without its full stop.

    >>> first_sentence("Does this (Ye et al. 2020). And that.")
    'Does this (Ye et al. 2020)'
    """
    return re.split(r"\.(?:\s+(?=[A-Z])|$)|。", one_line(text), maxsplit=1)[0]
