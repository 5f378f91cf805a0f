"""Algorithms by name: their loss is TRL's, in value and gradient; how a config takes one up; bad input.

TRL's loss is computed by the trainers' own `_compute_loss`, on log-probabilities that the test chooses. Ours is
computed as in a step: from the config, through `micro_batch_loss`.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical

import grpo_lab as gl
from grpo_lab.config.algorithms import algorithm, algorithm_names
from grpo_lab.config.catalog import preset, scenario
from grpo_lab.config.schema import Config
from grpo_lab.core.batch import Batch
from grpo_lab.core.loss import LossInputs, grpo_loss, token_weights
from grpo_lab.errors import ConfigError
from grpo_lab.events import Stepped
from grpo_lab.training import trainer
from grpo_lab.training.interventions import Coefficients
from grpo_lab.training.objectives import resolve
from grpo_lab.training.policy_loss import entropy_bonus, has_forks, surrogate, with_forks
from grpo_lab.training.registry import Formulas, chosen_formulas
from tests.steps import step_of

ROWS, WIDTH, LONGEST = 8, 6, 10


@dataclass
class Given:
    """Log-probabilities (8, 6) of a policy and of those that it is compared with, a mask, and advantages (8,)."""

    logprobs: Tensor
    old: Tensor
    ref: Tensor
    sampler: Tensor
    mask: Tensor
    advantages: Tensor
    logits: Tensor | None = None
    """(8, 6, 5), of which log-probabilities and entropies are made, in place of `logprobs`."""


def given(seed: int, spread: float = 0.5) -> Given:
    generator = torch.Generator().manual_seed(seed)
    moves = torch.randn(4, ROWS, WIDTH, generator=generator)
    logprobs = -moves[0].abs() - 0.2
    lengths = torch.tensor([6, 5, 4, 3, 2, 1, 6, 3])
    old, ref, sampler = (logprobs + spread * move for move in moves[1:])
    mask = torch.arange(WIDTH) < lengths[:, None]
    return Given(logprobs, old, ref, sampler, mask, torch.randn(ROWS, generator=generator))


def config_of(name: str, *overrides: str) -> Config:
    """The config of an algorithm, with a KL in the loss that TRL has, too, and clip ranges that the tensors reach."""
    changes = ("loss.beta=0.1", "loss.kl_estimator=k3", f"sampling.max_completion_length={LONGEST}", *overrides)
    return Config().with_algorithm(name).with_(*changes)


def ours(config: Config, given: Given, **wrong: Any) -> tuple[Tensor, Tensor]:
    """Loss and gradient, by the config's formulas but for those that are `wrong`."""
    logprobs, mask, loss = given.logprobs.clone().requires_grad_(), given.mask, config.loss
    once, rows = torch.ones(1, 1, dtype=torch.long), torch.zeros(ROWS, dtype=torch.long)
    weights, whole = token_weights(mask, loss.aggregation, config.sampling.max_completion_length), []
    entropy = given.sampler
    if given.logits is not None:
        logprobs = given.logits.clone().requires_grad_()
        whole, entropy = [logprobs], Categorical(logits=given.logits).entropy()
    ids, floats = torch.zeros(ROWS, WIDTH, dtype=torch.long), (given.sampler, entropy, given.advantages)
    ref = given.ref if loss.beta else None
    batch = Batch(once, once, rows, ids, mask, *floats, given.old, ref, weights)
    batch = with_forks(batch, loss) if has_forks(loss) else batch
    use = Coefficients(1e-3, loss.beta, loss.epsilon, loss.epsilon_high, 1e-8, wrong.pop("delta", None))
    ctx = step_of(config, coefficients=use, batch=batch, num_tokens=mask.sum())
    ctx.begin_objective(resolve(config)[0])
    formulas: Formulas = chosen_formulas(config)._replace(**wrong)
    chosen = logprobs if given.logits is None else logprobs.log_softmax(dim=-1)[..., 0]
    use = replace(use, beta=use.beta if loss.kl_place == "loss" else 0.0)
    inputs = LossInputs(ctx, batch, chosen.masked_fill(~mask, 0.0), mask.sum(), use)
    loss_fn = partial(grpo_loss, surrogate=partial(surrogate, settings=loss, formulas=formulas))
    found = partial(loss_fn, log_ratio=formulas.log_ratio, kl_estimate=formulas.kl_estimator)(inputs).loss
    if loss.entropy_coef:
        found = found - loss.entropy_coef * entropy_bonus(whole[0], batch, config.sampling.temperature)
    return found.detach(), torch.autograd.grad(found, logprobs)[0]


