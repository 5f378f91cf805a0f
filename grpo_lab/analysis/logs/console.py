"""The console of a trainer or a loop of one's own: names and numbers, as `loss: 0.1 | kl=0.2`, between other output.

verl's has one record a step, `step:12 - actor/grad_norm:0.3 - …`, which a terminal may have wrapped.
"""

import bisect
import itertools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from grpo_lab.analysis.logs.beside import flat
from grpo_lab.analysis.logs.table import HELD_OUT, Table, choose, columns_of, counters, fact, measured, unread, words_of
from grpo_lab.analysis.logs.text import PREFIX, Text, by_rows, literal, patterns, tables

_PATTERNS, _LIMITS = patterns("console"), tables("limits")["console"]
_VERL, _OF_VERL = patterns("verl"), tables("limits")["verl"]
_NAMES = [*tables("algorithms"), *itertools.chain(*(each.get("setting", ()) for each in tables("symptoms").values()))]
_ANY = "|".join(map(re.escape, sorted({name for name in _NAMES if "/" not in name}, reverse=True)))
_END = r"\b(?=['\"]?\s*(?:$|[,;)}\]\\-]|[\w.]+\s*[=:]))"
_SETTING = re.compile(rf"(?m)(?:--({_ANY})[ =]|(?<![\w./-])({_ANY})\s*[=:]\s*)['\"]?([\w.+-]*\w){_END}")
"""A setting that tells something, as `--beta 0.1`, `beta=0.1` or `beta: 0.1`; a model's own config has quotes."""


@dataclass
class _Row:
    """The numbers of one step, which may stand on several lines."""

    place: int
    values: dict[str, Any] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    alone: bool = False
    """Whether it is a dictionary with nothing but a progress bar before it, as Hugging Face's Trainer prints it."""
    bars: dict[int, int] = field(default_factory=dict)
    """The last place of each progress bar before the row, by its length."""


def read_console(text: Text) -> list[Table]:
    """The numbers in any other text."""
    said = _PATTERNS["glued"].sub("\n", _unwrapped(text.said) if "step:" in text.said else text.said)
    said = _PATTERNS["thousands"].sub(lambda found: found[0].replace(",", ""), said)
    rows = _of_training(list(_rows(said)))
    if not rows:
        lists = {name: value.split(",") for name, value in _PATTERNS["list"].findall(said)}
        size = max(map(len, lists.values()), default=0)
        steps = [{name: value[at].strip() for name, value in lists.items() if at < len(value)} for at in range(size)]
        return [Table(columns_of(steps), "json")] if measured(lists) else []
    notes, places = [], [row.place for row in rows]
    dictionaries = said[places[-1] :].startswith("{") or "{'" in said[places[-1] :].split("\n", 1)[0]
    last, before = ([*row.values] for row in (rows[-1], rows[max(0, len(rows) - 2)]))
    begun = last != before and last == before[: len(last)] and not said.endswith("\n")
    if "}" not in said[places[-1] :] if dictionaries else begun:
        rows[-1].values.popitem()
        notes.append(fact("cut_value"))
    counted = Counter(kind for row in rows for kind in row.counts)
    falls = {kind: np.diff([row.counts[kind] for row in rows if kind in row.counts]) < 0 for kind in counted}
    often = [kind for kind, count in counted.items() if 2 * count >= len(rows) + (len(rows) < _LIMITS["few_rows"])]
    kinds = {kind for kind in often if 3 * falls[kind].sum() <= len(rows)}  # a number of tokens rises and falls
    values = [{**{kind: at for kind, at in row.counts.items() if kind in kinds}, **row.values} for row in rows]
    if not any(counters(row) for row in values) and (steps := _steps_of_bars(rows)) is not None:
        values = [{"step": step, **row} for step, row in zip(steps, values, strict=True)]
    starts = [bisect.bisect(places, start.end()) for start in _PATTERNS["start"].finditer(said)]
    names = {name for row in rows for name in row.values}
    dictionaries_alone = sum(row.alone for row in rows) > len(rows) / 2
    of_trainer = dictionaries_alone and not names.isdisjoint(("loss", "learning_rate", "epoch"))
    kind, source = ("trainer_console", "trl") if of_trainer else ("console", "")
    crashes = by_rows(said, places[: len(rows)])
    columns = columns_of(values)
    if " actor/lr:0.000 " in said and not columns["actor/lr"].any():  # older versions of verl print three decimals
        del columns["actor/lr"]
        notes.append(fact("rate_rounded"))
    about = {"crashes": crashes, "starts": starts, "settings": printed_settings(said[: places[:2][-1]])}
    return [Table(columns, kind, notes, source, count_by=text.logging_steps, **about)]


