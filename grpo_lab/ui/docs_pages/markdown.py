"""The little Markdown that the pages are made of."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def table(rows: Iterable[Sequence[str]]) -> str:
    """A table whose first row is the header.

    >>> print(table([["a", "b"], ["1|2", ""]]), end="")
    | a | b |
    |---|---|
    | 1\\|2 |  |
    """
    header, *body = (_row(row) for row in rows)
    return "".join([header, "|" + "---|" * header.replace("\\|", "").count(" |") + "\n", *body])


def code(value: Any) -> str:
    """A value as it is written on a command line, in backticks.

    >>> code(None), code(True), code(1e-05), code(("a", "b"))
    ('`none`', '`true`', '`1e-05`', '`a,b`')
    """
    return f"`{plain(value)}`"


def plain(value: Any) -> str:
    """A value as `settings.parse` reads it."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return ",".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) and math.isfinite(value) else str(value)


def switch(name: str, values: Mapping[str, Any]) -> str:
    """A guard or fault with the settings that were given to it.

    >>> switch("warm_up", {}), switch("warm_up", {"steps": 10})
    ('`warm_up`', '`warm_up` (`steps=10`)')
    """
    given = ", ".join(f"`{key}={plain(value)}`" for key, value in values.items())
    return f"`{name}`" + (f" ({given})" if given else "")


def overrides(texts: Iterable[str]) -> str:
    """Overrides that belong together."""
    return " with ".join(f"`{text}`" for text in texts)


def one_line(text: str | None) -> str:
    """A text without its line ends."""
    return " ".join((text or "").split())


def first_sentence(text: str | None) -> str:
    """The first sentence of a docstring, without its full stop.

    >>> first_sentence("Does this (Ye et al. 2020). And that.")
    'Does this (Ye et al. 2020)'
    """
    return re.split(r"\.(?:\s+(?=[A-Z])|$)", one_line(text), maxsplit=1)[0]


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"
