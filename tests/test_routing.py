"""Experts are noted while completions are sampled, and replayed in every pass over them, whatever its layout."""

import copy
from functools import lru_cache

import pytest
import torch
import transformers

import grpo_lab as gl
from grpo_lab.errors import ConfigError
from grpo_lab.events import Stepped
from grpo_lab.models import loading
from grpo_lab.runs.session import Session
from grpo_lab.training import routing
from grpo_lab.training.faults import FAULTS
from tests.steps import step_of, stopping

GAP = "sampling/sampling_logp_difference/max"
NOISE = ("run.threads=1", "run.device=cpu", "data.num_prompts=3", "data.num_generations=4", "run.num_steps=2")
NOISE += ("faults.router_noise.scale=3", "model.name=tiny-moe")


@lru_cache
def base():
    return loading.load("tiny-moe")


def run(*overrides):
    policy, tokenizer = copy.deepcopy(base())
    config = gl.preset("plain").with_(*NOISE, *overrides)
    events = list(gl.train(config, (policy, tokenizer)))
    return policy, [event.metrics for event in events if isinstance(event, Stepped)]


WAYS = {
    "a prompt once": (),
    "a prompt for each completion": ("model.prompt_pass=plain",),
    "micro-batches": ("data.micro_batch_prompts=1", "loss.num_iterations=2"),
    "streams": ("run.streams=3",),
    "further draws": ("loss.dynamic_sampling=2",),
    "a bonus for entropy": ("loss.entropy_coef=0.01",),
}


@pytest.mark.parametrize("way", WAYS)
def test_with_replay_the_trainer_has_the_log_probabilities_of_the_sampler(way):
    _, replayed = run("model.routing=replay", *WAYS[way])
    assert len(replayed) == 2 and all(0 < step[GAP] < 1e-4 for step in replayed)
    assert all(abs(step["ratio/max"] - 1) < 1e-4 for step in replayed) or way == "micro-batches"


def test_without_it_noise_opens_a_gap_in_sampling_alone():
    policy, steps = run()
    assert all(step[GAP] > 0.5 and step["ratio/max"] == 1 for step in steps), "old and current passes choose alike"
    assert not any(module._forward_hooks for module in policy.modules() if type(module).__name__ in routing.ROUTERS)
    _, quiet = run("faults.router_noise.scale=1e-9")
    assert all(step[GAP] < 1e-4 for step in quiet), "without noise both choose alike"


def test_the_router_learns_from_replayed_choices():
    before = {name: weight.clone() for name, weight in base()[0].named_parameters() if name.endswith("gate.weight")}
    after = dict(run("model.routing=replay")[0].named_parameters())
    assert len(before) == 3 and all(not torch.equal(weight, after[name]) for name, weight in before.items())


SIZES = {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "head_dim": 8}
SIZES |= {"num_key_value_heads": 2, "intermediate_size": 16, "moe_intermediate_size": 16, "num_experts_per_tok": 2}
SIZES |= {"num_experts": 4, "num_local_experts": 4, "shared_expert_intermediate_size": 16, "pad_token_id": 0}
SIZES |= {"bos_token_id": 1, "eos_token_id": 2}


@pytest.mark.parametrize("kind", ["mixtral", "olmoe", "qwen2_moe", "qwen3_moe"])
@pytest.mark.parametrize("norm", [True, False])
@torch.no_grad()
def test_experts_weigh_what_the_router_gives_them(kind, norm):
    config = transformers.AutoConfig.for_model(kind, **SIZES, norm_topk_prob=norm)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    ids, seen = torch.arange(12).view(2, 6), []
    for weight in model.parameters():
        weight.normal_(std=0.3)
    with routing.choosing(model, lambda number, scores, own: seen.append(number) or own):
        same = model(ids, use_cache=False).logits
    assert seen == [0, 1] and torch.allclose(same, model(ids, use_cache=False).logits, atol=1e-5)
    with routing.choosing(model, lambda number, scores, own: (-scores).topk(2).indices):
        other = model(ids, use_cache=False).logits
    assert not torch.allclose(same, other, atol=1e-2)


@pytest.mark.parametrize("override", ["model.routing=replay", "faults.router_noise=on"])
def test_a_model_without_experts_is_refused(override):
    config = gl.preset("plain").with_("run.device=cpu", "data.num_prompts=2", "run.num_steps=1", override)
    with pytest.raises(ConfigError, match=r"gpt2 .*set model.name=tiny-moe"):
        list(gl.train(config))


def test_noise_chooses_other_experts_the_same_for_a_seed_and_step():
    step, scores = step_of(gl.Config()), torch.zeros(64, 8)
    own = scores.topk(2).indices
    drawn = [FAULTS["router_noise"]()(step.sampling, step).replace["experts"](0, scores, own) for _ in range(2)]
    assert torch.equal(*drawn) and drawn[0].shape == own.shape and not torch.equal(drawn[0], own)
    assert (drawn[0][:, 0] != drawn[0][:, 1]).all() and drawn[0].unique().tolist() == [*range(8)]


def test_replayed_experts_survive_a_checkpoint(tmp_path):
    """A fault that keeps batches keeps their experts, too."""
    config = gl.preset("plain").with_(*NOISE, "model.routing=replay", "faults.stale_batch.lag=1", "run.num_steps=3")
    config = config.with_("run.checkpoint_minutes=0")
    whole = Session(config, tmp_path / "whole", child=False).run()
    cut = stopping(Session(config, tmp_path / "cut", child=False), 2)
    assert cut.run().status == "stopped"
    rest = Session.resume(tmp_path / "cut", child=False).run()
    one, other = ([each for each in run.events if isinstance(each, Stepped)][-1].metrics for run in (whole, rest))
    assert all(one[name] == other[name] for name in ("loss", "grad_norm", GAP))
