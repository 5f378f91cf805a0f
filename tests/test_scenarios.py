"""Every scenario fails alone as its file says, survives under `stable`, heals with its cures, not with its decoys.

`make test` tries the cures of the reported ones, `make slow` all cures and decoys.
"""

import copy
import math
import re
import statistics
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import pytest
import torch

import grpo_lab as gl
from grpo_lab.config.schema import Config
from grpo_lab.core.hooks import Verdict
from grpo_lab.errors import ConfigError
from grpo_lab.events import Ended, Stepped
from grpo_lab.metrics import METRICS, of_run
from grpo_lab.models import loading
from grpo_lab.tasks.tasks import addition

NAMES = gl.scenario_names()
HERE = ("run.threads=1", "run.device=cpu")
LONG = ("truncated-sampling", "train-001")
"""Scenarios that take long: all about them is slow."""
EACH = pytest.mark.parametrize("name", NAMES)
REPORTED = ("cuda-001", "fp16-adam-epsilon")
"""Reported scenarios: `make test` tries their cures and the stable guards, which meet the others in `make slow`."""
MARGIN = 1
"""Steps that a cured run goes on after the one in which it would have failed. float16 is slow on a CPU."""
SEED = "run.seed=1"
"""Of what is run here, measured on seeds 0 to 4; on this one every scenario fails early."""


REFUSED_WHOLE = {"single-generation", "empty-micro-batch", "fp16-activations"}
"""Where every batch is NaN from end to end: all that guards can do is to refuse it."""


@dataclass
class Attempt:
    """A run and what it left: its steps, the error that ended it, and whether all weights were finite after each."""

    expect: Any
    steps: list[Stepped] = field(default_factory=list)
    healthy: list[bool] = field(default_factory=list)
    operator: str = ""
    status: str = ""

    @property
    def shown(self) -> bool:
        """Whether the failure of its scenario has happened, refused steps left out."""
        made = [step.metrics for step in self.steps if not step.refused]
        return self.expect.shown(self.operator, made)

    @property
    def harmless(self) -> bool:
        """Whether it has not happened, and nothing else either."""
        return not self.operator and all(self.healthy) and not self.shown

    def reached(self, name, value) -> bool:
        return any(step.metrics.get(name, -math.inf) >= value for step in self.steps)

    def largest(self, name) -> float:
        return max(step.metrics[name] for step in self.steps if name in step.metrics)


@lru_cache
def _base(precision, name="tiny"):
    return loading.load(name, precision)


def attempt(scenario, *overrides, guards=None, steps=None, to_the_end=False) -> Attempt:
    """Run a scenario until its failure has happened, or to the end, or for so many steps."""
    config = scenario.config(guards=guards).with_(*HERE, *overrides)
    policy, tokenizer = copy.deepcopy(_base(config.model.precision, config.model.name))
    done = Attempt(scenario.expect)
    try:
        for event in gl.train(config, (policy, tokenizer)):
            if isinstance(event, Stepped):
                done.steps.append(event)
                done.healthy.append(all(bool(weight.isfinite().all()) for weight in policy.parameters()))
                # What stays below something has to stay there to the end.
                if len(done.steps) == steps or (done.shown and not scenario.expect.below and not to_the_end):
                    break
            elif isinstance(event, Ended):
                done.status = event.status
    except Exception as error:
        done.operator = gl.classify_crash(str(error)).operator
    return done


@lru_cache
def alone(name, to_the_end=False) -> Attempt:
    return attempt(gl.scenario(name), SEED, to_the_end=to_the_end)


