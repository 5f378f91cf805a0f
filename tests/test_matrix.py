"""The matrix: a cell is the run it names, a cell that dies loses only itself, and findings follow from results."""

import csv
import dataclasses
import io
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import typer

from benchmarks import matrix
from benchmarks.derive import derive
from grpo_lab.analysis.matrix import (
    HEALTHY,
    Cell,
    Fate,
    Findings,
    Journal,
    Pool,
    cells,
    columns,
    measure,
    only,
    replaced,
    rows,
    run_all,
    summary,
    to_csv,
)
from grpo_lab.config.algorithms import algorithm_names
from grpo_lab.config.catalog import TRIAL, Expectation, preset, scenario, scenario_names
from grpo_lab.core.hooks import Action, Verdict
from grpo_lab.errors import ConfigError, RunError
from grpo_lab.events import Crash, Ended, Evaluated, LinkNote, Stepped
from grpo_lab.training.guards import GUARDS

INF, NAN = math.inf, math.nan
SMOKE = preset("smoke").with_("run.threads=1", "run.num_steps=1", "data.num_prompts=2")
KL = Expectation(metrics={"kl": 1.0})
LOW = Expectation(below={"reward": 0.1})
DIES = Expectation(crash="torch.multinomial")


def cell(*overrides, expect=None, column="none", within=30):
    return Cell("mine", column, 0, SMOKE.with_(*overrides), expect, within)


# --- cells ---------------------------------------------------------------------------------------------------------


def test_columns_are_no_guard_each_alone_the_presets_and_stable_without_each():
    found, stable = columns(), preset("stable").guards
    assert list(found) == ["none", *GUARDS, "reported_fix", "stable", *(f"stable - {name}" for name in stable)]
    assert (found["none"], found["stable"]) == ({}, stable)
    assert found["reported_fix"] == preset("reported_fix").guards
    assert found["warm_up"] == {"warm_up": stable["warm_up"]} and found["clamp_logits"] == {"clamp_logits": {}}
    for name in stable:
        assert list(found[f"stable - {name}"]) == [other for other in stable if other != name]


def test_every_scenario_meets_every_column_and_only_guards_and_seed_differ():
    found = cells(rows(), columns(), seeds=2)
    names = {(one.scenario, one.column, one.seed) for one in found}
    assert len(found) == len(names) == (len(scenario_names()) + 1) * len(columns()) * 2
    for name in (HEALTHY, "nan-passes-threshold", "cuda-001"):
        mine = [one for one in found if one.scenario == name]
        assert all(one.config.guards == columns()[one.column] and one.config.run.seed == one.seed for one in mine)
        same = [one.config.with_guards({}).with_("run.seed=0") for one in mine]
        assert all(config == same[0] for config in same)


def test_a_heal_is_tried_against_the_same_run_without_it():
    found = {one.column: one for one in cells(["train-001"], {}, seeds=1, heals=True)}
    assert list(found) == ["unhealed", "healed"]
    ill, healed = found["unhealed"].config, found["healed"].config
    assert healed == ill.with_(*scenario("train-001").heals[0].change) != ill
    assert ill.guards == preset("stable").guards and ill.run.num_steps == TRIAL["run"]["num_steps"]
    assert [one.column for one in cells([HEALTHY], {}, seeds=1, heals=True)] == []


def test_only_the_columns_asked_for_are_run():
    found = cells(["train-001"], columns(), seeds=2, heals=True)
    assert [(one.column, one.seed) for one in only(["healed"], found)] == [("healed", 0), ("healed", 1)]
    assert only(None, found) == found
    with pytest.raises(ConfigError, match="heald"):
        only(["heald"], found)


def test_an_algorithm_is_a_column_without_guards_that_keeps_the_cause():
    found = {one.column: one for one in cells(["train-001", HEALTHY], {"none": {}}, 1, algorithms=["gspo", "tis"])[:3]}
    assert list(found) == ["none", "gspo", "tis"]
    plain = found["none"].config
    for name in ("gspo", "tis"):
        assert found[name].config == plain.with_algorithm(name) != plain
        assert (found[name].config.loss.log_ratio, found[name].config.guards) == ("reference", {})
        assert found[name].key != found["none"].key


