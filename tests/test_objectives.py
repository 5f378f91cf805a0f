"""Several objectives in one run: settings, metrics, ways of combination, and a beta for each."""

import copy
import json
import math
import re
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import tensor

import grpo_lab as gl
from grpo_lab.algorithm.combinations import (
    Scores,
    normalize_then_sum,
    project_conflicting,
    sum_then_normalize,
)
from grpo_lab.analysis.run_state import fold
from grpo_lab.config.schema import Config
from grpo_lab.core.advantages import group_advantages
from grpo_lab.errors import ConfigError
from grpo_lab.events import Evaluated, Stepped, from_json, to_json
from grpo_lab.metrics import METRICS, OF_THE_MACHINE, metric
from grpo_lab.runs.session import Session
from grpo_lab.runs.summary import summary
from grpo_lab.training.guards import GUARDS
from grpo_lab.training.interventions import ObjectiveCoefficients
from grpo_lab.training.objectives import resolve
from grpo_lab.training.trainer import train
from grpo_lab.ui import html

TWO = [
    {"name": "F", "tasks": "fairness", "kl_low": 0.02, "kl_high": 0.06},
    {"name": "H", "tasks": "hallucination", "sampling": {"max_completion_length": 3}},
]
SMALL = gl.preset("plain").with_(
    "run.threads=1",
    "run.num_steps=2",
    "run.seed=1",
    "data.num_prompts=4",
    "data.num_generations=6",
    "guards.clip_gradients=off",
)
DUAL = SMALL.merged({"objectives": TWO})


@pytest.fixture
def steps(tiny):
    """Train a copy of the tiny model; its steps."""

    def run(config, **given):
        policy, tokenizer = copy.deepcopy(tiny[0]), tiny[1]
        return [e for e in train(config, (policy, tokenizer), **given) if isinstance(e, Stepped)]

    return run


def numbers(step):
    return {name: value for name, value in step.metrics.items() if name not in OF_THE_MACHINE}


# --- the config ----------------------------------------------------------------------------------------------------


def test_objectives_survive_json_and_inherit_what_they_do_not_set():
    assert Config.from_dict(json.loads(json.dumps(DUAL.to_dict()))) == DUAL
    first, second = resolve(DUAL.with_("loss.beta=0.3", "objectives.H.beta=0.1", "sampling.temperature=0.7"))
    assert (first.beta, second.beta, first.band, second.band) == (0.3, 0.1, (0.02, 0.06), None)
    assert (first.sampling.max_completion_length, second.sampling.max_completion_length) == (8, 3)
    assert first.sampling.temperature == second.sampling.temperature == 0.7
    assert [objective.tasks for objective in (first, second)] == ["fairness", "hallucination"]


def test_overrides_and_merged_tables_reach_one_objective():
    changed = DUAL.with_("objectives.F.weight=2", "objectives.H.sampling.top_k=5", "objectives.F.weight=*3")
    assert [objective.weight for objective in changed.objectives] == [6.0, 1.0]
    assert dict(changed.objectives[1].sampling) == {"max_completion_length": 3, "top_k": 5}
    merged = changed.merged({"objectives": [{"name": "H", "sampling": {"top_p": 0.5}}, {"name": "G"}]})
    assert [objective.name for objective in merged.objectives] == ["F", "H", "G"]
    assert dict(merged.objectives[1].sampling) == {"max_completion_length": 3, "top_k": 5, "top_p": 0.5}
    assert [objective.name for objective in merged.with_("objectives.H=off").objectives] == ["F", "G"]
    assert dict(DUAL.objectives[1].sampling) == {"max_completion_length": 3}  # the first one is as it was


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("objectives.F.wieght=1", r"'wieght'; did you mean 'weight'"),
        ("objectives.F.kl_low=0.5", r"kl_low = 0.5, kl_high = 0.06: give both, the lower one first"),
        ("objectives.H.sampling.temp=1", r"^objectives.H.sampling: unknown setting 'temp'; did you mean 'temperature'"),
        ("objectives.F.name=G", r"objectives.F.name=G.*an objective keeps its name"),
        ("objectives.F.num_prompts=0", r"F.num_prompts = 0 .* sum_then_normalize or normalize_then_sum"),
    ],
)
def test_a_mistake_in_an_objective_is_named(override, says):
    with pytest.raises(ConfigError, match=says):
        Session(DUAL.with_(override))


