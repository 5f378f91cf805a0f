"""Every algorithm on the scenarios where its formulas can matter, and what follows for the claims about algorithms."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from benchmarks.matrix import outcome
from grpo_lab.analysis.markdown import number, table
from grpo_lab.analysis.matrix.cells import NONE, replaced
from grpo_lab.analysis.matrix.results import Fate, Measurement
from grpo_lab.analysis.matrix.table import Findings
from grpo_lab.config.catalog import scenario

SCENARIOS = {
    "train-001": "the ratio compares with the reference: its level and its bound decide how far it grows",
    "cuda-001": "the same with fp16 weights: an exp of the ratio or of the KL overflows",
    "zero-times-infinity": "one log-ratio of 100 nats: whether exp reaches the gradient depends on the surrogate",
    "kl-overflow": "one KL of 100 nats: k3 overflows where the KL is in the loss",
    "verl-nan-logprob": "a NaN in the old log-probabilities, which every ratio reads",
    "stale-rollouts": "samples of an older policy: this is what clips and weights are for",
    "temperature-ignored": "sampler and trainer differ by a temperature: a weight could correct it",
    "truncated-sampling": "the sampler leaves out the tail: no weight can bring back a token that is never drawn",
    "bad-batch": "one corrupt sample: a baseline, a bound or a mean over completions could dampen it",
    "learning-rate-too-high": "steps that are too long: a narrow clip range could hold them back",
    "small-batch": "one group a step: a baseline of the batch could be less noisy",
}
"""The scenarios that are tried, each with the reason why an algorithm could matter."""
OF_THE_RATIO = ("train-001", "cuda-001", "zero-times-infinity", "stale-rollouts")
"""Scenarios whose failure comes through the ratio."""
BASE = "grpo"
BEGIN, END = "<!-- Made by `python -m benchmarks.algorithms fails`: run it again. -->", "<!-- End of that part. -->"
HELD, PART, NOT, UNKNOWN = "held", "held in part", "did not hold", "not measured yet"


class Judged(NamedTuple):
    """A claim about algorithms, the measurements that speak to it, and the verdict."""

    claim: str
    measured: str
    verdict: str


def lacking(algorithms: Sequence[str], scenarios: Sequence[str]) -> list[str]:
    """For each pair in which an algorithm has no place for the cause, or for a metric of the symptom, a sentence."""
    found = []
    for name in scenarios:
        case = scenario(name)
        gone = {each: replaced(case, each) for each in algorithms}
        clipped = [metric for metric in case.expect.metrics if metric.startswith("clip_ratio/")]
        found += [f"`{name}` has no cell of `{each}`: {_listed(by)}." for each, by in gone.items() if by]
        without = [each for each in algorithms if case.config().with_algorithm(each).loss.surrogate != "clip"]
        if clipped and without:
            found.append(f"`{name}`: no clip in {_listed(without)}; the symptom there is without {_listed(clipped)}.")
    return found


def judge(found: Findings) -> list[Judged]:
    """The claims about algorithms, in the order of the page."""
    return [
        _repeats(found, "reinforce_plus_plus"),
        _stabilises(found, "gspo", "A ratio of the whole completion stabilises training (GSPO's paper)."),
        _stabilises(found, "cispo", "A bounded weight without gradient stabilises training (CISPO's paper)."),
    ]


def _repeats(found: Findings, name: str) -> Judged:
    """Whether a NaN log-probability destroys the run of an algorithm, as it does GRPO's."""
    case, claim = "verl-nan-logprob", "REINFORCE++ gives `!!!!!!!!` too (verl: NaN)."
    runs = found.cells(case, name)
    if not runs:
        return Judged(claim, "", UNKNOWN)
    ends = sum(run.crash == "torch.multinomial" for run in runs)
    others = found.cells(case, BASE)
    grpo = f"; `{BASE}` on {sum(run.crash == 'torch.multinomial' for run in others)} of {len(others)}" if others else ""
    links = ", ".join(sorted({f"`{run.first_break}`" for run in runs if run.first_break})) or "none"
    measured = (
        f"`{case}`: `{name}` ends in `torch.multinomial` on {ends} of {len(runs)} seeds{grpo}. First link that is not "
        f"finite: {links}. Sampling from NaN weights raises; greedy decoding of them repeats `!`: "
        "`tests/test_scenarios.py -k exclamation_marks`."
    )
    return Judged(claim, measured, _share(ends, len(runs)))