class Accelerator:
    """One process: what TRL's accelerator gathers and reduces there."""

    num_processes, sync_gradients = 1, True

    def reduce(self, tensor: Tensor, reduction: str) -> Tensor:
        return tensor

    def gather(self, tensor: Tensor) -> Tensor:
        return tensor

    def pad_across_processes(self, tensor: Tensor, dim: int, pad_index: float) -> Tensor:
        return tensor


def trl_trainer(module: str, name: str, logprobs: Tensor, entropies: Tensor, **settings: Any) -> Any:
    """TRL's trainer without a model: its loss reads these attributes, log-probabilities and entropies."""
    cls = getattr(pytest.importorskip(f"trl.trainer.{module}"), name)
    found = object.__new__(cls)
    options = ("delta", "sapo_temperature_pos", "sapo_temperature_neg")
    args = {
        "use_bias_correction_kl": False,
        "steps_per_generation": 1,
        **{name: settings.pop(name) for name in options},
    }
    found.__dict__.update(
        accelerator=Accelerator(),
        args=SimpleNamespace(**args),
        model=SimpleNamespace(training=True),
        current_gradient_accumulation_steps=1,
        max_completion_length=LONGEST,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        use_vllm=False,
        vllm_importance_sampling_correction=False,
        importance_sampling_level="token",
        _entropy_bonus_enabled=False,
        aux_loss_enabled=False,
        _metrics=defaultdict(lambda: defaultdict(list)),
        _get_per_token_logps_and_entropies=lambda *args, **more: (logprobs, entropies, None),
    )
    found.__dict__.update(settings)
    return found


def trl(config: Config, given: Given, delta: float | None = None, **settings: Any) -> tuple[Tensor, Tensor]:
    """Loss and gradient of TRL's GRPOTrainer, or of its RLOOTrainer for loss_type `rloo`."""
    leaf, mask, loss = given.logprobs.clone().requires_grad_(), given.mask.long(), config.loss
    logprobs, entropies = leaf, torch.zeros_like(leaf)
    if given.logits is not None:
        leaf = given.logits.clone().requires_grad_()
        logprobs, entropies = leaf.log_softmax(dim=-1)[..., 0], Categorical(logits=leaf).entropy()
    high = loss.epsilon if loss.epsilon_high is None else loss.epsilon_high
    names = ("rloo_trainer", "RLOOTrainer") if settings["loss_type"] == "rloo" else ("grpo_trainer", "GRPOTrainer")
    soft = {name: getattr(loss, name) for name in ("sapo_temperature_pos", "sapo_temperature_neg")}
    ranges = {"epsilon_low": loss.epsilon, "epsilon_high": high, "beta": loss.beta}
    weight = settings.pop("importance_sampling_ratio", None)
    their_trainer = trl_trainer(*names, logprobs, entropies, **{**ranges, **soft, "delta": delta, **settings})
    ids = torch.zeros(ROWS, WIDTH, dtype=torch.long)
    inputs = {
        **{"prompt_ids": ids[:, :1], "prompt_mask": ids[:, :1], "completion_ids": ids, "completion_mask": mask},
        **{"advantages": given.advantages, "old_per_token_logps": given.old, "ref_per_token_logps": given.ref},
        **{"num_items_in_batch": mask.sum(), "importance_sampling_ratio": weight},
        "old_logps": (given.old * mask).sum(dim=1),
    }
    found = their_trainer._compute_loss(None, inputs)
    return found.detach(), torch.autograd.grad(found, leaf)[0]


def token_truncated(given: Given, most: float = 2.0) -> Tensor:
    """TRL's weight of vLLM's mismatch, mode token_truncate, which it computes where it samples."""
    return torch.clamp(torch.exp((given.old - given.sampler) * given.mask), max=most)


