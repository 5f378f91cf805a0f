"""Paragraphs and columns of a report in plain text; a Chinese character is as wide as two letters."""

import re
from collections.abc import Iterator, Sequence

from rich.cells import cell_len as width

WIDTH = 100
_WIDE = "\u2e80-\u9fff\uff00-\uffef"
_UNIT = re.compile(rf"[（《“]*[{_WIDE}][，。：；、！？）》”]*|[^\s{_WIDE}（“《]+[，。：；、！？）》”]*|\s+|.")
"""The parts between which a line may break: words, and Chinese characters with the punctuation that stays with them."""


def wrapped(said: str, by: int, first: str = "", most: int = WIDTH) -> list[str]:
    """A paragraph of at most so many columns, indented by `by`, broken only between words or Chinese characters.

    >>> wrapped("one two", 2, "1. ")
    ['  1. one two']
    """
    line, later, lines = " " * by + first, " " * (by + width(first)), []
    for unit in _UNIT.findall(" ".join(said.split())):
        if width(line + unit.rstrip()) > most and line.strip() and line != later:
            lines.append(line.rstrip())
            line, unit = later, unit.lstrip()
        line += unit
    return [*lines, line.rstrip()]


def columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Rows as columns, the last one broken between words where it would be too wide."""
    widths = [max(width(row[place]) for row in rows) for place in range(len(rows[0]) - 1)]
    by = 2 + sum(each + 2 for each in widths)
    for row in rows:
        cells = zip(row, widths, strict=False)
        left = "  " + "".join(cell + " " * (most - width(cell) + 2) for cell, most in cells)
        first, *rest = wrapped(row[-1], by) if row[-1] and by < WIDTH - 20 else [" " * by + row[-1]]
        yield (left + first[by:]).rstrip()
        yield from rest
