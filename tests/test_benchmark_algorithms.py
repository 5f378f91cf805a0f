"""`python -m benchmarks.algorithms`: its words follow from its numbers, and finished runs are not made again."""

import dataclasses
import json
import math
from pathlib import Path

import pytest

from benchmarks.algorithms import __main__ as command
from benchmarks.algorithms import fails, learns
from grpo_lab.analysis.matrix.cells import replaced
from grpo_lab.analysis.matrix.pool import Pool
from grpo_lab.analysis.matrix.results import Fate, Measurement
from grpo_lab.analysis.matrix.table import Findings
from grpo_lab.config.algorithms import algorithm_names
from grpo_lab.config.catalog import scenario, scenario_names
from grpo_lab.events import Stepped
from grpo_lab.training.trainer import train

ROOT = Path(__file__).parents[1]
TEXTS = {
    field.name: ""
    for field in dataclasses.fields(Measurement)
    if field.type is str and field.name not in ("fate", "key")
}
NUMBERS = {field.name: 1 for field in dataclasses.fields(Measurement) if field.type in (int, float, bool)}


def runs(case, column, fates, after=0.3, **more):
    """A run for each fate, from a held-out reward of 0.3."""
    found = []
    for seed, fate in enumerate(fates.split()):
        alive = fate in ("stopped", "shown", "refused")
        crash = {} if alive else {"crash": "torch.multinomial", "first_break": "old_logprobs"}
        ends = {"after": after if alive else math.nan, "shown": fate == "shown", "survived": alive, **crash}
        names = {"scenario": case, "column": column, "seed": seed, "key": f"{case} {column} {seed}", "fate": Fate(fate)}
        found.append(Measurement(**{**TEXTS, **NUMBERS, "before": 0.3, **ends, **names, **more}))
    return found


def verdicts(*tables):
    return [(each.verdict, each.measured) for each in fails.judge(Findings([run for table in tables for run in table]))]


# --- claims --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fates", "verdict", "said"),
    [
        ("crashed crashed crashed", "held", "`reinforce_plus_plus` ends in `torch.multinomial` on 3 of 3 seeds"),
        ("crashed stopped stopped", "held in part", "on 1 of 3 seeds"),
        ("stopped shown stopped", "did not hold", "on 0 of 3 seeds"),
    ],
)
def test_reinforce_repeats_a_token_if_its_runs_crash_in_multinomial(fates, verdict, said):
    case = "verl-nan-logprob"
    found, measured = verdicts(runs(case, "grpo", "crashed crashed"), runs(case, "reinforce_plus_plus", fates))[0]
    assert found == verdict and said in measured and "`grpo` on 2 of 2" in measured


def test_another_crash_gives_no_repeated_token():
    found, _ = verdicts(runs("verl-nan-logprob", "reinforce_plus_plus", "crashed", crash="torch.exp"))[0]
    assert found == "did not hold"


@pytest.mark.parametrize(("place", "name"), [(1, "gspo"), (2, "cispo")])
@pytest.mark.parametrize(
    ("one", "other", "verdict"),
    [
        ("stopped stopped", "stopped stopped", "held"),
        ("stopped stopped", "crashed crashed", "held in part"),
        ("stopped shown", "shown shown", "held in part"),
        ("shown shown", "crashed crashed", "did not hold"),
    ],
)
def test_an_algorithm_stabilises_if_it_stops_what_grpo_does_not(place, name, one, other, verdict):
    tables = [runs("train-001", "grpo", "shown shown"), runs("cuda-001", "grpo", "crashed crashed")]
    tables += [runs("train-001", name, one, after=0.6), runs("cuda-001", name, other, after=0.3)]
    found, measured = verdicts(*tables)[place]
    assert found == verdict
    assert f"`train-001`: stopped on {one.split().count('stopped')} of 2 seeds, 2 learn" in measured


def test_a_seed_on_which_grpo_does_not_fail_does_not_count():
    tables = [runs("train-001", "grpo", "stopped shown"), runs("train-001", "gspo", "stopped shown")]
    found, measured = verdicts(*tables)[1]
    assert found == "did not hold" and "stopped on 0 of 1 seeds" in measured