@pytest.mark.parametrize(
    ("case", "algorithm", "by"),
    [
        ("kl-hinge", "reinforce_plus_plus", ["loss.kl_place=reward"]),
        ("kl-overflow", "rloo", ["loss.kl_place=reward"]),
        ("kl-overflow", "gspo", []),
        ("padding-unmasked", "dapo", ["loss.completion_mask=not_truncated"]),
        ("single-generation", "rloo", ["loss.advantage_scale=leave_one_out"]),
        ("verl-nan-logprob", "reinforce_plus_plus", []),
    ],
)
def test_where_an_algorithm_replaces_the_cause_there_is_no_cell(case, algorithm, by):
    assert replaced(scenario(case), algorithm) == by
    columns_of_it = [one.column for one in cells([case], {"none": {}}, 1, algorithms=[algorithm, "grpo"])]
    assert columns_of_it == ["none", *([] if by else [algorithm]), "grpo"]


def test_the_cause_is_left_in_every_cell_of_an_algorithm():
    """What the heal changes is as wrong as without the algorithm."""
    for one in cells(scenario_names(), {"none": {}}, 1, algorithms=algorithm_names()):
        case = scenario(one.scenario)
        healed = one.config.with_(*case.heals[0].change)
        assert healed != one.config, (one.scenario, one.column)
        assert one.config.faults == case.config().faults


def test_a_run_goes_as_far_as_its_file_says_and_further_than_a_warm_up():
    asked = {one.scenario: one.config.run.num_steps for one in cells(rows(), {"none": {}}, seeds=1)}
    for name in scenario_names():
        assert asked[name] == max(12, scenario(name).config().run.num_steps)
    assert (asked[HEALTHY], asked["small-batch"], asked["bad-batch"]) == (30, 40, 12)
    assert columns()["warm_up"]["warm_up"]["steps"] < 12
    assert {one.config.run.num_steps for one in cells(rows(), {"none": {}}, seeds=1, steps=4)} == {4}


def test_the_key_names_all_settings_but_the_name_of_the_column():
    ones = [cell(), cell("run.num_steps=2"), cell("guards.warm_up=on"), cell(expect=KL), cell(within=9)]
    assert len({one.key for one in ones}) == 5
    assert cell(column="other").key == cell().key


# --- results -------------------------------------------------------------------------------------------------------


def step(index, verdict=Verdict.KEEP, updates=1, failed=False, nonfinite=0.0, broken="", **metrics):
    links = (LinkNote(broken, 0, NAN, 1, 8),) if broken else ()
    names = {"grad_norm": 2.0, "kl": 0.1, "reward": 0.5, "step_time": 0.1 * (index + 1), "weights/nonfinite": nonfinite}
    actions = () if verdict == Verdict.KEEP else (Action("skip_spikes", "guard", "gradients", 0, verdict, "why"),)
    return Stepped(index, updates, verdict, {**names, **metrics}, links, actions, (), failed)


CRASH = Ended("crashed", "RuntimeError", Crash("multinomial-cpu", "torch.multinomial", "text", "why"))
DONE = Ended("done")


@pytest.mark.parametrize(
    ("fate", "expect", "events"),
    [
        (Fate.STOPPED, KL, [step(0), step(1, Verdict.SKIP_STEP, 0), DONE]),
        (Fate.STOPPED, None, [step(0, kl=9.0), DONE]),
        (Fate.REFUSED, KL, [step(0), step(1, Verdict.SKIP_STEP, 0, kl=2.0), DONE]),
        (Fate.SHOWN, KL, [step(0), step(1, Verdict.CHANGED, kl=2.0), DONE]),
        (Fate.IDLE, KL, [step(0, Verdict.SKIP_STEP, 0), step(1, Verdict.SKIP_STEP, 0), DONE]),
        (Fate.BROKEN, KL, [step(0), step(1, nonfinite=3), DONE]),
        (Fate.STOPPED, KL, [step(0), step(1, Verdict.ROLL_BACK, 0, nonfinite=3), DONE]),
        (Fate.HALTED, KL, [step(0), step(1, Verdict.STOP, 0), Ended("stopped", "too many rollbacks")]),
        (Fate.CRASHED, DIES, [step(0), step(1, failed=True), CRASH]),
        (Fate.CRASHED, KL, [step(0), step(1, failed=True), CRASH]),
        (Fate.STOPPED, DIES, [step(0), DONE]),
        (Fate.FAILED, KL, [Ended("failed", "no such model")]),
        # LOW is expected within 2 steps: that a later one rises above it does not heal.
        (Fate.SHOWN, LOW, [step(0, reward=0.0), step(1, reward=0.0), step(2, reward=0.3), DONE]),
        (Fate.STOPPED, LOW, [step(0, reward=0.0), step(1, reward=0.3), step(2, reward=0.0), DONE]),
    ],
)
def test_a_run_in_a_word(fate, expect, events):
    assert measure(cell(expect=expect, within=2), events, events[-1].status).fate == fate