@pytest.mark.parametrize(
    ("objectives", "says"),
    [
        ([{"name": "F", "weight": 0}, {"name": "H", "weight": 0}], "weights of F, H are all 0"),
        ([{"name": "F"}, {"name": "F"}], "name = 'F': each needs a name of its own"),
        ([{"name": "exact"}], "kl/exact is a metric of the run already"),
    ],
)
def test_a_list_of_objectives_that_teaches_nothing_is_refused(objectives, says):
    with pytest.raises(ConfigError, match=says):
        Session(SMALL.merged({"objectives": objectives}))


def test_weights_and_bands_may_change_while_a_model_trains_and_prompts_may_not(steps):
    changes = {1: ("objectives.H.weight=0", "objectives.F.beta=0.5")}
    changed = steps(DUAL, controls=lambda index: changes.get(index, ()))
    assert (changed[0].metrics["beta/F"], changed[1].metrics["beta/F"]) == (0.02, 0.5)
    assert changed[1].metrics["loss/H"] == 0.0 != changed[0].metrics["loss/H"]
    for override in ("objectives.F.tasks=addition", "objectives.F=off", "objectives.F.num_prompts=5"):
        with pytest.raises(ConfigError, match="are fixed once a run has started"):
            steps(DUAL, controls=lambda index, override=override: (override,))


def test_the_preset_dual_holds_two_objectives_in_two_stages(tiny):
    short = (
        "run.num_steps=2",
        "run.threads=1",
        "run.num_eval=4",
        "sft.num_steps=2",
        "sft.batch_size=4",
        "objectives.F.num_prompts=2",
        "objectives.H.num_prompts=2",
    )
    config = gl.preset("dual").with_(*short)
    assert [(o.name, o.kl_low, o.kl_high) for o in config.objectives] == [("F", 0.02, 0.06), ("H", 0.08, 0.15)]
    events = list(train(config, copy.deepcopy(tiny)))
    found = [event.metrics for event in events if isinstance(event, Stepped)]
    assert ["sft/accuracy" in one for one in found] == [True, True, False, False]
    assert found[2]["kl/F"] == pytest.approx(0, abs=1e-6) and found[3]["kl/H"] > 0
    assert [event.step for event in events if isinstance(event, Evaluated)] == [0, 2, 4]


# --- one objective is a list of one --------------------------------------------------------------------------------


def test_a_list_of_one_is_bit_identical_to_no_list(steps):
    overrides = ("loss.num_iterations=2", "data.micro_batch_prompts=2", "run.exact_kl=on")
    without, listed = (
        steps(SMALL.with_(*overrides)),
        steps(SMALL.merged({"objectives": [{"name": "F"}]}).with_(*overrides)),
    )
    for mine, other in zip(without, listed, strict=True):
        assert numbers(mine).items() <= numbers(other).items()
        assert {"kl/F", "reward/F", "clip_ratio/F", "completions/mean_length/F"} <= other.metrics.keys()
        assert [(n.link, n.magnitude) for n in mine.links] == [(n.link, n.magnitude) for n in other.links]


# --- metrics -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def told(tiny):
    """The events of a step of two objectives, with evaluations."""
    return list(train(DUAL.with_("run.num_eval=5", "run.num_steps=1"), copy.deepcopy(tiny)))