WIDE = ("loss.epsilon=0.2", "loss.epsilon_high=0.3")
OF_TRL: dict[str, tuple[tuple[str, ...], Callable[[Given], dict[str, Any]]]] = {
    "grpo": ((), lambda given: {"loss_type": "grpo"}),
    "dr_grpo": ((), lambda given: {"loss_type": "dr_grpo"}),
    "dapo": ((), lambda given: {"loss_type": "dapo"}),
    "bnpo": ((), lambda given: {"loss_type": "bnpo"}),
    "gspo": (WIDE, lambda given: {"loss_type": "grpo", "importance_sampling_level": "sequence"}),
    "cispo": (("loss.epsilon_high=0.3",), lambda given: {"loss_type": "cispo", "epsilon_high": 1.3}),
    "sapo": (("loss.sapo_temperature_neg=2",), lambda given: {"loss_type": "sapo"}),
    "luspo": (WIDE, lambda given: {"loss_type": "luspo", "importance_sampling_level": "sequence"}),
    "rloo": (("loss.beta=0",), lambda given: {"loss_type": "rloo"}),
    "tis": (
        (),
        lambda given: {
            **{"loss_type": "grpo", "use_vllm": True, "vllm_importance_sampling_correction": True},
            "importance_sampling_ratio": token_truncated(given),
        },
    ),
}
"""For each algorithm that TRL has: overrides that let the tensors reach its limits, and TRL's settings."""
TOLERANCE: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-5}


@pytest.mark.trl
@pytest.mark.parametrize("beta", [0.0, 0.1])
@pytest.mark.parametrize("name", OF_TRL)
def test_value_and_gradient_are_those_of_trl(name, beta):
    overrides, settings = OF_TRL[name]
    config = config_of(name, f"loss.beta={beta}", *overrides)
    for seed in range(2):
        tensors = given(seed)
        loss, gradient = ours(config, tensors)
        right_loss, right_gradient = trl(config, tensors, **settings(tensors))
        torch.testing.assert_close(loss, right_loss, **TOLERANCE)
        torch.testing.assert_close(gradient, right_gradient, **TOLERANCE)
        assert gradient[tensors.mask].any() and not gradient[~tensors.mask].any()


@pytest.mark.trl
@pytest.mark.parametrize(
    ("name", "share", "coefficient"), [("grpo", 0.4, 0.0), ("dapo", 1.0, 0.03), ("cispo", 0.4, 0.03)]
)
def test_forks_and_the_entropy_bonus_are_those_of_trl(name, share, coefficient):
    tensors = given(4)
    tensors.logits = torch.randn(ROWS, WIDTH, 5, generator=torch.Generator().manual_seed(5))
    logprobs = tensors.logits.log_softmax(dim=-1)[..., 0]
    tensors.old, tensors.ref = (logprobs + 0.3 * torch.randn_like(logprobs) for _ in range(2))
    overrides = (f"loss.top_entropy_quantile={share}", f"loss.entropy_coef={coefficient}", *OF_TRL[name][0])
    bonus = {"_entropy_bonus_enabled": coefficient > 0, "use_adaptive_entropy": False, "entropy_coef": coefficient}
    settings = {**OF_TRL[name][1](tensors), **bonus, "top_entropy_quantile": share}
    found, right = ours(config_of(name, *overrides), tensors), trl(config_of(name, *overrides), tensors, **settings)
    for mine, theirs in zip(found, right, strict=True):
        torch.testing.assert_close(mine, theirs, **TOLERANCE)
    plain = ours(config_of(name, *OF_TRL[name][0]), tensors)
    assert not torch.allclose(plain[1], right[1], **TOLERANCE)


@pytest.mark.trl
@pytest.mark.parametrize("name", ["grpo", "gspo"])
def test_the_dual_clip_is_that_of_trl(name):
    config, tensors = config_of(name, *WIDE), given(1, spread=1.5)
    theirs = trl(config, tensors, delta=1.5, **OF_TRL[name][1](tensors))
    for found, right in zip(ours(config, tensors, delta=1.5), theirs, strict=True):
        torch.testing.assert_close(found, right, **TOLERANCE)
    assert not torch.allclose(ours(config, tensors)[1], theirs[1], **TOLERANCE)


