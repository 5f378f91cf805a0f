"""The before/after table says what was measured, whichever way it turns out."""

import dataclasses
import io
import math
import re
from pathlib import Path

import pytest
import torch
from rich.console import Console

from grpo_lab import messages
from grpo_lab.analysis import reproduction
from grpo_lab.analysis.reproduction import (
    ReproducedRun,
    claims,
    config_for,
    healthy_config,
    measure,
    report,
)
from grpo_lab.config.catalog import preset
from grpo_lab.core.hooks import Verdict
from grpo_lab.events import Crash, Ended, Evaluated, LinkNote, Started, Stepped
from grpo_lab.runs.first_break import first_break
from grpo_lab.runs.outcome import Learned, MeanReward, change, outcome
from grpo_lab.runs.session import Session
from grpo_lab.ui import console, run_tables

NAN, INF = math.nan, math.inf
CRASH = Crash("multinomial-cpu", "torch.multinomial", "RuntimeError: probability tensor contains either `inf`", "x")


def step(index, norm, verdict=Verdict.KEEP, bad=0.0, failed=False, move=0.0):
    note = LinkNote("gradients", 0, norm, 0.0 if math.isfinite(norm) else 10.0, 100, "wte")
    metrics = {"weights/nonfinite": bad, "step_time": 1.0 + index, "weights/max_move": move}
    return Stepped(index, 1, verdict, {} if failed else metrics, () if failed else (note,), (), failed=failed)


def session_of(*events, num_parameters=100):
    session = Session(preset("smoke"), "nowhere")
    session.events = [Started({}, num_parameters, "cpu"), *events]
    return session


WENT = dataclasses.replace(
    outcome([]), finished=10, finite_grad_norm=5.0, max_move=0.1, before=0.3, after=0.8, learned=Learned.LEARNED
)
CELL = ReproducedRun("train-001", "reported_fix", Path("x"), WENT, 0, 1000, 1.0)


def cell(**changes):
    """A run with other measurements, or another outcome of 250 held-out problems."""
    of_run = {name: changes.pop(name) for name in {*changes} & {"scenario", "column", "nonfinite", "seconds"}}
    found = dataclasses.replace(WENT, **changes)
    learned = change(MeanReward(found.before, 250), MeanReward(found.after, 250))
    return dataclasses.replace(CELL, outcome=dataclasses.replace(found, learned=learned, by_training=False), **of_run)


def test_a_crashed_run_is_measured():
    events = [
        Evaluated(0, 0.25, 100),
        step(0, 3.0, move=0.5),
        step(1, 9.0, verdict=Verdict.SKIP_STEP, move=0.25),
        step(2, INF, verdict=Verdict.ROLL_BACK),
        step(3, NAN, bad=100.0, move=NAN),
        step(4, NAN, failed=True),
        Ended("crashed", "RuntimeError", CRASH),
    ]
    found = measure(session_of(*events), "cuda-001", "original")
    assert (found.nonfinite, found.parameters, found.seconds, found.crash) == (100, 100, 1.0, CRASH.text)
    assert (found.outcome.finished, found.outcome.refused, found.outcome.finite_grad_norm) == (4, 2, 9.0)
    assert found.degraded


def test_a_run_that_died_in_its_first_step_is_measured():
    found = measure(session_of(step(0, NAN, failed=True), Ended("crashed", "", CRASH)), "a", "b")
    assert (found.outcome.finished, found.nonfinite) == (0, 0) and math.isnan(found.seconds)
    assert reproduction.table([found])[1][-5:] == ["-", "multinomial", "-", "-", "-"]


@pytest.mark.parametrize(("bad", "text"), [(0, "0%"), (1, "<1%"), (500, "50%"), (999, ">99%"), (1000, "100%")])
def test_a_share_is_none_or_all_only_if_it_is(bad, text):
    assert cell(nonfinite=bad).share == text


HEALTHY = {"original": cell(column="original"), "stable": cell(column="stable")}
CLAIMS = ["norm", "weights", "rounds", "crash", "quality", "cost"]


def tried(runs, healthy):
    """What is said of each claim on the reports' fix."""
    return {name: row[1] for name, row in zip(CLAIMS, claims(runs, healthy)[1:], strict=True)}


@pytest.mark.parametrize(
    ("claim", "fixed", "seconds", "measured"),
    [
        ("norm", {"finite_grad_norm": 10.5}, 1.0, "largest finite norms up to 10.5"),
        ("norm", {"finite_grad_norm": NAN}, 1.0, "no finite norm at all"),
        ("weights", {"nonfinite": 1}, 1.0, "train-001 (<1%)"),
        ("rounds", {"finished": 9}, 1.0, "short: train-001 (9)"),
        ("crash", {"crash": CRASH}, 1.0, "crashed: train-001"),
        ("quality", {"after": 0.2}, 1.0, "held-out reward 0.3 to 0.2"),
        ("quality", {"after": NAN}, 1.0, "held-out reward 0.3 to -"),
        ("cost", {}, 1.2, "+20% in this run; make bench measures it with care"),
        ("cost", {}, NAN, "+nan% in this run; make bench measures it with care"),
    ],
)
def test_each_claim_can_fail_alone(claim, fixed, seconds, measured):
    """The other columns do not count: only the fix is judged."""
    runs = [cell(**fixed), cell(column="original", finite_grad_norm=1e9, nonfinite=5, finished=1, crash=CRASH)]
    found = tried(runs, HEALTHY | {"stable": cell(column="stable", seconds=seconds)})
    assert [name for name, said in found.items() if said.startswith("did not hold: ")] == [claim]
    assert found[claim] == f"did not hold: {measured}"