def test_a_run_in_numbers():
    events = [
        Evaluated(0, 0.25, 8),
        step(0, grad_norm=5.0),
        step(1, Verdict.CHANGED),
        step(2, Verdict.SKIP_STEP, 0, broken="loss"),
    ]
    found = measure(cell("guards.warm_up=on", expect=KL), [*events, Evaluated(3, 0.75, 8), DONE], "done")
    assert (found.finished, found.refused, found.changed, found.updates) == (3, 1, 1, 2)
    assert (found.first_break, found.caught_by, found.guards) == ("loss", "skip_spikes", "warm_up")
    assert (found.grad_norm, found.before, found.after, found.gained) == (5.0, 0.25, 0.75, 0.5)
    assert found.seconds == pytest.approx(0.2) and found.survived and not found.shown
    crashed = measure(cell(), [step(0, grad_norm=NAN), step(1, failed=True), CRASH], "crashed", "why")
    assert (crashed.finished, crashed.crash, crashed.grad_norm) == (1, "torch.multinomial", INF)
    assert math.isnan(crashed.after) and not crashed.survived and crashed.message == "why"


def test_a_gain_is_no_lesson_where_the_rewards_are_as_noisy():
    """Of rewards below 0, p (1 - p) says nothing: the noise of the steps does."""
    noisy = [step(n, reward=value) for n, value in enumerate((-0.9, -0.1) * 6)]
    found = measure(cell(), [Evaluated(0, -0.5, 8), *noisy, Evaluated(12, -0.4, 8), DONE], "done")
    assert found.gained == pytest.approx(0.1) and found.noise > 0.5 and not found.learned
    assert replace(found, after=5.0).learned


def result(scenario="a", column="none", seed=0, fate=Fate.STOPPED, **more):
    """A row as a run would leave it."""
    alive = fate in (Fate.STOPPED, Fate.REFUSED, Fate.IDLE, Fate.SHOWN)
    found = measure(cell(), [step(0), DONE], "done" if alive else "crashed")
    names = {"scenario": scenario, "column": column, "seed": seed, "fate": str(fate), "survived": alive}
    key = f"{scenario}/{column}/{seed}"
    return replace(
        found, **{"key": key, "before": 0.3, "problems": 250, "after": 0.4 if alive else NAN, **names, **more}
    )


def test_the_journal_forgets_a_line_that_was_cut_off(tmp_path):
    path, first, second = tmp_path / "new" / "cells.jsonl", result(), result(seed=1, fate=Fate.CRASHED, grad_norm=INF)
    journal = Journal(path)
    journal.add(first)
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"key": "cut o')
    journal = Journal(path)
    assert journal.results == {first.key: first}
    journal.add(second)
    assert path.read_bytes().startswith(whole) and len(path.read_text().splitlines()) == 2
    again = Journal(path)
    assert to_csv([*again.results.values()]) == to_csv([first, second])


@pytest.mark.parametrize("line", ["nonsense", "[1]", '{"key": "a"}', '{"grad_norm": "much"}'])
def test_a_line_that_is_no_cell_is_named(tmp_path, line):
    path = tmp_path / "cells.jsonl"
    path.write_text(json.dumps(dataclasses.asdict(result(after=0.5))) + f"\n{line}\n")
    with pytest.raises(RunError, match=r"cells.jsonl:2: not a finished cell .*; delete that line"):
        Journal(path)


# --- running -------------------------------------------------------------------------------------------------------

REWARDS = """
import os, time
def sleep(**_):
    time.sleep(600)
def abort(**_):
    os.abort()
def leave(**_):
    os._exit(3)
def mistake(**_):
    raise ValueError("no such key")
"""


