"""`grpo-lab dual`: the runs with each mistake on and off, the verdicts, the page, and one line for each mistake."""

import dataclasses
import math
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from grpo_lab.analysis import dual_report
from grpo_lab.analysis.dual_report import (
    LONG,
    RUNS,
    DualRun,
    claims,
    configs_for,
    measure,
    report,
)
from grpo_lab.config.catalog import preset, scenario_names
from grpo_lab.core.hooks import Verdict
from grpo_lab.events import Crash, Ended, Evaluated, Started, Stepped
from grpo_lab.runs.session import Session
from grpo_lab.ui import plots, run_tables

LATE = {f"{kl}/{name}": value for kl in ("kl", "kl/exact") for name, value in (("F", 0.04), ("H", 0.1))}
LATE |= {"completions/mean_length/F": 3.5, "completions/mean_length/H": 2.5, "judge/time": 1.0}
LATE |= {"sampling/sampling_logp_difference/mean": 0.0}
INSIDE: dict[str, float] = {name: 0.9 for name in ("kl/F", "kl/H", "kl/exact/F", "kl/exact/H")}
HELD_OUT = ({"F": 0.25, "H": -0.5}, {"F": 0.5, "H": -0.25}, {"F": 0.75, "H": 0.25})
GOOD = DualRun(HELD_OUT, LATE, INSIDE, 1e-4, "done", "none", "healthy")
TINY = (
    "run.num_steps=2",
    "sft.num_steps=2",
    "run.num_eval=8",
    "objectives.F.num_prompts=2",
    "objectives.H.num_prompts=4",
)


def changed(run, late=(), inside=(), **fields):
    return dataclasses.replace(run, late={**run.late, **dict(late)}, inside={**run.inside, **dict(inside)}, **fields)


def without(run, *names):
    """The run without these measurements."""
    late, inside = ({key: value for key, value in part.items() if key not in names} for part in (run.late, run.inside))
    return dataclasses.replace(run, late=late, inside=inside)


def verdicts(**runs):
    """The verdicts of all claims in their order, with these runs changed."""
    return [row[-1] for row in claims({**dict.fromkeys(RUNS, GOOD), **runs})[1:]]


ORDER = ["zeroed", "inside", "lost", "added", "k3", "hinge", "exact", "apart", "worse", "unbound", "undefined", "judge"]
ALL_GOOD = dict.fromkeys(ORDER, "did not hold") | dict.fromkeys(("added", "hinge", "exact"), "held")
STILL = changed(GOOD, late={"kl/F": 1e-4, "kl/H": 0.0}, move=0.0)


@pytest.mark.parametrize(
    ("runs", "different"),
    [
        ({}, {}),
        ({"zeroed": STILL}, {"zeroed": "held"}),
        ({"zeroed": changed(STILL, move=1e-9)}, {}),
        ({"step-inside": STILL}, {"inside": "held"}),
        ({"overwrite": changed(STILL, late={"completions/mean_length/F": 1.0})}, {"lost": "held"}),
        ({"overwrite": STILL}, {}),
        ({"dual": changed(GOOD, inside={"kl/H": 0.79})}, {"added": "did not hold", "k3": "held"}),
        ({"hinge": changed(GOOD, inside={"kl/exact/F": 0.79})}, {"exact": "did not hold"}),
        ({"hinge": changed(GOOD, inside={"kl/F": 0.0})}, {"hinge": "did not hold"}),
        (
            {"temperature-ignored": changed(GOOD, late={"sampling/sampling_logp_difference/mean": 0.05})},
            {"apart": "held"},
        ),
        ({"temperature-ignored": changed(GOOD, held_out=(*HELD_OUT[:2], {"F": 0.59, "H": 0.25}))}, {"worse": "held"}),
        ({"temperature-ignored": changed(GOOD, held_out=(*HELD_OUT[:2], {"F": 0.61, "H": 0.25}))}, {}),
        ({"torch-unbound": changed(GOOD, end="UnboundLocalError: x")}, {"unbound": "held"}),
        ({"delta-undefined": changed(GOOD, end="NameError: x")}, {"undefined": "held"}),
        ({"judge-8": changed(GOOD, late={"judge/time": 0.66})}, {"judge": "held"}),
        ({"judge-8": without(GOOD, "judge/time")}, {"judge": "not measured"}),
        ({"hinge": without(GOOD, "kl/exact/H")}, {"exact": "not measured"}),
        ({"temperature-ignored": changed(GOOD, held_out=HELD_OUT[:2])}, {"worse": "not measured"}),
        ({"temperature": changed(GOOD, held_out=())}, {"worse": "not measured"}),
    ],
)
def test_each_claim_turns_out_alone(runs, different):
    assert verdicts(**runs) == list((ALL_GOOD | different).values())