def test_the_terminal_table_has_one_line_a_row_at_80_columns(monkeypatch):
    terminal = Console(width=80, file=io.StringIO(), force_terminal=True, color_system=None, legacy_windows=False)
    monkeypatch.setattr(console, "out", terminal)
    broken = first_break([step(3, NAN)])
    worst = cell(scenario="fp16-adam-epsilon", finite_grad_norm=1.14e8, first_break=broken, nonfinite=999, crash=CRASH)
    with terminal.capture() as captured:
        terminal.print(console.table(reproduction.table([worst, CELL], "short"), gap=1))
    shown = captured.get().splitlines()
    assert len(shown) == 4 and max(map(len, shown)) <= 80
    assert " ".join(shown[2].split()) == "fp16-adam-epsilon reported_fix 10 1.1e+08 gradients, 3 >99% yes 0.3>0.8"


def test_the_columns_differ_as_the_page_says():
    cause = config_for("cuda-001", "original")
    stable, fixed = config_for("cuda-001", "stable"), config_for("cuda-001", "reported_fix")
    assert stable.with_guards(cause.guards) == cause and stable.guards == preset("stable").guards
    assert fixed.guards == preset("reported_fix").guards and fixed.model.precision == "fp16_pure"
    assert fixed.sampling == preset("reported_fix").sampling and fixed.data.num_generations == 2
    healed = config_for("cuda-001", "healed")
    assert healed.guards == stable.guards and healed.loss.log_ratio == "old" and healed.model.precision == "fp32"
    assert {config.run.num_steps for config in (cause, stable, fixed, healed)} == {reproduction.ROUNDS}
    healthy = healthy_config("original", ("run.num_eval=3",))
    assert healthy.loss == preset("stable").loss and healthy.guards == preset("original").guards
    assert healthy.run.num_eval == 3


@pytest.fixture
def small(monkeypatch):
    """Everything, in seconds: two rounds of one failure, and four healthy steps in children."""
    for name, value in {"ROUNDS": 2, "PROBLEMS": 8, "HEALTHY_STEPS": 4}.items():
        monkeypatch.setattr(reproduction, name, value)
    monkeypatch.setattr(reproduction, "SCENARIOS", ("fp16-adam-epsilon",))
    monkeypatch.setattr("warnings.showwarning", None)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.mark.slow
def test_everything_end_to_end(small, tmp_path, capsys):
    page = run_tables.reproduce_all(tmp_path / "out", ())
    assert page == tmp_path / "out" / "report.md"
    text = page.read_text()
    runs = [f"fp16-adam-epsilon-{column}" for column in reproduction.COLUMNS] + ["healthy-original", "healthy-stable"]
    assert {name: Session.open(page.parent / name).status for name in runs} == {
        "fp16-adam-epsilon-original": "crashed",
        "fp16-adam-epsilon-reported_fix": "crashed",
        "fp16-adam-epsilon-stable": "done",
        "fp16-adam-epsilon-healed": "done",
        "healthy-original": "done",
        "healthy-stable": "done",
    }
    figures = dict((file, alt) for alt, file in re.findall(r"!\[(.+)\]\((.+\.png)\)", text))
    assert set(figures) == {path.name for path in page.parent.glob("*.png")} and len(figures) == 3
    assert "crashed in torch.multinomial" in figures["fp16-adam-epsilon.png"]
    assert "original crashes in step 1" in figures["rewards.png"] and "healed goes from" in figures["rewards.png"]
    assert "| fp16-adam-epsilon | original | 1 |" in text and text.count("did not hold") >= 3
    shown = capsys.readouterr().out
    assert "weights, 0" in shown and "A healthy task" in shown and "No crash in" in shown


def test_the_page_in_chinese_has_the_numbers_of_the_english_one(monkeypatch):
    broken = first_break([step(3, NAN)])
    runs = [cell(first_break=broken, nonfinite=5), cell(column="healed", crash=CRASH, after=0.1)]
    given = (runs, {"original": CELL, "stable": CELL}, {}, "grpo-lab reproduce", config_for("train-001", "original"))
    english = report(*given)
    monkeypatch.setenv(messages.VARIABLE, "zh")
    said = report(*given)
    found = [sorted(re.findall(r"\d[\d.]*\d|\d", page)) for page in (said, english)]
    assert found[0] == found[1]
    assert not re.search(r"[a-z]{3,} [a-z]{3,} [a-z]{3,}", said)
    assert "| 故障 | 防护 |" in said and "不成立：崩溃：train-001" in said