def test_every_metric_of_a_part_exists_for_each_objective(told):
    (step,) = (event for event in told if isinstance(event, Stepped))
    of_each = {name.removesuffix("/F") for name in step.metrics if name.endswith("/F")}
    assert of_each == {name.removesuffix("/H") for name in step.metrics if name.endswith("/H")}
    assert {"reward", "kl", "entropy", "loss", "num_tokens", "completions/mean_length", "clip_ratio", "beta"} <= of_each
    found = step.metrics
    assert found["reward"] == pytest.approx((found["reward/F"] + found["reward/H"]) / 2)
    assert found["num_tokens"] == found["num_tokens/F"] + found["num_tokens/H"]
    assert found["loss"] == pytest.approx(found["loss/F"] + found["loss/H"])
    assert found["completions/mean_length/H"] <= 3
    assert {name for name in found if not name.endswith(("/F", "/H"))} <= METRICS.keys()
    assert {metric(name).label for name in found if name.endswith("/F")} >= {"KL to reference, F", "clipped, F"}
    assert all(note.where.startswith(("F", "H")) for note in step.links if note.link in ("logits", "ratio", "rewards"))


def test_the_panels_table_has_a_column_for_each_objective(told):
    heading = re.findall("<th[^>]*>([^<]*)</th>", html.numbers(fold(told)))
    kl = heading.index("KL to reference")
    assert heading[kl + 1 : kl + 3] == ["KL to reference, F", "KL to reference, H"]
    assert "reward, H" in heading and "gradient norm, F" not in heading


def test_an_evaluation_tells_the_reward_of_each_objective(told):
    first, last = (event for event in told if isinstance(event, Evaluated))
    assert first.objectives.keys() == last.objectives.keys() == {"F", "H"}
    assert first.reward == pytest.approx(sum(first.objectives.values()) / 2) and first.num_problems == 10
    assert from_json(to_json(first)) == first
    rewards = [f"held-out reward of {name}: {first.objectives[name]:.3f}, {last.objectives[name]:.3f}" for name in "FH"]
    assert "\n".join(rewards) in summary(told)


# --- ways of combination -------------------------------------------------------------------------------------------


def test_separate_losses_give_the_sum_of_the_gradients(steps):
    """|F + H|^2 = |F|^2 + |H|^2 + 2 cos |F| |H|, where each norm is that of a run whose other weight is 0."""
    one = DUAL.with_("run.num_steps=1")
    both, first, second = (
        steps(one.with_(*o))[0].metrics for o in ((), ("objectives.H.weight=0",), ("objectives.F.weight=0",))
    )
    assert (first["loss/H"], second["loss/F"]) == (0.0, 0.0) and both["loss"] == pytest.approx(
        first["loss"] + second["loss"]
    )
    product = 2 * both["gradients/cosine"] * first["grad_norm"] * second["grad_norm"]
    squares = first["grad_norm"] ** 2 + second["grad_norm"] ** 2 + product
    assert both["grad_norm"] ** 2 == pytest.approx(squares, rel=1e-4) and abs(both["gradients/cosine"]) > 1e-4
    doubled = steps(one.with_("objectives.H.weight=0", "objectives.F.weight=2"))[0].metrics
    assert doubled["grad_norm"] == pytest.approx(2 * first["grad_norm"])


def test_alternating_objectives_take_turns(steps):
    found = [step.metrics for step in steps(DUAL.with_("loss.combination=alternate", "run.num_steps=3"))]
    assert [["reward/F" in one, "reward/H" in one] for one in found] == [[True, False], [False, True], [True, False]]
    assert not any("gradients/cosine" in one for one in found)