def test_a_correction_leaves_the_kl_alone():
    config, tensors = config_of("tis"), given(3)
    tensors.advantages = torch.zeros(ROWS)
    torch.testing.assert_close(ours(config, tensors), ours(config_of("grpo"), tensors))
    everything = {"importance_sampling_mode": lambda losses, batch, low, high: losses + 1.0}
    assert not torch.equal(ours(config, tensors, **everything)[0], ours(config, tensors)[0])


# A config takes up an algorithm --------------------------------------------------------------------------------------


def test_every_algorithm_has_its_texts_and_runs():
    names = set(
        ["grpo", "dr_grpo", "dapo", "bnpo", "rloo", "reinforce_plus_plus", "gspo", "gspo_token", "cispo", "sapo", "tis"]
    )
    assert names <= set(gl.algorithm_names()) == set(algorithm_names())
    for name in algorithm_names():
        found = algorithm(name)
        assert found.title and len(found.differs) > 40 and found.paper.startswith("https://")
        config = preset("smoke").with_("run.threads=1", "run.num_steps=2").with_algorithm(name)
        steps = [event for event in trainer.train(config) if isinstance(event, Stepped)]
        assert [step.verdict for step in steps] == [0, 0] and not any(step.failed for step in steps), name


@pytest.mark.parametrize("name", algorithm_names())
def test_the_way_there_does_not_matter(name):
    direct = Config().with_algorithm(name)
    for other in algorithm_names():
        assert Config().with_algorithm(other).with_algorithm(name) == direct, other
    assert Config.from_dict(direct.to_dict()) == direct


def test_what_an_algorithm_does_not_name_stays():
    case = scenario("train-001").config(guards="stable")
    config = case.with_algorithm("gspo")
    for setting in ("log_ratio", "kl_estimator", "beta", "advantage_scale", "completion_mask", "accumulation"):
        assert getattr(config.loss, setting) == getattr(case.loss, setting)
    assert config.guards == case.guards and config.loss.log_ratio == "reference"
    assert scenario("padding-unmasked").config().with_algorithm("grpo").loss.completion_mask == "all"


def test_a_group_of_one_has_no_one_to_leave_out():
    alone = ("data.num_generations=1", "data.allow_single_generation=true")
    for first in (
        lambda: Config().with_(*alone).with_algorithm("rloo"),
        lambda: Config().with_algorithm("rloo").with_(*alone),
    ):
        with pytest.raises(ConfigError, match=r"num_generations = 1 .*leave_one_out.*use at least 2"):
            first()
    assert Config().with_(*alone).with_algorithm("reinforce_plus_plus").data.num_generations == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('title = "A"\npaper = "B"\ndiffers = "C"\n', "loss is missing"),
        ('title = "A"\npaper = "B"\ndiffers = "C"\n[loss]\nsurogate = "clip"', "did you mean 'surrogate'"),
        ('title = "A"\npaper = "B"\ndiffers = "C"\nurl = "D"\n[loss]\n', "algorithm mine: unknown setting 'url'"),
        ('title = "A"\npaper = "B"\ndiffers = "C"\n[loss]\nepsilon = 7.0', "loss.epsilon = 7.0"),
    ],
)
def test_a_mistake_in_an_algorithm_of_ones_own_is_named(tmp_path, text, message):
    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        Config().with_algorithm(str(tmp_path / "mine.toml"))


def test_an_algorithm_of_ones_own(tmp_path):
    text = 'title = "A"\npaper = "B"\ndiffers = "C"\n[loss]\nsurrogate = "unclipped"\nbeta = 0.5'
    (tmp_path / "mine.toml").write_text(text)
    loss = Config().with_algorithm("cispo").with_algorithm(str(tmp_path / "mine.toml")).loss
    assert (loss.surrogate, loss.beta, loss.epsilon_high) == ("unclipped", 0.5, None)


def test_the_command_line_takes_an_algorithm(call):
    code, out, err = call(
        "train", "--preset", "smoke", "--algorithm", "cispo", "--set", "loss.beta=0.5", "--print-config"
    )
    assert (code, err) == (0, "")
    assert 'surrogate = "cispo"' in out and "beta = 0.5" in out
    code, _, err = call("train", "--preset", "smoke", "--algorithm", "cisp", "--print-config")
    assert code == 2 and "unknown algorithm 'cisp'; did you mean 'cispo'" in err
