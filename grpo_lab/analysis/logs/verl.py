"""verl's console: `step:12 - actor/grad_norm:0.3 - …` between other output, on one line or wrapped."""

import re
from typing import Any

from grpo_lab.analysis.logs.beside import flat
from grpo_lab.analysis.logs.table import Table, columns_of, fact
from grpo_lab.analysis.logs.text import NUMBER, Text, by_rows, literal

_RECORD = re.compile(r"\bstep:\d+(?: -(?:[ \t]|$)|[ \t]*$)", re.MULTILINE)
_LINE = re.compile(r"\bstep:\d+ - \S+:.*")
_PAIR = re.compile(rf"([\w/.@()-]+):(?:np\.\w+\()?({NUMBER})\)?(?= - |\s*$)", re.IGNORECASE)
_BEGUN = re.compile(rf"[\w/.@()-]+(:(np\.\w*\(?)?([-+.\de]*|{NUMBER}|[nai]+)\)?)?$", re.IGNORECASE)
_METRIC = re.compile(rf" - [\w.@()-]+/\S+:{NUMBER}")
"""No other output looks like this."""
_PREFIX = re.compile(r"^(?:\x1b?\[[\d;]*m)*(?:\(\w+ pid=\d+[^)]*\))?(?:\x1b?\[[\d;]*m)*\s*")
"""The prefix of ray before a line of a worker."""
_CONFIG = re.compile(r"\{'(?:actor_rollout_ref|algorithm|critic|data)': ")
_OVERRIDE = re.compile(r"(?<!\S)\+{0,2}((?:actor_rollout_ref|algorithm|critic|data|trainer)\.[\w.]+)=([^\s\\'\"]+)")
LONGEST = 2**18
"""Characters of a printed config."""
ROUNDED = " actor/lr:0.000 "
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
    """The text with each record on one line, however it was wrapped."""
    done, before = [], ""
    for line in text.split("\n"):
        record = _continued(done[-1].rstrip(), _PREFIX.sub("", line).strip(), len(before)) if before else ""
        if record:
            done[-1], before = record, line
        else:
            done.append(line)
            before = line if _RECORD.search(line) else ""
    return "\n".join(done)


def _continued(record: str, said: str, width: int) -> str:
    """A record with the next line of it, after one of a width; empty if that line says something else."""
    if not said or _RECORD.search(said):
        return ""
    last = record.rpartition(" - ")[2]
    if record.endswith(" -") or said.startswith("- "):
        joined, added = f"{record.removesuffix(' -')} - {said.removeprefix('- ')}", said.removeprefix("- ")
    elif "/" in said and _PAIR.fullmatch(said) and (_PAIR.fullmatch(last) or _RECORD.search(last)):
        joined, added = f"{record} - {said}", said
    elif width in WIDTHS or _METRIC.search(said):
        joined, added = record + said, last + said
    else:
        return ""
    *whole, begun = added.removesuffix(" -").split(" - ")
    return joined if all(map(_PAIR.fullmatch, whole)) and _BEGUN.match(begun) else ""


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
    return flat({**given, **flat(literal(printed) or {})})