def test_an_objective_without_prompts_scores_the_completions_of_the_others(steps, tmp_path):
    (tmp_path / "mine.py").write_text(
        "def brief(prompts, completions, **columns):\n    return [-float(len(text)) for text in completions]\n"
    )
    objectives = [TWO[0], {"name": "brief", "num_prompts": 0, "rewards": [f"{tmp_path}/mine.py:brief"]}]
    config = SMALL.merged({"objectives": objectives}).with_("run.num_steps=1")
    summed = steps(config.with_("loss.combination=sum_then_normalize"))[0].metrics
    decoupled = steps(config.with_("loss.combination=normalize_then_sum"))[0].metrics
    assert summed["reward/brief"] < 0 and "kl/brief" not in summed
    assert summed["num_tokens"] == summed["num_tokens/F"] and summed["grad_norm"] != decoupled["grad_norm"]


def test_a_function_that_lacks_a_column_of_another_task_leaves_its_completions_out(steps, tmp_path):
    (tmp_path / "other.jsonl").write_text("".join(f'{{"prompt": "{n}+1=", "colour": "red"}}\n' for n in range(9)))
    objectives = [TWO[0], {"name": "other", "tasks": f"{tmp_path}/other.jsonl", "rewards": [f"{tmp_path}/m.py:three"]}]
    (tmp_path / "m.py").write_text(
        "def three(prompts, completions, colour, **_):\n    return [c and 3.0 for c in colour]\n"
    )
    config, pooled = SMALL.merged({"objectives": objectives}), ("loss.combination=sum_then_normalize",)
    found = steps(config, controls=lambda index: pooled if index else ())[1].metrics  # switched while it trains
    assert found["reward/other"] == 3.0 and 0 <= found["reward/F"] <= 1 and found["num_tokens/other"] > 0


YES = torch.ones(1, 4, dtype=torch.bool)


def test_sums_are_normalised_after_or_before():
    scores = [Scores(tensor([[0.0, 0.0, 1.0, 1.0]]), YES, 2.0), Scores(tensor([[0.0, 9.0, 0.0, 9.0]]), YES, 1.0)]
    after = sum_then_normalize(scores, group_advantages)
    assert torch.equal(after, group_advantages(tensor([[0.0, 9.0, 2.0, 11.0]])))
    before = normalize_then_sum(scores, group_advantages)
    assert before[0].tolist() == pytest.approx([-1.1618, -0.3873, 0.3873, 1.1618], abs=1e-3)


def test_pcgrad_removes_what_points_against_the_other_and_nothing_else():
    """By hand: g1 = (1, 0), g2 = (-1, 1); g1 . g2 = -1; g1' = g1 + g2 / 2, g2' = g2 + g1."""
    against = [[tensor([1.0]), tensor([0.0])], [tensor([-1.0]), tensor([1.0])]]
    assert project_conflicting(against) == [tensor([0.5]), tensor([1.5])]
    agreeing = [[tensor([1.0, 0.0])], [tensor([1.0, 1.0])]]
    assert torch.equal(project_conflicting(agreeing)[0], tensor([2.0, 1.0]))  # type: ignore[arg-type]
    assert project_conflicting(agreeing[:1]) == agreeing[0]
    broken = project_conflicting([[tensor([math.nan, 0.0])], [tensor([1.0, 1.0])]])[0]
    assert broken is not None and broken.isnan().any()


# --- a beta for each objective -------------------------------------------------------------------------------------

USE = ObjectiveCoefficients(
    3e-4, 0.02, 0.2, None, 1e-8, betas={"F": 0.1, "H": 0.2}, kl_bands={"F": (0.02, 0.08), "H": (0.08, 0.2)}
)


def adaptive_beta(**settings: Any) -> Any:
    return GUARDS["adaptive_beta"](**settings)


def after(**metrics: float) -> Any:
    """A step, as far as the controller reads it, after one with these metrics: `kl_F` is kl/F."""
    return SimpleNamespace(last_metrics={name.replace("_", "/"): value for name, value in metrics.items()})