def test_without_runs_there_is_no_verdict():
    assert verdicts() == [("not measured yet", "")] * 3


def test_the_sentences_follow_the_table():
    tables = [
        *runs("train-001", "grpo", "shown shown"),
        *runs("train-001", "gspo", "stopped stopped", after=0.3),
        *runs("train-001", "cispo", "stopped shown", after=0.6),
        *runs("stale-rollouts", "grpo", "stopped stopped"),
    ]
    said = fails.findings(Findings(tables))
    assert said[:2] == [
        "`train-001` (`grpo`: shown, 0 of 2 learn). Stopped on every seed by `gspo`; learned on every seed by `cispo`.",
        "`grpo` does not fail in `stale-rollouts`.",
    ]
    assert all(text.endswith("**") for text in said[2:]) and len(said) == 5


# --- the scenarios and the pages -------------------------------------------------------------------------------------


def test_every_scenario_that_is_tried_exists_and_has_a_heal():
    assert set(fails.SCENARIOS) <= set(scenario_names()) and set(fails.OF_THE_RATIO) <= set(fails.SCENARIOS)
    assert all(scenario(name).heals for name in fails.SCENARIOS)


def test_every_cell_that_is_missing_is_named():
    found = fails.lacking(algorithm_names(), list(fails.SCENARIOS))
    gone = [(name, each) for name in fails.SCENARIOS for each in algorithm_names() if replaced(scenario(name), each)]
    assert gone and all(any(f"`{name}` has no cell of `{each}`" in text for text in found) for name, each in gone)
    assert (
        "`stale-rollouts`: no clip in `cispo`, `sapo`; the symptom there is without `clip_ratio/region_mean`." in found
    )
    assert len(found) == len(gone) + 1


def test_the_published_claims_are_those_of_the_published_runs():
    found = command.read(ROOT / "benchmarks" / "results" / "algorithms_fails.json")
    assert fails.section(found) in (ROOT / "docs" / "claims.md").read_text(encoding="utf-8")


def test_the_command_writes_results_and_claims_and_goes_on_after_an_end(tmp_path, monkeypatch, capsys):
    made = []

    def run(pool, cell):
        made.append(cell)
        fate = "crashed" if cell.scenario == "verl-nan-logprob" else "stopped"
        (one,) = runs(cell.scenario, cell.column, fate)
        return dataclasses.replace(one, key=cell.key, seed=cell.seed)

    monkeypatch.setattr(Pool, "run", run)
    claims = tmp_path / "claims.md"
    claims.write_text(f"before\n\n{fails.BEGIN}\nold\n{fails.END}\n\nafter\n")
    places = {"kept": tmp_path / "kept", "out": tmp_path / "out", "claims": claims}
    given = {"only": ["grpo", "reinforce_plus_plus"], "jobs": 1, "limit": 9.0, **places}
    command.fail(seeds=2, scenario=["verl-nan-logprob", "kl-overflow"], **given)
    assert len(made) == 2 * (3 + 2), "kl-overflow has no cell of REINFORCE++"
    text = claims.read_text()
    assert text.startswith("before\n\n") and text.endswith("\n\nafter\n") and "old" not in text.replace("old_log", "")
    assert "ends in `torch.multinomial` on 2 of 2 seeds" in text and "| held |" in text
    found = command.read(tmp_path / "out" / "algorithms_fails.json")
    assert fails.section(found) in text
    page = (tmp_path / "out" / "algorithms_fails.md").read_text()
    assert "| reinforce_plus_plus | crashed | - |" in page and "(algorithms_fails.png)" in page
    assert (tmp_path / "out" / "algorithms_fails.png").exists()
    command.fail(seeds=2, scenario=["verl-nan-logprob", "kl-overflow"], **given)
    assert len(made) == 10 and claims.read_text() == text


# --- healthy runs ----------------------------------------------------------------------------------------------------