def step(index, **metrics):
    return Stepped(index, 1, Verdict.KEEP, metrics, (), ())


def test_a_run_is_measured_over_the_second_half_of_grpo():
    session = Session(configs_for(TINY)["dual"], "nowhere")
    sft = [step(0, **{"weights/max_move": 0.5}), step(1, **{"weights/max_move": 0.1})]
    kls = (0.5, 0.5, 0.03, 0.07)
    grpo = [step(2 + i, reward=0.1, **{"kl/F": kl, "kl/H": 0.1, "weights/max_move": 0.2}) for i, kl in enumerate(kls)]
    held = [Evaluated(0, 0.1, 8, {"F": 0.1, "H": 0.2}), Evaluated(6, 0.1, 8, {"F": 0.3, "H": 0.4})]
    crash = Ended("crashed", "x", Crash("unknown", "unknown", "NameError: x", ""))
    session.events = [Started(session.config.to_dict(), 9, "cpu"), held[0], *sft, *grpo, held[1], Ended("done")]
    found = measure(session)
    assert found.late == {"reward": 0.1, "kl/F": pytest.approx(0.05), "kl/H": 0.1, "weights/max_move": 0.2}
    assert found.inside == {"kl/F": 0.5, "kl/H": 1.0} and found.move == 0.5
    assert (found.end, found.broke, found.rewards("F"), found.rewards("H")) == (
        "done",
        "none",
        "0.10>0.30",
        "0.20>0.40",
    )
    session.events = [*session.events[:2], Stepped(0, 0, Verdict.KEEP, {}, (), (), failed=True), crash]
    found = measure(session)
    assert (found.end, found.late, found.inside) == ("NameError: x", {}, {}) and math.isnan(found.move)


def test_each_run_differs_from_the_preset_by_its_mistake_alone():
    configs = configs_for(("run.seed=3",))
    dual = configs["dual"]
    assert list(configs) == list(RUNS) and list(configs)[: len(LONG)] == list(LONG)
    fixed = ("run.num_eval=400", "run.exact_kl=true", "run.seed=3", "run.name=dual-dual")
    assert dual == preset("dual").with_(*fixed)
    half = min(objective.num_prompts or 0 for objective in dual.objectives) // 2
    assert configs["overwrite"].data.micro_batch_prompts == half > 0
    assert configs["overwrite"].loss.combination == configs["overwrite"].loss.accumulation == "overwrite"
    assert configs["hinge"] == dual.with_("loss.kl_estimator=hinge", "run.name=dual-hinge")
    pair = configs["temperature"], configs["temperature-ignored"]
    assert pair[1] == pair[0].with_("faults.ignore_temperature=on", "run.name=dual-temperature-ignored")
    assert {config.run.seed for config in configs.values()} == {3}


FIGURES = {"one": ("one.png", "norm [max]\n5")}


def test_the_page_has_every_fix_with_its_runs_and_measurements():
    runs = dict.fromkeys(RUNS, GOOD) | {"delta-undefined": changed(GOOD, end="NameError: `delta`")}
    page = report(runs, {"hinge": ["kl value"]}, FIGURES, "cmd", configs_for(TINY)["dual"])
    assert all(f"**Run `{name}`**" in page for name in RUNS if name not in ("dual", "temperature"))
    assert "| dual | 0.25>0.50>0.75 | -0.50>-0.25>0.25 |" in page and "fail: kl value." in page
    assert "NameError: \\`delta\\`" in page and "![norm \\[max\\] 5](one.png)" in page and "{" not in page
    for rows in re.findall(r"(?:^\|.*\|\n)+", page, flags=re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in rows.splitlines()}) == 1, rows


def test_every_run_and_scenario_that_the_table_names_exists():
    rows = [row for fix in dual_report._TABLES["fixes"] for row in fix.get("claims", ())]
    assert {run for row in rows for run in row[1:3]} == set(RUNS)
    assert {name for fix in dual_report._TABLES["fixes"] for name in fix.get("scenarios", ())} <= set(scenario_names())


