"""verl's console: `step:12 - actor/grad_norm:0.3 - …` between other output, on one line or wrapped."""

import ast
import re
from collections.abc import Iterator
from typing import Any

from grpo_lab.analysis.logs.beside import flat
from grpo_lab.analysis.logs.table import Table, columns_of, fact
from grpo_lab.analysis.logs.text import NUMBER, Text
from grpo_lab.analysis.logs.tracebacks import by_rows

_RECORD = re.compile(r"\bstep:\d+(?: -(?:[ \t]|$)|[ \t]*$)", re.MULTILINE)
_LINE = re.compile(r"\bstep:\d+ - \S+:.*")
_PAIR = re.compile(rf"([\w/.@()-]+):(?:np\.\w+\()?({NUMBER})\)?(?= - |\s*$)", re.IGNORECASE)
_BEGUN = re.compile(r"[\w/.@()-]+(:\S*)?$")
_PREFIX = re.compile(r"^(?:\x1b?\[[\d;]*m)*(?:\(\w+ pid=\d+[^)]*\))?(?:\x1b?\[[\d;]*m)*\s*")
"""The prefix of ray before a line of a worker."""
_CONFIG = re.compile(r"\{'(?:actor_rollout_ref|algorithm|critic|data)': ")
_OVERRIDE = re.compile(r"(?<!\S)\+{0,2}((?:actor_rollout_ref|algorithm|critic|data|trainer)\.[\w.]+)=([^\s\\'\"]+)")
LONGEST = 2**18
"""Characters of a printed config."""
ROUNDED = " actor/lr:0.000 "
LOOKED_AT = 20
"""Records whose next line is looked at to learn whether records are wrapped."""
WIDTHS = range(70, 500)
"""Widths at which a terminal cuts a line in the middle of a word."""


def read_verl(text: Text) -> list[Table]:
    """The console of verl."""
    said = _unwrapped(text.said) if "step:" in text.said else ""
    lines = list(_LINE.finditer(said))
    rows = [dict(_PAIR.findall(line[0])) for line in lines]
    notes = []
    ends = len(rows) > 1 and said.endswith(lines[-1][0])
    if ends and len(rows[-1]) < len(rows[-2]) and [*rows[-1]] == [*rows[-2]][: len(rows[-1])]:
        rows.pop()
        notes.append(fact("cut"))
    columns = columns_of(rows)
    if ROUNDED in said and not columns["actor/lr"].any():  # older versions print three decimals
        del columns["actor/lr"]
        notes.append(fact("rate_rounded"))
    crashes = by_rows(said, [line.start() for line in lines])
    about = {"source": "verl", "crashes": crashes, "settings": printed_settings(said)}
    return [Table(columns, "verl_console", notes, **about)] if columns else []


def _unwrapped(text: str) -> str:
    """The text with each record on one line, however it was wrapped; unchanged if nothing is wrapped."""
    looked_at = list(_first_lines(text))
    widths = {len(first) for first, _ in looked_at}
    width = max(widths, default=0)
    cut_at = {width, width - 1} if width in WIDTHS and min(widths) >= width - 1 else set()
    if not any(_continues(first, following, cut_at) for first, following in looked_at):
        return text
    done, open_line = [], ""
    for line in text.split("\n"):
        if open_line and _continues(done[-1], line, cut_at if len(open_line) in cut_at else set()):
            done[-1] = _joined(done[-1], _PREFIX.sub("", line))
            open_line = line
        else:
            done.append(line)
            open_line = line if _RECORD.search(line) else ""
    return "\n".join(done)


def _first_lines(text: str) -> Iterator[tuple[str, str]]:
    """The first records' first lines, each with the line after it."""
    for number, match in enumerate(_RECORD.finditer(text)):
        if number == LOOKED_AT:
            return
        first, _, rest = text[text.rfind("\n", 0, match.start()) + 1 : match.end() + 50_000].partition("\n")
        yield first, rest.partition("\n")[0]


def _continues(record: str, line: str, cut_at: set[int]) -> bool:
    """Whether a line goes on with a record: with whole metrics, or in the middle of a word where a terminal cut it."""
    said = _PREFIX.sub("", line).strip()
    if not said or _RECORD.search(line):
        return False
    first, *others = said.removeprefix("- ").removesuffix(" -").split(" - ")
    if said.startswith("- ") or record.rstrip().endswith(" -"):
        return all(map(_PAIR.fullmatch, [first, *others][:-1])) and bool(_BEGUN.match([first, *others][-1]))
    if not others and "/" in first and _PAIR.fullmatch(first):
        return True
    sure = any("/" in other and _PAIR.fullmatch(other) for other in others)  # no other output looks like this
    parts = _joined(record, said).split(" - ")[1:]
    return (
        (sure or bool(cut_at))
        and bool(parts)
        and all(map(_PAIR.fullmatch, parts[:-1]))
        and bool(_BEGUN.match(parts[-1]))
    )


def _joined(record: str, said: str) -> str:
    """A record and the words of its next line, with one " - " between two metrics."""
    record, said = record.rstrip(), said.rstrip()
    if record.endswith(" -"):
        return f"{record} {said.removeprefix('- ')}"
    if said.startswith("- "):
        return f"{record} {said}"
    last = record.rpartition(" - ")[2]
    whole = "/" in said and _PAIR.fullmatch(said) and (_PAIR.fullmatch(last) or _RECORD.search(last))
    return f"{record} - {said}" if whole else record + said


def printed_settings(text: str) -> dict[str, Any]:
    """The settings in the config that verl prints at its start, and in the command of a shell that traces (set -x)."""
    given: dict[str, Any] = dict(_OVERRIDE.findall(text[:LONGEST]))
    start = _CONFIG.search(text)
    printed, depth = "", 0
    for line in text[start.start() :][:LONGEST].split("\n") if start else ():
        said = _PREFIX.sub("", line)
        printed += said + "\n"
        depth += said.count("{") - said.count("}")
        if depth <= 0:
            break
    try:
        return flat({**given, **flat(ast.literal_eval(printed or "{}"))})
    except (ValueError, SyntaxError, RecursionError, MemoryError):  # cut, or other output between its lines
        return flat(given)
