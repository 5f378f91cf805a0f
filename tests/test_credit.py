"""Advantages of tokens, dynamic sampling and rewards that depend on length or KL."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, tensor

from grpo_lab.algorithm import advantages as credit
from grpo_lab.algorithm.losses import highest
from grpo_lab.config.schema import Config
from grpo_lab.core.batch import Batch
from grpo_lab.core.hooks import Stage, Verdict
from grpo_lab.core.train import Trainer
from grpo_lab.errors import ConfigError
from grpo_lab.training.interventions import Intervention, Outcome, Step
from grpo_lab.training.state import Training
from tests.steps import steps_of as steps


@pytest.mark.parametrize(
    ("penalties", "expected"),
    [
        # Rewards to go, gamma 1/2: 1/2 1 and 0; mean 1/2, std 1/2.
        (None, [[0.0, 1.0], [-1.0, 0.0]]),
        # Of tokens, rewards -0.2 and -0.4 + 1, and 0; to go 0.1 0.6 and 0; mean 7/30, std sqrt(0.31/3).
        ([[0.2, 0.4], [0.0, math.nan]], [[-0.41478, 1.14065], [-0.72587, 0.0]]),
    ],
    ids=["rewards alone", "with penalties"],
)
def test_advantages_of_tokens_are_those_by_hand(penalties, expected):
    ids, blank = torch.zeros(1, 1, dtype=torch.long), torch.zeros(2, 2)
    mask, paid = tensor([[True, True], [True, False]]), None if penalties is None else tensor(penalties)
    rewards = tensor([1.0, 0.0]) - (0.0 if paid is None else paid.nansum(dim=1))
    rows, tokens = torch.zeros(2, dtype=torch.long), torch.zeros(2, 2, dtype=torch.long)
    batch = Batch(ids, ids, rows, tokens, mask, blank, blank, advantages=rewards, penalties=paid)
    found = credit.reward_to_go(batch, 0.5).advantages
    assert found is not None
    torch.testing.assert_close(found, tensor(expected), rtol=1e-4, atol=1e-4)


def small(*overrides: str) -> Config:
    sizes = ("data.num_prompts=6", "data.num_generations=4", "run.num_steps=2", "run.num_eval=8")
    return Config().with_(*sizes, *overrides)


@pytest.mark.parametrize("setting", ["dynamic_sampling=2", "kl_place=reward"])
def test_pooled_rewards_refuse_what_needs_those_of_one_objective(setting):
    config = small(f"loss.{setting}", "loss.combination=normalize_then_sum")
    with pytest.raises(ConfigError, match=r"loss\.combination=separate"):
        steps(config.merged({"objectives": [{"name": "F"}, {"name": "H"}]}))


def length_or_luck(completions, **columns):
    """1 for one completion in four, 0 for others: some groups have spread."""
    return [float(sum(map(ord, text)) % 4 == 0) for text in completions]


def test_only_groups_with_spread_are_trained():
    seen: list[Tensor] = []

    class Watch(Intervention):
        name, stage = "watch", Stage.ADVANTAGES

        def __call__(self, value: Tensor, step: Step) -> Outcome:
            seen.append(value)
            return Outcome(value)

    config = small("loss.dynamic_sampling=8")
    training = Training(config, rewards=[length_or_luck])
    training.interventions = {**training.interventions, Watch.stage: [("guard", Watch())]}
    training.begin_stage("grpo")
    trainer = training.trainer
    assert isinstance(trainer, Trainer)
    for index in range(2):
        ctx = training.begin(index)
        batch, rewards = trainer.score(ctx, *trainer.rollout(ctx))
        assert rewards.shape == (6, 4) and len(batch.prompt_ids) == 6 and len(batch.group) == 24
        assert (rewards.amax(dim=1) > rewards.amin(dim=1)).all()
        assert batch.group.tolist() == [g for g in range(6) for _ in range(4)]
        ctx.apply(Watch.stage, trainer.advantages(ctx, rewards))
    assert all(bool(value.abs().sum(dim=1).all()) for value in seen) and len(seen) == 2


def test_a_run_without_any_spread_says_so_and_goes_on():
    config = small("loss.dynamic_sampling=3", "run.num_steps=2")
    found = steps(config, rewards=[lambda completions, **columns: [1.0] * len(completions)])
    assert [step.verdict for step in found] == [Verdict.SKIP_STEP] * 2
    (action,) = found[0].actions
    assert action.name == "dynamic_sampling"
    assert action.reason == "0 of 6 groups have spread after 4 draws of 24 completions"
    assert found[0].metrics["dynamic_sampling/draws"] == 3


def test_long_completions_lose_reward():
    assert credit.soft_overlong(tensor([0, 6, 7, 8]), 8, 0.25).tolist() == [0.0, 0.0, -0.5, -1.0]
    constant = [lambda completions, **columns: [1.0] * len(completions)]
    (plain,) = steps(small("run.num_steps=1"), rewards=constant)
    (found,) = steps(small("run.num_steps=1", "loss.soft_overlong=1"), rewards=constant)
    (mean,) = {plain.metrics["reward"]}
    assert mean == 1.0 and found.metrics["reward"] == pytest.approx(1 - found.metrics["completions/mean_length"] / 8)


def by_place(completions, **columns):
    """0, 1, 2, 0, 1, ... whatever the completions are."""
    return [place % 3.0 for place in range(len(completions))]


@pytest.mark.parametrize("name", ["rloo", "reinforce_plus_plus"])
def test_the_kl_is_paid_by_the_reward_and_not_again_in_the_loss(name):
    config = small("loss.beta=0.5").with_algorithm(name)
    training = Training(config, rewards=[by_place])
    training.begin_stage("grpo")
    trainer = training.trainer
    assert isinstance(trainer, Trainer)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in training.policy.parameters():
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=generator))
    ctx = training.begin(0)
    batch, paid = trainer.score(ctx, *trainer.rollout(ctx))
    mask = batch.completion_mask
    assert batch.old_logprobs is not None and batch.ref_logprobs is not None and batch.penalties is not None
    delta = torch.where(mask, batch.old_logprobs - batch.ref_logprobs, 0.0)
    torch.testing.assert_close(batch.penalties, 0.5 * delta)
    scored = torch.arange(24.0).remainder(3).view(6, 4)
    torch.testing.assert_close(paid, scored - 0.5 * delta.sum(dim=1).view(6, 4))
    others = (paid.sum(dim=1, keepdim=True) - paid) / 3
    advantages = trainer.advantages(ctx, paid)
    torch.testing.assert_close(advantages, paid - others if name == "rloo" else paid)
    weighed = trainer.weigh(ctx, trainer.with_logprobs(ctx, batch, advantages))
    with_kl = trainer.loss(ctx, weighed)
    assert ctx.coefficients is not None
    ctx.coefficients = replace(ctx.coefficients, beta=50.0)
    torch.testing.assert_close(trainer.loss(ctx, weighed).loss, with_kl.loss)
    assert with_kl.metrics["kl"] > 0


def test_a_subtracted_kl_lowers_the_loss_by_what_the_penalty_adds():
    """KL and its gradient are 0 in the first step, so that the second one has the same batch and the same KL."""
    settings = [small("loss.beta=1", f"loss.kl_place={place}") for place in ("loss", "subtracted")]
    right, wrong = (steps(config)[1].metrics for config in settings)
    assert right["kl"] > 1e-4 and wrong["kl"] == pytest.approx(right["kl"], rel=1e-3)
    assert right["loss"] - wrong["loss"] == pytest.approx(2 * right["kl"], rel=1e-3)
    assert wrong["beta"] == 1, "adaptive_beta and the log see the weight that is set"


def test_only_forks_are_trained():
    entropy, mask = torch.rand(6, 9, generator=torch.Generator().manual_seed(0)), torch.ones(6, 9).bool()
    mask[0] = False
    chosen = highest(entropy, mask, 0.2)
    assert chosen.sum() == 9 and not chosen[0].any()
    assert entropy[chosen].min() >= entropy[mask & ~chosen].max()
    losses = [steps(small("run.num_steps=1", f"loss.top_entropy_quantile={share}"))[0] for share in (1.0, 0.2)]
    assert losses[0].metrics["grad_norm"] != losses[1].metrics["grad_norm"]


@pytest.mark.trl
def test_the_penalty_for_length_is_that_of_trl():
    of_trl = pytest.importorskip("trl.rewards").get_soft_overlong_punishment(
        max_completion_len=100, soft_punish_cache=20
    )
    lengths = [1, 79, 80, 81, 90, 99, 100]
    expected = of_trl([[0] * length for length in lengths])
    torch.testing.assert_close(credit.soft_overlong(tensor(lengths), 100, 0.2), tensor(expected))
