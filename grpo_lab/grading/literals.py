"""Answers that are data already, `answer = "b"`: read without running anything."""

from __future__ import annotations

import ast
import io
import itertools
import re
import tokenize
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from grpo_lab.course.answers import MAX_DEPTH, NotPlain, plain

_OPERATORS: Mapping[str, str] = {**dict.fromkeys("([{", "("), **dict.fromkeys(")]}", ")"), "+": "-", "-": "-"}
_STATEMENTS = re.compile(r"(?:n=[v(),:-]+;)*")
"""Names that are given values, in characters of `_kind`. No name stands elsewhere: `not` and `lambda` are names too."""
_CHAIN = re.compile(r"[v)][(-]|--")
"""A call, an item, a sum, a sign of a sign: each can be repeated without end, and nests without brackets."""
_TEXT = re.compile(r"""[rRuU]?["']""")
_SURROGATE = re.compile(r"\\[uU](?:0000)?[dD][89a-fA-F]")
"""An escape for half of a pair: no text that a report could hold."""


def literal(source: str, names: Sequence[str]) -> dict[str, Any] | None:
    """The values that a source gives to exactly these names, if it does nothing but that; else None.

    >>> literal('answer = ("In two "\\n"lines.")  # mine', ["answer"]), literal("a, b = 1, 2", ["a", "b"])
    ({'answer': 'In two lines.'}, None)
    """
    try:
        given = _given(source)
    except (SyntaxError, tokenize.TokenError, ValueError, TypeError, RecursionError, MemoryError, NotPlain):
        return None  # an answer all the same, and running it says what is wrong with it
    return given if given is not None and sorted(given) == sorted(names) else None


def _given(source: str) -> dict[str, Any] | None:
    if not _shallow(source):
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about escapes in a stranger's text
        statements = ast.parse(source).body
    given: dict[str, Any] = {}
    for statement in statements:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name not in given:
                given[name] = plain(ast.literal_eval(value))
            case _:
                return None
    return given


def _shallow(source: str) -> bool:
    """Whether it gives literals to names and nests them little: of deep nesting, Python's parser may die."""
    kinds = "".join(map(_kind, tokenize.generate_tokens(io.StringIO(source).readline)))
    depths = itertools.accumulate((kind == "(") - (kind == ")") for kind in kinds)
    return bool(_STATEMENTS.fullmatch(kinds)) and not _CHAIN.search(kinds) and max(depths, default=0) <= MAX_DEPTH + 2


def _kind(token: tokenize.TokenInfo) -> str:
    """One character: (n)ame, (v)alue, a bracket, a sign, ; for the end of a line, none for a comment, ? for others."""
    text = token.string
    match token.type:
        case tokenize.NL | tokenize.COMMENT | tokenize.ENDMARKER:
            return ""
        case tokenize.NEWLINE:
            return ";"
        case tokenize.NUMBER:
            return "v"
        case tokenize.NAME:
            return "v" if text in ("True", "False", "None") else "n"
        case tokenize.STRING:
            return "v" if _TEXT.match(text) and not _SURROGATE.search(text) else "?"
        case tokenize.OP if len(text) == 1 and text != ";":
            return _OPERATORS.get(text, text)
    return "?"