@pytest.mark.slow
def test_a_cell_that_hangs_or_dies_costs_itself_alone(monkeypatch, tmp_path):
    """What failed is tried again, since its mistake may have been mended; what hung or died would do so again."""
    (tmp_path / "bad.py").write_text(REWARDS)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    names = ["mistake", "abort", "sleep", "leave"]
    bad = [cell(f"data.rewards={tmp_path / 'bad.py'}:{name},", column=name) for name in names]
    good = [cell(f"run.seed={seed}", column=f"well {seed}") for seed in range(2)]
    wanted = [*bad[:2], *good, *bad[2:]]  # cells that kill their child come late: each costs another child
    journal, told = Journal(tmp_path / "cells.jsonl"), []
    with closing(Pool(limit=4)) as pool:
        assert run_all(wanted, journal, pool, jobs=2)
        found = {row.column: row for row in journal.of(wanted)}
        assert run_all(wanted, journal, pool, 1, told.append)
    assert {name: row.status for name, row in found.items()} == {
        **{"sleep": "hung", "abort": "died: SIGABRT", "leave": "died: exit code 3", "mistake": "failed"},
        **{"well 0": "done", "well 1": "done"},
    }
    assert [found[name].fate for name in names] == ["failed", "crashed", "crashed", "crashed"]
    assert "4 s" in found["sleep"].message and "ValueError: no such key" in found["mistake"].message
    assert [row.column for row in told] == ["mistake"]
    assert list((tmp_path / "temporary").iterdir()) == [], "no run folder is left"


@pytest.mark.slow
def test_a_killed_matrix_goes_on_and_writes_table_and_figure(call, tmp_path):
    words = ["matrix", "--scenario", "clip-spreads-nan", "--scenario", "healthy", "--guard", "skip_nonfinite"]
    words += ["--seeds", "1", "--steps", "3", "--jobs", "1", "--out", str(tmp_path)]
    path, env = tmp_path / "cells.jsonl", {**os.environ, "OMP_NUM_THREADS": "1"}
    running, end = subprocess.Popen([sys.executable, "-m", "grpo_lab", *words], env=env), time.monotonic() + 120
    while not path.exists() or path.read_bytes().count(b"\n") < 3:
        assert time.monotonic() < end and running.poll() is None
        time.sleep(0.005)
    running.kill()
    running.wait()
    killed, (code, said, _) = path.read_bytes(), call(*words)
    keys = [json.loads(line)["key"] for line in path.read_text().splitlines()]
    assert path.read_bytes().startswith(killed) and len(keys) == len(set(keys)) == 8
    assert code == 0 and "clip-spreads-nan" in said and "heat_map.png" in said
    read = list(csv.DictReader(io.StringIO((tmp_path / "cells.csv").read_text())))
    fates = {(row["scenario"], row["column"]): row["fate"] for row in read}
    names = ["none", "skip_nonfinite", "stable", "stable - skip_nonfinite"]
    assert [fates["clip-spreads-nan", name] for name in names] == ["crashed", "stopped", "stopped", "crashed"]
    assert all(fates[HEALTHY, name] == "stopped" for name in names)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["cells.csv", "cells.jsonl", "heat_map.png"]


def fake(monkeypatch, answer):
    """Cells that answer at once, with a result of their scenario and guards."""

    def run(pool, one):
        names = {"key": one.key, "column": one.column, "guards": "+".join(one.config.guards)}
        return replace(answer(one), **names)

    monkeypatch.setattr(Pool, "run", run)


def test_ctrl_c_lets_running_cells_end_and_says_how_to_go_on(call, monkeypatch, tmp_path):
    begun = []

    def answer(one):
        begun.append(one)
        if len(begun) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1)  # for the main thread to hear it
        return result(one.scenario, one.column, one.seed)

    fake(monkeypatch, answer)
    words = ["matrix", "--scenario", "cuda-001", "--guard", "warm_up", "--jobs", 2, "--out", tmp_path / "out"]
    code, _, complained = call(*words)
    lines = (tmp_path / "out" / "cells.jsonl").read_text().splitlines()
    assert code == 130 and 3 <= len(lines) == len(begun) < 12
    assert f"stopped: {len(lines)} of 12 cells are finished" in complained and "goes on from there" in complained
    assert call(*words)[0] == 0 and len(begun) == 12


