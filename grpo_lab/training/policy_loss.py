"""The loss of one micro-batch, put together from the formulas that the config names."""

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from grpo_lab.algorithm.losses import highest
from grpo_lab.algorithm.surrogates import Limits
from grpo_lab.config.loss_section import LossConfig
from grpo_lab.core.batch import Batch
from grpo_lab.core.hooks import Stage
from grpo_lab.core.logprobs import differentiable_entropies
from grpo_lab.core.loss import LossOutput, weighted_sum
from grpo_lab.training import step_metrics
from grpo_lab.training.interventions import Step, known
from grpo_lab.training.registry import Formulas
from grpo_lab.training.shaping import IN_THE_LOSS


def with_forks(batch: Batch, loss: LossConfig) -> Batch:
    """The batch with its `forks`, where the loss needs to know them: taken over all its rows."""
    if loss.top_entropy_quantile == 1 and not loss.entropy_coef:
        return batch
    forks = highest(batch.entropy, batch.completion_mask, loss.top_entropy_quantile).float()
    return replace(batch, forks=forks / forks.sum().clamp(min=1))


def add_entropy_bonus(ctx: Step, output: LossOutput, batch: Batch, logits: Sequence[Tensor]) -> LossOutput:
    """The loss minus entropy_coef times the mean entropy of the forks, for logits (b, T, V) that were kept for it."""
    loss, sampling = output.loss, ctx.sampling
    for each in logits:
        assert batch.forks is not None
        bonus = weighted_sum(differentiable_entropies(each, sampling.temperature), batch.forks)
        loss = loss - ctx.config.loss.entropy_coef * bonus.to(loss.dtype)
    return output._replace(loss=loss)


def micro_batch_loss(ctx: Step, batch: Batch, formulas: Formulas, logprobs: Tensor) -> LossOutput:
    """The micro-batch's part of the objective: weighted sum over its tokens of surrogate + beta * KL, and its metrics.

    `logprobs` (b, T) are those of the policy as it is, in nats, with a gradient.
    """
    recorder, settings, outside = ctx.recorder, ctx.config.loss, ~batch.completion_mask
    use, num_tokens = known(ctx.coefficients, "coefficients"), known(ctx.num_tokens, "num_tokens")
    assert batch.advantages is not None and batch.weights is not None
    metrics: dict[str, Tensor] = {}
    logprobs = logprobs.masked_fill(outside, 0.0)
    recorder.tensor("logprobs", logprobs, ctx.update)
    log_ratio = formulas.log_ratio(logprobs, batch).masked_fill(outside, 0.0)
    log_ratio = ctx.apply(Stage.LOG_RATIO, log_ratio)
    log_ratio.register_hook(lambda gradient: recorder.tensor("log_ratio_gradient", gradient, ctx.update))
    log_weights = formulas.importance_sampling_level(log_ratio, batch.completion_mask)
    ratio = log_weights.detach().exp()
    recorder.tensor("ratio", ratio, ctx.update)
    temperatures = settings.sapo_temperature_pos, settings.sapo_temperature_neg
    limits = Limits(use.epsilon, use.epsilon_high, use.delta, *temperatures)
    per_token = formulas.surrogate(log_weights, logprobs, batch.advantages, limits)
    if batch.forks is not None:
        per_token = per_token.masked_fill(batch.forks == 0, 0.0)
    bounds = settings.importance_sampling_clip_min, settings.importance_sampling_clip_max
    per_token = formulas.importance_sampling_mode(per_token, batch, *bounds)
    if batch.ref_logprobs is not None:
        delta = ctx.apply(Stage.KL_DELTA, (batch.ref_logprobs - logprobs).masked_fill(outside, 0.0))
        kl = formulas.kl_estimator(delta)
        metrics["kl"] = kl.float().sum() / num_tokens
        if share := ctx.beta * IN_THE_LOSS[settings.kl_place]:  # 0 * inf is NaN, so weight 0 leaves the penalty out
            per_token = per_token + share * kl
    metrics |= step_metrics.clipping(settings.surrogate, limits, ratio.float(), batch.advantages, num_tokens)
    return LossOutput(weighted_sum(per_token, batch.weights), metrics)