def fails_at(name) -> int:
    """The number of steps after which it has failed, alone. What stays below something has failed at its end."""
    run, expect = alone(name), gl.scenario(name).expect
    ends = [] if expect.crash or expect.below else range(1, len(run.steps))
    return next((end for end in ends if Attempt(expect, run.steps[:end]).shown), len(run.steps))


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in LONG else n for n in NAMES])
def test_alone_it_shows_what_its_file_expects(name):
    expect, run = gl.scenario(name).expect, alone(name)
    assert expect.crash or expect.metrics or expect.falls, "a scenario without a symptom shows nothing"
    assert run.operator == expect.crash and run.shown
    found = gl.first_break(run.steps)
    assert (found.link if found else "") == expect.first_break
    for metric, value in expect.metrics.items():
        functions = gl.scenario(name).config().data.rewards
        assert of_run(metric) in METRICS or metric in [f"rewards/{each}/mean" for each in functions]
        assert run.reached(metric, value), (metric, value)
    for metric, value in expect.falls.items():
        assert min(step.metrics[metric] for step in run.steps) <= value < run.steps[0].metrics[metric], (metric, value)


@pytest.mark.parametrize(
    "name",
    [name if name in REPORTED else pytest.param(name, marks=pytest.mark.slow) for name in NAMES],
)
def test_it_survives_under_the_stable_guards(name):
    steps = min(10, len(alone(name).steps) + 3)
    run = attempt(gl.scenario(name), guards="stable", steps=steps, to_the_end=True)
    assert run.operator == "" and len(run.steps) == steps and all(run.healthy)
    assert run.steps[-1].metrics.get("weights/nonfinite", 0) == 0
    moves = [step.metrics["weights/max_move"] for step in run.steps if step.updates]
    assert all(0 <= move < 1 for move in moves)
    assert bool(moves) == (name not in REFUSED_WHOLE)


CURES = [
    pytest.param(name, cure, id=f"{name}: {', '.join(cure)}", marks=[] if name in REPORTED else [pytest.mark.slow])
    for name in NAMES
    for cure in gl.scenario(name).cures
]


@pytest.mark.parametrize(("name", "overrides"), CURES)
def test_each_cure_stops_it(name, overrides):
    run = attempt(gl.scenario(name), SEED, *overrides, steps=fails_at(name) + MARGIN)
    assert run.harmless
    assert len(run.steps) == min(gl.scenario(name).config().run.num_steps, fails_at(name) + MARGIN)
    assert sum(step.updates for step in run.steps) > 0, "a run that never trains is not cured"


HALF_MEASURES = ("train-001", "verl-nan-logprob")
"""Scenarios that all their decoys together stop, although none does alone."""


def lots(name):
    """The decoys of a scenario in lots: no two of a lot change the same setting or guard."""
    found: list[dict[str, str]] = []
    for decoy in gl.scenario(name).decoys:
        changes = {re.findall(r"guards\.\w+|[\w.]+", override)[0]: override for override in decoy}
        lot = next((each for each in found if not changes.keys() & each.keys()), None)
        if lot is None or name in HALF_MEASURES:
            found.append(changes)
        else:
            lot |= changes
    return [tuple(lot.values()) for lot in found]


@pytest.mark.slow
@EACH
def test_no_decoy_stops_it_even_with_the_others(name):
    for overrides in lots(name):
        assert attempt(gl.scenario(name), SEED, *overrides).shown, overrides


def test_a_poisoned_model_answers_with_exclamation_marks_for_ever():
    """verl's `!!!!!!!!`: argmax of NaN logits is token 0. Sampling the same model raises."""
    case = gl.scenario("verl-nan-logprob")
    model: Any
    model, tokenizer = copy.deepcopy(_base("fp32"))
    with pytest.raises(RuntimeError, match="probability tensor"):
        list(gl.train(case.config().with_(*HERE, SEED), (model, tokenizer), addition()))
    prompt = tokenizer("17+25=", return_tensors="pt")
    arguments = {"max_new_tokens": 8, "pad_token_id": tokenizer.pad_token_id}
    answer = model.generate(**prompt, **arguments, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert tokenizer.decode(answer) == "!!!!!!!!"
    with pytest.raises(RuntimeError, match="probability tensor"):
        model.generate(**prompt, **arguments, do_sample=True)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_filtered_token_poisons_the_run_at_a_step_of_its_own_choosing(seed):
    run = attempt(gl.scenario("verl-nan-logprob"), f"run.seed={seed}")
    *healthy, breaking, _ = run.steps
    assert all(math.isfinite(step.metrics["loss"]) for step in healthy)
    assert all(math.isnan(breaking.metrics[name]) for name in ("kl", "loss", "grad_norm"))
    found = gl.first_break(run.steps)
    assert found is not None and found.operator == "log of a probability of 0" and found.step == len(healthy)


def accumulated(how, micro):
    """The gradient of one batch of 8 prompts, norm unclipped, accumulated so."""
    seen = {}

    class Probe(torch.optim.AdamW):
        def step(self, closure=None):
            seen["gradient"] = torch.cat([p.grad.flatten() for p in self.param_groups[0]["params"]])
            return super().step(closure)

    overrides = (f"loss.accumulation={how}", f"data.micro_batch_prompts={micro}", "run.num_steps=1")
    config = gl.preset("plain").with_guards({}).with_(*HERE, "data.num_prompts=8", *overrides)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.optim, "AdamW", Probe)
        list(gl.train(config, copy.deepcopy(_base("fp32")), addition()))
    return seen["gradient"]