def test_the_figure_has_a_plot_an_objective_with_its_band_and_held_out_rewards():
    started = Started(configs_for(TINY)["dual"].to_dict(), 9, "cpu")
    steps = [step(2 + i, reward=0.1, **{"kl/F": 0.1 * i, "reward/F": 0.5}) for i in range(2)]
    events = [started, Evaluated(0, 0.1, 8, {"F": 0.1}), *steps, Evaluated(4, 0.1, 8, {"F": 0.3})]
    bands = {"F": (0.02, 0.06), "H": None}
    figure = plots.objectives_figure("kl", {"a": events, "b": [started]}, bands, "KL")
    first, second = figure.axes
    assert [len(axes.patches) for axes in (first, second)] == [1, 0]
    assert first.lines[0].get_ydata() == pytest.approx([0.0, 0.05]), "the mean of the window"
    assert {text.get_text() for text in first.texts} == {"SFT", "GRPO"} and first.get_yscale() == "symlog"
    rewards = plots.objectives_figure("reward", {"a": events}, bands, "reward").axes[0]
    assert [np.array(line.get_xdata()).tolist() for line in rewards.lines[:2]] == [[2, 3], [-0.5, 3.5]]
    plots.objectives_figure("reward", {}, bands, "nothing")


# --- the command -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("objectives.X.weight=2", "unknown objective 'X'"),
        ("objectives.H=off", "objectives F, stages sft, grpo: grpo-lab dual compares F and H in GRPO; leave both"),
        ("run.stages=sft", "objectives F, H, stages sft: grpo-lab dual compares"),
        ("guards.adaptive_betta=on", "unknown guard 'adaptive_betta'; did you mean 'adaptive_beta'"),
        ("num_steps", "is no override"),
    ],
)
def test_a_mistake_is_one_line_before_any_run_begins(call, monkeypatch, tmp_path, override, message):
    monkeypatch.setattr("warnings.showwarning", None)
    monkeypatch.setattr(run_tables, "warm_child", None)
    code, out, err = call("dual", "--out", tmp_path / "out", "--set", override)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("error: ") and message in err
    assert not (tmp_path / "out").exists()


def test_a_folder_with_something_in_it_is_refused(call, tmp_path):
    (tmp_path / "mine").write_text("")
    code, out, err = call("dual", "--out", tmp_path)
    assert (code, out) == (1, "") and err.startswith(f"error: {tmp_path} is not empty; choose another folder")
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def words(folder):
    return ["dual", "--out", str(folder), *(word for setting in TINY for word in ("--set", setting))]


@pytest.mark.slow  # half a minute to a minute and a half: eleven runs in children, and the checks
def test_everything_end_to_end(call, monkeypatch, tmp_path):
    monkeypatch.setattr("warnings.showwarning", None)
    code, out, err = call(*words(tmp_path / "out"))
    folder = tmp_path / "out"
    assert code == 0 and out.endswith(f"report: {folder / 'report.md'}\n")
    assert all(re.match(r".+: [\d,]+( of [\d,]+)?", line) for line in err.splitlines())  # progress, every ten seconds
    ended = {name: Session.open(folder / name) for name in RUNS}
    assert {name for name, session in ended.items() if session.status == "done"} == {
        name for name in RUNS if name not in ("torch-unbound", "delta-undefined")
    }
    page = (folder / "report.md").read_text(encoding="utf-8")
    pictures = re.findall(r"!\[.+\]\((.+\.png)\)", page)
    assert pictures == ["rewards.png", "kl.png", "exact.png"] and all((folder / name).exists() for name in pictures)
    found = {row.split(" | ")[1]: row.split(" | ") for row in page.splitlines() if row.startswith("| ")}
    verdict = {claim: row[-1].rstrip(" |") for claim, row in found.items()}
    assert "| 4 | UnboundLocalError ends the run | UnboundLocalError: cannot access" in page
    assert verdict["NameError ends the run"] == verdict["sampler and trainer differ"] == "held"
    assert verdict["`zero_grad` before `step`: KL = 0.000, and no weight moves"] == "held"
    assert verdict["eight workers: a third less time for the judge"] == "held"
    failed = dict(re.findall(r"\*\*Run `(.*?)`\*\*.*\n.*fail: (.*)\.", page))
    assert failed["hinge"] == "kl value (F), kl value (H), kl gradient (F), kl gradient (H)"
    assert failed["zeroed"] == "gradient, update size, combination"
    assert failed["temperature-ignored"].startswith("temperature (F), temperature (H)")
    assert len(ended["dual"].records["kl/exact/H"].dropna()) == 2


@pytest.mark.slow  # ten seconds
@pytest.mark.skipif(os.name == "nt", reason="sends SIGINT")
def test_a_real_interrupt_leaves_no_process(tmp_path):
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "grpo_lab", *words(tmp_path / "out"), "--set", "run.num_steps=100000"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    events = tmp_path / "out" / "dual" / "events.jsonl"
    while not (events.exists() and "Stepped" in events.read_text()):
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=180)
    assert (process.returncode, out) == (130, "") and err.endswith("interrupted\n")
    assert Session.open(tmp_path / "out" / "dual").status == "stopped"
    assert not (tmp_path / "out" / "report.md").exists()