@pytest.mark.parametrize(
    ("option", "wrong", "right"),
    [
        ("--scenario", "cuda-01", "cuda-001"),
        ("--guard", "clip_gradient", "clip_gradients"),
        ("--algorithm", "gsp", "gspo"),
    ],
)
def test_a_mistake_is_answered_in_a_line_before_anything_runs(call, tmp_path, option, wrong, right):
    code, _, complained = call("matrix", option, wrong, "--out", tmp_path / "out")
    assert code == 2 and f"'{wrong}'; did you mean '{right}'" in complained and complained.count("\n") == 1
    assert not (tmp_path / "out").exists()


# --- findings ------------------------------------------------------------------------------------------------------


def table(text):
    """Results from a table in words: scenario, column, and a fate for each seed."""
    words = [line.split() for line in text.strip().splitlines()]
    return [
        result(name, column.replace("~", " - "), seed, Fate(fate))
        for name, column, *fates in words
        for seed, fate in enumerate(fates)
    ]


SAID = table("""
    a none crashed crashed crashed
    a skip_nonfinite stopped stopped stopped
    a skip_spikes stopped crashed refused
    a clamp_logits crashed crashed crashed
    a reported_fix crashed broken broken
    a stable stopped stopped stopped
    a stable~skip_nonfinite crashed stopped stopped
    a stable~clip_gradients stopped stopped stopped
    b none shown stopped shown
    b skip_nonfinite shown stopped shown
    b skip_spikes stopped stopped stopped
    b clamp_logits shown stopped shown
    b reported_fix halted idle stopped
    b stable shown stopped shown
    b stable~skip_nonfinite shown stopped broken
    b stable~clip_gradients shown stopped shown
""")
WELL = [
    result(HEALTHY, column, seed, seconds=seconds, refused=refused, changed=2, finished=30, after=0.3 + gain)
    for column, seconds, refused, gain in (
        ("none", 0.1, 0, 0.2),
        ("skip_spikes", 0.11, 1, 0.2),
        ("skip_nonfinite", 0.1, 0, 0.2),
        ("clamp_logits", 0.2, 0, 0.1),
        ("stable", 0.12, 0, 0.21),
    )
    for seed in range(3)
]


@pytest.fixture(scope="module")
def found():
    return Findings([*WELL, *SAID])


def test_a_run_that_went_well_counts_only_where_the_unguarded_one_failed(found):
    """And one that failed always counts: a preset may fail where no guard at all does not."""
    assert found.share("a", "skip_spikes") == pytest.approx(1 / 3) and found.share("b", "skip_spikes") == 1
    assert found.fates("b", "skip_spikes").total() == 2 and found.fates("b", "reported_fix").total() == 3
    assert found.word("b", "reported_fix") == "halted 1, idle 1, stopped 1"
    assert Findings(table("a stable stopped")).word("a", "stable") == "stopped", "nothing to compare with"
    assert Findings(table("a none stopped\na stable stopped")).word("a", "stable") == "did not fail here"


def test_the_page_says_so(found):
    hung = replace(result("b", "warm_up", 0, Fate.CRASHED), status="hung", message="no end within 4 s")
    text = matrix.page(Findings([*found.results, hung]), "heat_map.png", "grpo-lab matrix")
    lines = [
        "| a | crashed | skip_nonfinite | skip_spikes (stops 1, refuses 1 of 3) | broken 2, crashed 1 | stopped |",
        "| skip_nonfinite | a (survives 3 to 2 of 3, stopped 3 to 2 of 3), b (survives 2 to 1 of 2) |",
        "neither stop nor refuse any failure here: `clamp_logits`, `warm_up`.",
        "| skip_spikes | 3 of 90 | 6 of 90 | 0.3 to 0.5 | +0.000 | 1.10 x |",
        "- `hung`: b, warm_up, seed 0: no end within 4 s",
    ]
    assert [line for line in lines if line not in text] == []


def test_the_terminal_is_told_in_short(found):
    assert summary(found)[1:] == [
        ["a", "crashed", "skip_nonfinite", "broken 2, crashed 1", "stopped"],
        ["b", "shown", "skip_spikes", "halted 1, idle 1, stopped 1", "shown"],
    ]


def test_algorithms_have_a_table_of_their_own():
    rows_of_it = [
        *table("a none crashed crashed\na gspo stopped crashed\na grpo crashed crashed\nb none shown shown"),
        *(result("b", "gspo", seed, Fate.STOPPED, after=0.3 + 0.1 * seed) for seed in range(2)),
    ]
    found = Findings(rows_of_it)
    text = matrix.page(found, "heat_map.png", "grpo-lab matrix")
    assert "| a | crashed | stopped 1, crashed 1, 1 of 2 learn | crashed |" in text
    assert "| b | shown, 2 of 2 learn | stopped, 1 of 2 learn | - |" in text
    assert summary(found)[1:] == [["a", "crashed", "none"], ["b", "shown", "gspo"]]