def record_forms(said: str) -> tuple[int, ...]:
    """The records of verl in a text, and the dictionaries of Trainer, up to two: no other lines count beside them."""
    forms = (_VERL["begin"], _PATTERNS["dictionary"])
    return tuple(len([*itertools.islice(form.finditer(said), 2)]) for form in forms)


def _rows(said: str) -> Iterator[_Row]:
    """The rows, each with at least one measure: a new one begins with another step, or where a name is there again."""
    row, depth, bars, heading = _Row(0), 0, {}, ""
    records, dictionaries = record_forms(said)
    for match in _PATTERNS["line"].finditer(said):
        line = _PATTERNS["colour"].sub("", PREFIX.sub("", match[0]).replace("\n", ""))
        bars |= {int(total): int(at) for at, total in _PATTERNS["bar"].findall(line)}
        if depth > 0 or _PATTERNS["nested"].search(line):  # a printed config
            depth = max(0, depth + line.count("{") - line.count("}")) if line[:1] in "{}[]()'\"" else 0
            continue
        if _PATTERNS["of_table"].match(line):
            continue
        counts, pairs = _pairs(_PATTERNS["wrapped"].sub(r"\1", line), heading)
        heading = line if not pairs and line.rstrip().endswith(":") else heading if pairs and not counts else ""
        known = measured(pairs)
        before = PREFIX.sub("", match["before"] or "")
        alone = (match["row"] or "").startswith("{'") and _PATTERNS["before"].fullmatch(before) is not None
        own = alone and _PATTERNS["of_trainer"].match(match["row"]) if dictionaries > 1 else True
        if not (_VERL["begin"].search(line) if records else own):  # something else printed it
            continue
        joins = (row.counts and pairs) or (row.values and (choose(pairs) or counters(pairs)))
        if "train_runtime" in pairs or not (known or counts or joins):
            continue
        again = not pairs.keys().isdisjoint(row.values) and known
        if again or any(row.counts.get(kind, at) != at for kind, at in counts.items()):
            if measured(row.values):
                yield row
            row = _Row(match.start())
        if known and not measured(row.values):
            row.alone = alone
            row.place = match.start("row") if match["row"] else match.start()
            row.bars, bars = bars, {}
        row.values = row.values | pairs if known else pairs | row.values
        row.counts |= counts
    if measured(row.values):
        yield row


def _pairs(line: str, heading: str = "") -> tuple[dict[str, int], dict[str, str]]:
    """The counters in a line, as "Step 12", and its names with their numbers, which are below a heading."""
    counts: dict[str, int] = {}
    for match in _PATTERNS["step"].finditer(line):
        kind = match["kind"].lower()
        if match["within"]:
            counts["step"] = (int(match["at"]) - 1) * int(match["of"]) + int(match["within"])
        if kind not in counts or match["whole"]:
            counts[kind] = int(match["at"])
    if not counts and (lead := _PATTERNS["lead"].search(line)):
        counts["it"] = int(lead[lead.lastindex or 0])
    if line[:1] in "|│┃":  # a table of names and values
        line = re.sub(r"\s*[|│┃]\s*", " : ", line).strip(" :")
    found = list(_PATTERNS["pair"].finditer(line))
    held_out = map(_PATTERNS["held_out"].match, (heading, line[: found[0].end("name")] if found else ""))
    before = "eval/" if any(held_out) else ""
    pairs = {}
    for match in found:
        name = _PATTERNS["is"].sub("", " ".join(match["name"].split()))
        name = name if words_of(name)[1] else before + name
        pairs[name] = match["value"] + ("%" if match["percent"] else "")
    kept = (name for name in pairs if name.lower() not in counts and not name.endswith(".py"))  # a file and its line
    return counts, {name: pairs[name] for name in kept}