def test_micro_batches_add_up_to_one_batch_and_overwriting_keeps_the_last():
    whole, added, overwritten = accumulated("add", 0), accumulated("add", 2), accumulated("overwrite", 2)
    assert torch.allclose(added, whole, rtol=1e-4, atol=1e-6 * float(whole.norm()))
    assert float((overwritten - whole).norm()) > 0.5 * float(whole.norm())


def test_the_hinge_falls_while_the_exact_kl_rises():
    steps = alone("kl-hinge", to_the_end=True).steps
    hinge, exact = ([step.metrics[name] for step in steps] for name in ("kl", "kl/exact"))
    later = slice(len(steps) // 2, None)
    assert max(exact[later]) > 20 * max(hinge[later]) and max(exact) > 1 > 2 * max(hinge)
    honest = attempt(gl.scenario("kl-hinge"), "loss.kl_estimator=k3", to_the_end=True).steps
    assert max(step.metrics["kl"] for step in honest) > 1


def last_half(steps, name):
    """The mean of a metric over the last half of the steps."""
    return statistics.fmean(step.metrics[name] for step in steps[len(steps) // 2 :])


def test_the_last_objective_s_gradient_is_the_only_one():
    """F = 0.032, H = 0.000 in the report. H moves a little, because F moves the weights that both share."""
    steps = alone("dual-overwrite", to_the_end=True).steps
    assert 0.02 < last_half(steps, "kl/F") < 0.06 and last_half(steps, "kl/H") < 0.0005
    assert all(step.metrics["weights/max_move"] > 0 for step in steps)
    heavier = attempt(gl.scenario("dual-overwrite"), SEED, "objectives.H.weight=10", steps=3).steps
    assert [step.metrics["kl/H"] for step in heavier] == [step.metrics["kl/H"] for step in steps[:3]]


@pytest.mark.slow
def test_a_weak_penalty_gives_the_reported_length_of_one_token_with_and_without_the_bug():
    """Then F is far from its band: its completions become one token because its reward asks for that."""
    for combination in ("overwrite", "separate"):
        weak = ("objectives.F.beta=0.02", f"loss.combination={combination}")
        steps = attempt(gl.scenario("dual-overwrite"), SEED, *weak, to_the_end=True).steps
        assert last_half(steps, "completions/mean_length/F") < 1.05 and last_half(steps, "kl/F") > 0.3


@pytest.mark.slow
def test_the_controller_of_an_objective_follows_its_hinge_away_from_its_band():
    steps = alone("dual-kl-hinge", to_the_end=True).steps
    assert steps[-1].metrics["kl/F"] == 0 and last_half(steps, "kl/exact/F") > 20 * 0.06
    assert steps[-1].metrics["beta/F"] < 0.8 * steps[0].metrics["beta/F"], "ever weaker, the farther F goes"
    right = attempt(gl.scenario("dual-kl-hinge"), SEED, "loss.kl_estimator=k3", to_the_end=True).steps
    assert right[-1].metrics["beta/F"] > 1.4 * right[0].metrics["beta/F"]
    assert last_half(right, "kl/exact/F") < last_half(steps, "kl/exact/F") / 5


def test_only_the_objective_whose_temperature_is_ignored_shows_a_gap():
    steps = alone("dual-temperature-ignored", to_the_end=True).steps
    gaps = ("sampling/sampling_logp_difference/mean/F", "sampling/sampling_logp_difference/mean/H")
    assert all(step.metrics[gaps[0]] < 0.001 < 0.3 < step.metrics[gaps[1]] for step in steps)


def test_samples_of_old_weights_know_nothing_of_the_updates():
    name, gap = "sampler-keeps-old-weights", "sampling/sampling_logp_difference/mean"
    fast = alone(name, to_the_end=True).steps[:5]
    slow = attempt(gl.scenario(name), SEED, "optimizer.learning_rate=*0.5", steps=5).steps
    assert [step.samples for step in fast] == [step.samples for step in slow]
    assert [step.metrics["reward"] for step in fast] == [step.metrics["reward"] for step in slow]
    assert fast[0].metrics[gap] < 1e-5 and fast[4].metrics[gap] > slow[4].metrics[gap] > 0.05


def test_a_text_that_is_tokenised_again_is_one_that_the_policy_did_not_write():
    name, gap = "retokenised", "sampling/sampling_logp_difference/mean"
    (text,) = attempt(gl.scenario(name), SEED, steps=1).steps
    (tokens,) = attempt(gl.scenario(name), SEED, "data.train_on=tokens", steps=1).steps
    assert text.metrics["reward"] == tokens.metrics["reward"] and text.metrics["ratio/max"] < 1.01
    assert tokens.metrics[gap] < 0.001 < 2 < text.metrics[gap]
    (of_sampler,) = attempt(gl.scenario(name), SEED, "sampling.top_p=1", steps=1).steps
    assert of_sampler.metrics["ratio/max"] > 5, "the sampler's log-probabilities belong to other tokens"


def test_the_reward_for_a_format_rises_while_right_answers_fall():
    steps = alone("format-reward", to_the_end=True).steps
    reward, right = ([step.metrics[name] for step in steps] for name in ("reward", "rewards/exact_match/mean"))
    assert statistics.fmean(reward[-10:]) > 1.2 * statistics.fmean(reward[:5])
    assert statistics.fmean(right[-10:]) < statistics.fmean(right[:5])


def test_a_corrupt_sample_spikes_one_step_while_the_reward_shows_nothing():
    steps = alone("bad-batch", to_the_end=True).steps
    norms = [step.metrics["grad_norm"] for step in steps]
    assert norms.index(max(norms)) == 5 and max(norms) > 5 * sorted(norms)[-2]
    rewards = [step.metrics["reward"] for step in steps]
    assert min(rewards) <= rewards[5] <= max(rewards)


@pytest.mark.slow
def test_train_001_explodes_while_everything_is_finite():
    run = alone("train-001", to_the_end=True)
    norms = [step.metrics["grad_norm"] for step in run.steps]
    assert max(norms) >= 50 and all(map(math.isfinite, norms)) and all(run.healthy)
    assert max(norms[:3]) < 10, "the run begins healthy"
    rewards = [step.metrics["reward"] for step in run.steps]
    assert len(rewards) == 40 and sum(rewards[:10]) > 1.3 * sum(rewards[-10:]), "and loses its reward gradually"
    assert run.largest("ratio/max") > math.exp(5)


def test_fp16_adam_epsilon_breaks_every_weight_at_a_healthy_norm():
    first = alone("fp16-adam-epsilon", to_the_end=True).steps[0]
    assert 0 < first.metrics["grad_norm"] < METRICS["grad_norm"].high
    assert first.metrics["weights/nonfinite"] > 0.99 * 834_560
    assert all(not note.broken for note in first.links if note.link not in ("weights", "moments"))


def test_cuda_001_breaks_as_told():
    """Finite loss, NaN gradient, every weight NaN, and the next sampling dies."""
    *_, breaking, last = alone("cuda-001").steps
    notes = {(note.link, note.update): note for note in breaking.links}
    update = next(note.update for note in breaking.links if note.link == "gradients" and note.broken)
    assert not notes["loss", update].broken and math.isnan(notes["gradients", update].magnitude)
    assert notes["weights", update].nonfinite == notes["weights", update].numel
    assert last.failed and [note.link for note in last.links] == ["logits", "probabilities"]


def test_clipping_spreads_one_nan_to_every_gradient():
    breaking = alone("clip-spreads-nan", to_the_end=True).steps[1]
    notes = {note.link: note for note in breaking.links}
    assert notes["gradients"].nonfinite == 1
    assert notes["clipped_gradients"].nonfinite == notes["clipped_gradients"].numel
    assert notes["weights"].nonfinite == notes["weights"].numel


def test_nan_passes_the_reported_threshold():
    *_, breaking, _ = alone("nan-passes-threshold", to_the_end=True).steps
    assert math.isnan(breaking.metrics["grad_norm"])
    acted = {action.name: action for action in breaking.actions if action.stage in ("gradients", "weights")}
    assert "skip_spikes" not in acted, "nan > 10 is False"
    assert "hold NaN or inf" in acted["check_weights"].reason and acted["check_weights"].verdict == Verdict.KEEP
    assert breaking.updates > 0


# --- configurations ------------------------------------------------------------------------------------------------


@EACH
def test_every_scenario_is_a_configuration(name):
    case = gl.scenario(name)
    alone, guarded = case.config(), case.config(guards="stable")
    assert Config.from_dict(alone.to_dict()) == alone != gl.preset("original")
    assert guarded.guards == gl.preset("stable").guards
    assert guarded.with_guards(alone.guards) == alone, "nothing but the guards differs"


def test_guards_may_be_named():
    case = gl.scenario("cuda-001")
    config = case.config(guards=("clamp_log_ratio", "clamp_kl"))
    assert config.guards == {"clamp_log_ratio": {}, "clamp_kl": {}}
    assert config.with_("guards.clamp_kl.limit=3").guards["clamp_kl"] == {"limit": 3}
    assert case.config(guards=()).guards == {}


TEXTS = 'title = "t"\nsource = "s"\nstory = "y"\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TEXTS + "[los]\nbeta = 1.0", "unknown key of scenario mine 'los'; did you mean 'loss'"),
        (
            TEXTS + '[expect]\nfirst_break = "gradient"',
            "mine.expect.first_break: unknown link 'gradient'; did you mean 'gradients'",
        ),
        (TEXTS + "[expect]\nmetrics = { grad_nrm = 1 }", "unknown metric in .expect. 'grad_nrm'; did you mean"),
        (TEXTS + '[[objectives]]\nname = "F"\n[expect]\nmetrics = { "kl/H" = 1 }', "'kl/H'; did you mean 'kl/F'"),
        (TEXTS + "cures = [['loss.bta=1']]", "'bta'; did you mean 'beta'"),
        ('title = "t"\nsource = "s"\n', "story is missing"),
    ],
)
def test_a_mistake_in_a_file_shows_when_it_is_read(tmp_path, text, message):
    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        gl.scenario(str(tmp_path / "mine.toml"))


def test_an_instructors_own_file_is_a_scenario(tmp_path):
    lines = (
        f"{TEXTS}cures = [['guards.skip_nonfinite=on']]\n[data]\nnum_prompts = 2\n[faults.nan_gradient]\nat_step = 0\n"
    )
    (tmp_path / "mine.toml").write_text(lines + '[expect]\ncrash = "torch.multinomial"\nfirst_break = "gradients"\n')
    case = gl.scenario(str(tmp_path / "mine.toml"))
    assert case.name == case.config().run.name == "mine" and case.cures == (("guards.skip_nonfinite=on",),)
    assert attempt(case).shown
    assert attempt(case, *case.cures[0], steps=3).harmless