def healthy(name, seed, rewards, seconds=0.1, updates=1):
    asked = {"algorithm": name, "seed": seed, "steps": 20, "updates": updates}
    seen = [[5 * place, reward] for place, reward in enumerate(rewards)]
    return {**asked, "key": "", "held out": seen, "seconds a step": seconds, "kl": 0.1}


def test_the_table_of_healthy_runs():
    found = learns.table(
        [
            healthy("gspo", 0, [0.3, 0.5, 0.6, 0.4], seconds=0.2),
            healthy("gspo", 1, [0.3, 0.7, 0.5, 0.5], seconds=0.1),
            healthy("gspo", 2, [0.3, 0.4, 0.5, 0.6], seconds=0.15),
            *(healthy("grpo", seed, [0.3, 0.3, 0.59, 0.5 + 0.1 * seed]) for seed in range(3)),
        ]
    )
    assert found[1:] == [
        ["grpo", "15", "2 of 3", "1.00 x", "0.6", "0.5", "0.1"],
        ["gspo", "10", "3 of 3", "1.50 x", "0.5", "0.4", "0.1"],
    ]


def test_a_goal_that_half_of_the_seeds_miss_has_no_median():
    some = [healthy("grpo", seed, [0.3, reward]) for seed, reward in enumerate((0.7, 0.5, 0.5))]
    assert learns.table(some)[1][1:3] == ["-", "1 of 3"]
    assert [learns.steps_to_goal(run) for run in some] == [5, None, None]


def test_each_number_of_updates_has_its_table():
    text = learns.page([healthy("grpo", 0, [0.3, 0.7]), healthy("grpo", 0, [0.3, 0.5], updates=4)])
    assert [line for line in text.splitlines() if line.startswith("##")] == [
        "## 20 steps, 1 update a batch, 1 seeds",
        "## 20 steps, 4 updates a batch, 1 seeds",
    ]


def test_the_held_out_reward_is_measured_in_mid_run_and_changes_nothing(monkeypatch):
    monkeypatch.setattr(learns, "HELD_OUT", 20)
    config = learns.config_for("gspo", 0, 4, 1).with_("data.num_prompts=2")
    found = learns.trained(config, every=2)
    assert [step for step, _ in found["held out"]] == [0, 2, 4]
    steps = [event.metrics["kl"] for event in train(config) if isinstance(event, Stepped)]
    assert found["kl"] == round(sum(steps) / 4, 4)


def test_a_healthy_run_is_made_once_and_again_for_another_config(tmp_path, monkeypatch, capsys):
    made = []

    def trained(config):
        made.append(config)
        return {"held out": [[0, 0.3]], "seconds a step": 0.1, "kl": 0.0}

    monkeypatch.setattr(learns, "trained", trained)
    for steps, count in ((3, 2), (3, 2), (4, 4)):
        command.learn(seeds=1, steps=steps, updates=[1], only=["grpo", "rloo"], out=tmp_path)
        assert len(made) == count
    text = (tmp_path / "algorithms_learns.md").read_text()
    assert "## 3 steps" in text and "## 4 steps" in text
    kept = json.loads((tmp_path / "algorithms_learns.json").read_text())["runs"]
    kept[0]["key"] = "of other code"
    learns.write(tmp_path / "algorithms_learns.json", {"runs": kept})
    command.learn(seeds=1, steps=3, updates=[1], only=["grpo", "rloo"], out=tmp_path)
    assert len(made) == 5 and made[-1] == made[0]


def test_ctrl_c_keeps_the_runs_that_are_finished(tmp_path, monkeypatch):
    def trained(config):
        if config.run.seed:
            raise KeyboardInterrupt
        return {"held out": [[0, 0.3]], "seconds a step": 0.1, "kl": 0.0}

    monkeypatch.setattr(learns, "trained", trained)
    with pytest.raises(command.typer.Exit) as end:
        command.learn(seeds=2, steps=3, updates=[1], only=["grpo"], out=tmp_path)
    assert end.value.exit_code == 130
    assert len(json.loads((tmp_path / "algorithms_learns.json").read_text())["runs"]) == 1