# --- deriving ------------------------------------------------------------------------------------------------------


class World:
    """What sets of guards would show: per scenario, the sets any of which stops it."""

    def __init__(self, healthy=None, **stops):
        self.stops = {name: [set(one.split("+")) for one in sets.split()] for name, sets in stops.items()}
        self.healthy = healthy or {}

    def __call__(self, guards):
        on = set(guards)
        well = {key: value for guard in guards for key, value in self.healthy.get(guard, {}).items()}
        yield result(HEALTHY, "derived", 0, **well)
        for name, sets in self.stops.items():
            stopped = any(one <= on for one in sets)
            yield result(name, "derived", 0, Fate.STOPPED if stopped else Fate.CRASHED)


def run_in(world, *guards):
    return derive(guards, lambda names: list(world(names)))


@pytest.mark.parametrize(
    ("stops", "kept"),
    [
        ({"x": "a", "y": "b"}, {"a": ("x, seed 0: crashed",), "b": ("y, seed 0: crashed",)}),
        ({"x": "a b", "y": "a c"}, {"a": ("x, seed 0: crashed", "y, seed 0: crashed")}),
        ({"x": "a+b"}, {"a": ("x, seed 0: crashed",), "b": ("x, seed 0: crashed",)}),
        ({"x": "nobody"}, {}),
    ],
    ids=["each needed", "the one that stops least alone is tried first", "only together", "none helps"],
)
def test_what_is_needed_is_kept_with_the_cells_that_need_it(stops, kept):
    derived = run_in(World(**stops), "a", "b", "c")
    assert derived.kept == kept and derived.harmful == {} and derived.false_alarms == 0
    assert set(derived.dropped) == {"a", "b", "c"} - set(kept)


def test_what_disturbs_a_healthy_run_is_never_in_the_set():
    world = World(
        healthy={"a": {"refused": 2}, "b": {"after": 0.31}, "c": {"survived": False}, "d": {"after": 0.38}}, x="a b c d"
    )
    derived = run_in(world, "a", "b", "c", "d")
    assert list(derived.kept) == ["d"]
    assert derived.harmful == {
        "a": "2 false alarms on the healthy run",
        "b": "the healthy run gains 0.010 of reward with it, 0.100 without",
        "c": "the healthy run does not survive it",
    }


def test_stable_is_the_derived_set():
    published = json.loads((Path(__file__).parents[1] / "docs/matrix/derived.json").read_text())
    assert list(published["kept"]) == list(preset("stable").guards)


# --- rows that were measured again -----------------------------------------------------------------------------------


@pytest.fixture
def published(tmp_path):
    """A folder with a whole matrix."""
    folder = tmp_path / "whole"
    folder.mkdir()
    (folder / "cells.csv").write_text(to_csv(SAID))
    (folder / "findings.md").write_text("# Title\n\nMade by `first`.\n\ntext\n")
    return folder


def measured_later(folder, rows_of_it):
    folder.mkdir()
    (folder / "cells.csv").write_text(to_csv(rows_of_it))
    return folder


def test_scenarios_and_columns_are_measured_as_a_whole_or_not_at_all(published, tmp_path):
    new = [replace(row, scenario="c") for row in SAID if row.scenario == "a"]
    column = [replace(row, column="healed") for row in (*SAID, *new) if row.column == "none"]
    scenario_c, healed = measured_later(tmp_path / "row", new), measured_later(tmp_path / "column", column)
    for some in (healed, measured_later(tmp_path / "one", [result("c")])):
        with pytest.raises(typer.BadParameter, match="rows would be missing"):
            matrix.main([some], ["y"], "because", published)
    assert (published / "cells.csv").read_text() == to_csv(SAID)
    matrix.main([scenario_c, healed], ["x", "y"], "because", published)
    text = (published / "findings.md").read_text()
    assert "The rows of `c` were measured because: `x`." in text
    assert "The columns `healed` were measured because: `y`." in text
    rows_of_it = matrix.read(published / "cells.csv")
    assert {row.column for row in rows_of_it if row.scenario == "c"} == {row.column for row in SAID} | {"healed"}