def test_each_beta_follows_the_kl_of_its_objective():
    guard = adaptive_beta(gain=0.5)
    kept = guard(USE, after(kl_F=0.04, kl_H=(0.08 * 0.2) ** 0.5))  # the geometric middles
    assert kept.value.betas == USE.betas and not kept.reason
    moved = guard(USE, after(kl_F=1.0, kl_H=0.0, kl=0.5))
    assert moved.value.betas == pytest.approx({"F": 0.11, "H": 0.18})
    assert "F: beta 0.11 = 0.1 x 1.1: KL 1, target 0.04; H: beta 0.18" in moved.reason
    broken = guard(USE, after(kl_F=math.nan, kl_H=1.0))
    assert broken.value.betas == pytest.approx({"F": 0.11, "H": 0.198}) and "F: KL nan is not finite" in broken.reason
    absent = guard(USE, after(kl_H=1.0))  # a step of the other objective alone
    assert absent.value.betas["F"] == pytest.approx(0.11)


def test_the_proportional_part_answers_at_once_and_is_forgotten():
    """A KL of twice its target: a power of 2 makes beta 4 times as large, on top of the slow 2 %; then it is gone."""
    guard = adaptive_beta(proportional=2)
    assert guard(USE, after(kl_F=0.08, kl_H=0.126)).value.betas["F"] == pytest.approx(0.1 * 1.02 * 4)
    assert guard(USE, after(kl_F=0.04, kl_H=0.126)).value.betas["F"] == pytest.approx(0.1 * 1.02)
    assert guard(USE, after(kl_F=1e9, kl_H=0.126)).value.betas["F"] == 1.0  # the highest


def test_the_mean_kl_is_deaf_to_one_objective():
    """F is far below its band and H far above; their mean is the target, so that nothing moves."""
    metrics = after(kl_F=0.001, kl_H=0.199, kl=0.1)
    assert adaptive_beta(by_objective=False)(USE, metrics).value.betas == USE.betas
    heard = adaptive_beta()(USE, metrics).value.betas
    assert heard["F"] < USE.betas["F"] and heard["H"] > USE.betas["H"]


def test_betas_of_a_run_move_apart(steps):
    found = steps(DUAL.with_("run.num_steps=4", "guards.adaptive_beta.gain=1", "objectives.F.kl_high=0.021"))
    ends = [(step.metrics["beta/F"], step.metrics["beta/H"]) for step in found]
    assert ends[0] == (0.02, 0.02) and len({*ends}) == 4
    assert all(step.metrics["beta"] == pytest.approx(sum(end) / 2) for step, end in zip(found, ends, strict=True))
    for (before, after), step in zip(pairwise(end[0] for end in ends), found, strict=False):
        assert (after > before) == (step.metrics["kl/F"] > (0.02 * 0.021) ** 0.5)


def test_one_nan_in_the_kl_of_f_refuses_one_step_and_leaves_both_betas_finite(steps, tmp_path):
    (tmp_path / "mine.py").write_text(
        "import torch\ncalls = []\ndef broken(delta):\n    calls.append(1)\n    kl = torch.expm1(delta) - delta\n"
        "    return kl * float('nan') if len(calls) == 3 else kl\n"  # the third: F in the second step
    )
    guards = ("guards.adaptive_beta=on", "guards.skip_nonfinite=on")
    found = steps(DUAL.with_("run.num_steps=5", *guards, f"loss.kl_estimator={tmp_path / 'mine.py'}:broken"))
    assert [step.refused for step in found] == [False, True, False, False, False]
    assert all(math.isfinite(step.metrics[f"beta/{name}"]) for step in found for name in "FH")


# --- the command line ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("option", "setting"), [("--data", "tasks"), ("--reward", "rewards")])
def test_an_option_that_no_objective_uses_is_refused(call, tmp_path, option, setting):
    code, out, err = call("train", "--preset", "dual", option, "mine", "--out", tmp_path / "out")
    assert (code, out) == (2, "") and not (tmp_path / "out").exists()
    assert f"{option}: every objective has {setting} of its own" in err and f"objectives.F.{setting}=" in err