def names_in(said: str) -> list[str]:
    """The names that recur in a text without a known metric, as in a log with other ones; those of a CSV's header."""
    lines = [_PATTERNS["colour"].sub("", PREFIX.sub("", line)) for line in said.split("\n")[: _LIMITS["most_lines"]]]
    found = Counter(name for line in lines for name in _pairs(line)[1])
    recurring = [name for name, count in found.items() if count > 1]
    header = [cell.strip() for cell in re.split(r"[,;\t|]", lines[0])]
    of_a_table = [cell for cell in header if re.fullmatch(r"[^\W\d][\w/.-]*", cell)] if len(header) > 1 else []
    return list(unread(recurring or of_a_table, ()))


def _of_training(rows: list[_Row]) -> list[_Row]:
    """The rows without printed settings: the first ones that hold far fewer measures, and names that are there once."""
    kinds = [measured(row.values) for row in rows]
    usual = sorted(map(len, kinds))[len(rows) // 2] if len(rows) > 3 else 0
    first = next((at for at, each in enumerate(kinds) if 2 * len(each) > usual or each == {HELD_OUT}), 0)
    found = Counter(name for row in rows[first:] for name in row.values)
    few = len(rows) <= _LIMITS["few_rows"]
    for row in rows:
        kept = [name for name in row.values if found[name] > 1 or words_of(name)[1] or (few and choose([name]))]
        row.values = {name: row.values[name] for name in kept} if len(rows) > 1 else row.values
    return rows[first:]


def _unwrapped(text: str) -> str:
    """The text with each record of verl on one line, however it was wrapped."""
    done, before = [], ""
    for line in text.split("\n"):
        said, whole = PREFIX.sub("", line).strip(), ""
        begins = _VERL["record"].search(line)
        if before and said and not begins:
            cut = _OF_VERL["narrowest"] <= len(before) <= _OF_VERL["widest"] or _VERL["metric"].search(said)
            ways = [done[-1].rstrip() + between + said for between in ("", " ", " - ")][not cut : 2 + ("/" in said)]
            whole = next(filter(_VERL["whole"].fullmatch, ways), "")
        if whole:
            done.pop()
        done.append(whole or line)
        before = line if whole or begins else ""
    return "\n".join(done)


def printed_settings(text: str) -> dict[str, Any]:
    """The settings in the config that verl prints, in a command that starts a training, and in lines of a setting."""
    begin = text[: _OF_VERL["longest_config"]]
    given: dict[str, Any] = {option or name: value for option, name, value in _SETTING.findall(begin)}
    given |= dict(_VERL["override"].findall(begin))
    start = _VERL["config"].search(text)
    printed, depth = "", 0
    for line in text[start.start() :][: _OF_VERL["longest_config"]].split("\n") if start else ():
        said = PREFIX.sub("", line)
        printed += said + "\n"
        depth += said.count("{") - said.count("}")
        if depth <= 0:
            break
    return flat({**given, **flat(literal(printed) or {})})


def _steps_of_bars(rows: Sequence[_Row]) -> list[int] | None:
    """The step of each row from the progress bar that grows with the rows, or between its neighbours."""
    lengths = Counter(length for row in rows for length in row.bars)
    for length, count in lengths.most_common():
        known = [(place, row.bars[length]) for place, row in enumerate(rows) if length in row.bars]
        every, rest = divmod(length, len(rows))
        lags = [abs(every * (place + 1) - step) for place, step in known]
        behind = not rest and max(lags) <= 2 * every and lags[-1] <= every  # a bar may be drawn after its row
        if behind and 4 * count > len(rows) > 5:
            return [every * (place + 1) for place in range(len(rows))]
        paces = [(after[1] - before[1]) / (after[0] - before[0]) for before, after in pairwise(known)]
        grows = 0 not in paces and sum(pace < 0 for pace in paces) <= len(paces) / 5  # it falls where a run begins
        if grows and 2 * count > len(rows):
            at, steps = zip(*known, strict=True)
            pace = float(np.median(paces or [1]))
            inner = np.interp(range(len(rows)), at, steps)
            outer = [min(place - at[0], 0) + max(place - at[-1], 0) for place in range(len(rows))]
            return [round(step + beyond * pace) for step, beyond in zip(inner, outer, strict=True)]
    return None
