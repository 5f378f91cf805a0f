"""Read answers that are literals, such as `answer = "b"`, without running them."""

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
"""Assignments of values to names, in characters of `_kind`. Names occur nowhere else: `not` and `lambda` are names."""
_CHAIN = re.compile(r"[v)][(-]|--")
"""A call, an item, a sum or a repeated sign: each can nest without limit and without brackets."""
_TEXT = re.compile(r"""[rRuU]?["']""")
_SURROGATE = re.compile(r"\\[uU](?:0000)?[dD][89a-fA-F]")
"""An escape for a lone surrogate, which no report could hold."""


def literal(source: str, names: Sequence[str]) -> dict[str, Any] | None:
    """The values that a source assigns to exactly these names; None if it does anything else.

    >>> literal('answer = ("In two "\\n"lines.")  # mine', ["answer"]), literal("a, b = 1, 2", ["a", "b"])
    ({'answer': 'In two lines.'}, None)
    """
    try:
        given = _given(source)
    except (SyntaxError, tokenize.TokenError, ValueError, TypeError, RecursionError, MemoryError, NotPlain):
        return None  # the sandbox runs it and reports its error
    return given if given is not None and sorted(given) == sorted(names) else None


def _given(source: str) -> dict[str, Any] | None:
    if not _shallow(source):
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about escapes in a student's text
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
    """Whether the source only assigns literals with little nesting: deep nesting can crash Python's parser."""
    kinds = "".join(map(_kind, tokenize.generate_tokens(io.StringIO(source).readline)))
    depths = itertools.accumulate((kind == "(") - (kind == ")") for kind in kinds)
    return bool(_STATEMENTS.fullmatch(kinds)) and not _CHAIN.search(kinds) and max(depths, default=0) <= MAX_DEPTH + 2


def _kind(token: tokenize.TokenInfo) -> str:
    """One character: (n)ame, (v)alue, a bracket, a sign, ; for the end of a line, nothing for a comment, else ?."""
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