def _stabilises(found: Findings, name: str, claim: str) -> Judged:
    """Whether an algorithm stops the failures that come through the ratio, where GRPO's formulas do not."""
    told, good, tried = [], 0, 0
    for case in OF_THE_RATIO:
        failing = {run.seed for run in found.cells(case, BASE) if run.fate != Fate.STOPPED}
        runs = [run for run in found.cells(case, name) if run.seed in failing]
        if not runs:
            continue
        stopped, learned = sum(run.fate == Fate.STOPPED for run in runs), sum(run.learned for run in runs)
        norms = [max(run.grad_norm for run in some) for some in (runs, found.cells(case, BASE))]
        sizes = f"norms up to {number(norms[0], 2)}, `{BASE}` {number(norms[1], 2)}"
        told.append(f"`{case}`: stopped on {stopped} of {len(runs)} seeds, {learned} learn ({sizes})")
        good, tried = good + stopped, tried + len(runs)
    if not told:
        return Judged(claim, "", UNKNOWN)
    counted = f"Counted are seeds on which `{BASE}` fails."
    return Judged(claim, f"{'; '.join(told)}. {counted}", _share(good, tried))


def _share(good: int, tried: int) -> str:
    return HELD if good == tried else PART if good else NOT


def findings(found: Findings) -> list[str]:
    """What the table says, in sentences."""
    names, said = [name for name in found.algorithms if name != BASE], []
    failing = [case for case in found.scenarios if any(run.fate != Fate.STOPPED for run in found.cells(case, BASE))]
    for case in failing:
        stops = _listed(name for name in names if _all(found.cells(case, name), lambda run: run.fate == Fate.STOPPED))
        learns = _listed(name for name in found.algorithms if _all(found.cells(case, name), attrgetter("learned")))
        said.append(
            f"`{case}` (`{BASE}`: {outcome(found, case, BASE)}). Stopped on every seed by {stops}; "
            f"learned on every seed by {learns}."
        )
    if healthy := [case for case in found.scenarios if case not in failing and found.cells(case, BASE)]:
        said.append(f"`{BASE}` does not fail in {_listed(healthy)}.")
    return said + [f"{each.claim} {each.measured} **{each.verdict}**" for each in judge(found)]


def _all(runs: Sequence[Measurement], test: Callable[[Measurement], bool]) -> bool:
    return bool(runs) and all(map(test, runs))


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "none"


def page(found: Findings, figure: str, alt: str) -> str:
    """Reasons, figure, table and findings in Markdown."""
    columns, names = (NONE, *found.algorithms), found.scenarios
    rows = [[column, *(outcome(found, name, column) for name in names)] for column in columns]
    reasons = "\n".join(f"- `{name}`: {SCENARIOS.get(name, scenario(name).title)}." for name in names)
    none = (
        "\n".join(f"- {text}" for text in lacking(found.algorithms, names)) or "Every algorithm has a cell everywhere."
    )
    return f"""{reasons}

![{alt}]({figure})

{table([["algorithm", *names], *rows], literal=True)}

`{NONE}` has the formulas of the scenario's file. Cells without one:

{none}

## Findings

{chr(10).join(f"- {text}" for text in findings(found))}
"""


def section(found: Findings) -> str:
    """The part of docs/claims.md about algorithms."""
    rows = [[each.claim, each.measured or "-", each.verdict] for each in judge(found)]
    return f"{BEGIN}\n\n{table([['claim', 'measured', 'verdict'], *rows])}\n\n{END}"


def put_into(path: Path, found: Findings) -> bool:
    """Put the section into a page that has one, and return whether the page changed."""
    old = path.read_text(encoding="utf-8")
    new = re.sub(re.escape(BEGIN) + ".*?" + re.escape(END), lambda _: section(found), old, flags=re.DOTALL)
    path.write_text(new, encoding="utf-8")
    return new != old
