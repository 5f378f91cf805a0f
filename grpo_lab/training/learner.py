"""What lives from step to step, policy, reference and optimizer, and the parts of a step that `train` puts in order."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from grpo_lab import seeds
from grpo_lab.algorithm.batch import Batch
from grpo_lab.algorithm.logprobs import completion_logprobs
from grpo_lab.algorithm.losses import LossOutput, clipped_surrogate, token_weights, weighted_sum
from grpo_lab.config.schema import LIVE_SECTIONS, Config, SamplingConfig
from grpo_lab.errors import ConfigError, ModelError
from grpo_lab.events import Evaluated, LinkNote, Stage, Stepped, Verdict
from grpo_lab.models import loading
from grpo_lab.models.precision import PRECISIONS
from grpo_lab.tasks import rewards as reward_functions
from grpo_lab.tasks.tasks import Problem, Tasks
from grpo_lab.training import rollouts, step_metrics
from grpo_lab.training.faults import FAULTS, formulas
from grpo_lab.training.guards import GUARDS
from grpo_lab.training.interventions import Arrangement, Coefficients, Refused, Step, arrange, carry_over
from grpo_lab.training.observers import PROBES, MeasureExactKL
from grpo_lab.training.recorder import Recorder
from grpo_lab.training.rollouts import PROMPT_PASSES
from grpo_lab.training.snapshots import SMALL, Snapshots

RewardFunctions = Sequence[Callable[..., Any]]
SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda done: 1.0,
    "cosine": lambda done: 0.5 * (1 + math.cos(math.pi * min(1.0, done))),
}
"""Learning rate as a factor, from the share of updates that were committed."""
EVALUATED_AT_ONCE = 256


class Learner:
    """Policy, reference, optimizer, snapshots and interventions of one run."""

    def __init__(self, config: Config, model: tuple[Any, Any] | None, rewards: RewardFunctions | None) -> None:
        self.formulas, self.interventions = validated(config, own=True)
        self.config = config
        if config.run.threads:
            torch.set_num_threads(config.run.threads)
        torch.use_deterministic_algorithms(config.run.deterministic)
        self.rewards = rewards or [reward_functions.load(name) for name in config.data.rewards]
        self.precision = PRECISIONS[config.model.precision]
        self.policy, self.tokenizer = model or loading.load(
            config.model.name, config.model.precision, config.run.device
        )
        self.policy.eval()
        self.reference = None
        if formulas.needs_reference(config):
            self.reference = copy.deepcopy(self.policy).requires_grad_(False)
        trained = [(name, p) for name, p in self.policy.named_parameters() if p.requires_grad]
        if not trained:
            raise ModelError(f"model {config.model.name!r} has no weight that requires a gradient: unfreeze some")
        self.names, self.parameters = zip(*trained, strict=True)
        self.num_parameters = sum(p.numel() for p in self.parameters)
        self.optimizer = torch.optim.AdamW(self.parameters)  # its settings are those of each update
        self.scaler = torch.amp.GradScaler(self.policy.device.type, enabled=self.precision.scaler)
        self.recorder = Recorder()
        self.snapshots = Snapshots(self.parameters, self.optimizer, self._snapshot_interval())
        self.last_verdict, self.last_metrics, self.healthy, self.updates = Verdict.KEEP, {}, True, 0

    def _snapshot_interval(self) -> int:
        may_need_one = any(i.may_roll_back for row in self.interventions.values() for _, i in row)
        automatic = 1 if self.num_parameters < SMALL else 10 if may_need_one else 0
        return self.config.run.snapshot_every or automatic

    def change(self, overrides: Sequence[str]) -> None:
        """Apply overrides to the running model; interventions that stay on lose nothing they keep."""
        changed = self.config.with_(*overrides)
        for section in (field.name for field in fields(Config)):
            if section not in LIVE_SECTIONS and getattr(changed, section) != getattr(self.config, section):
                raise ConfigError(f"{section}.* is fixed once a run has started; {', '.join(LIVE_SECTIONS)} may change")
        if self.reference is None and formulas.needs_reference(changed):
            raise ConfigError("this run has no reference model: it started with loss.beta = 0; start it with more")
        chosen, interventions = validated(changed, own=True)
        carry_over(self.interventions, interventions)
        self.config, self.formulas, self.interventions = changed, chosen, interventions
        self.snapshots.every = self._snapshot_interval()

    def begin(self, index: int) -> Step:
        """A new step: dropout off, a snapshot of what is healthy, nothing noted yet."""
        self.policy.eval()
        self._started, self._committed, self._unscaled = time.perf_counter(), 0, False
        self._samples: tuple[tuple[str, str, float], ...] = ()
        if self.healthy:
            self.snapshots.take(index, self.updates)
        known = (self.policy, self.recorder, self.optimizer, self.last_verdict, self.last_metrics)
        step = Step(index, self.config, self.interventions, *known)
        step.largest_move = lambda: self.snapshots.largest_move(index)
        return step

    def coefficients(self) -> Coefficients:
        """The step's numbers as configured and scheduled, before any guard."""
        loss, optimizer = self.config.loss, self.config.optimizer
        share = self.updates / (self.config.run.num_steps * loss.num_iterations)
        rate = optimizer.learning_rate * SCHEDULES[optimizer.schedule](share)
        return Coefficients(rate, loss.beta, loss.epsilon, loss.epsilon_high, optimizer.adam_eps)

    def sample(self, step: Step, problems: Sequence[Problem], sampling: SamplingConfig) -> Batch:
        """Completions of each problem's prompt, by the policy as it is."""
        prompts = [problem.prompt for problem in problems]
        size, generator = self.config.data.num_generations, self._generator(step.index, "sampling")
        with self._autocast():
            return rollouts.sample(self.policy, self.tokenizer, prompts, size, sampling, generator, step.at)

    def score(self, step: Step, problems: Sequence[Problem], batch: Batch) -> Tensor:
        """Rewards (P, G). What no function could judge is not `step.scorable`."""
        size = self.config.data.num_generations
        repeated = [problem for problem in problems for _ in range(size)]
        completions = rollouts.texts(self.tokenizer, batch)
        values, scorable = reward_functions.judge(self.rewards, repeated, completions)
        shown = zip(repeated[::size], completions[::size], values[::size].tolist(), strict=True)
        self._samples = tuple((problem.prompt, text, reward) for problem, text, reward in shown)[:4]
        step.scorable = scorable.view(-1, size).to(batch.group.device)
        return values.view(-1, size).to(batch.group.device)

    def complete(self, step: Step, batch: Batch, advantages: Tensor, sampling: SamplingConfig) -> Batch:
        """The batch with advantages, old and reference log-probabilities; unscorable completions have left."""
        assert step.scorable is not None
        scorable = step.scorable.flatten()
        if not bool(scorable.any()):
            step.say("trainer", Stage.REWARDS, Verdict.SKIP_STEP, f"none of {len(scorable)} completions was scored")
            raise Refused
        mask = self.formulas.completion_mask(batch, self.tokenizer.pad_token_id)
        batch = replace(batch, advantages=advantages.flatten(), completion_mask=mask).rows(scorable.nonzero()[:, 0])
        ref_logprobs = None
        if self.reference is not None:
            ref_logprobs = self._logprobs(step, self.reference, batch, sampling, "reference")
        old_logprobs = self._old_logprobs(step, batch, sampling)
        batch = replace(batch, old_logprobs=old_logprobs, ref_logprobs=ref_logprobs)
        step_metrics.batch(self.recorder, batch, rollouts.terminators(self.policy, self.tokenizer))
        return batch

    def weigh(self, batch: Batch, sampling: SamplingConfig) -> Batch:
        """The batch with what each token counts in the loss, taken over all that is left of it."""
        weights = token_weights(batch.completion_mask, self.config.loss.aggregation, sampling.max_completion_length)
        return replace(batch, weights=weights)

    def begin_update(self, step: Step) -> None:
        """No gradient yet, and the step's coefficients and settings in the optimizer."""
        assert step.coefficients is not None
        use, configured = step.coefficients, self.config.optimizer
        self.optimizer.zero_grad()
        for group in self.optimizer.param_groups:
            group["lr"], group["eps"] = use.learning_rate, use.adam_eps
            group["betas"] = (configured.adam_beta1, configured.adam_beta2)
            group["weight_decay"] = configured.weight_decay

    def loss(self, step: Step, batch: Batch, sampling: SamplingConfig, num_tokens: Tensor) -> LossOutput:
        """The batch's part of the objective, to be minimised: clipped surrogate + beta * KL, per token, weighted."""
        use, recorder, outside = step.coefficients, self.recorder, ~batch.completion_mask
        metrics: dict[str, Tensor] = {}
        assert use is not None and batch.advantages is not None and batch.weights is not None
        step.batch = batch
        step.advantages, step.completion_mask, step.num_tokens = batch.advantages, batch.completion_mask, num_tokens
        with self._autocast():
            logits = step.at(Stage.LOGITS, PROMPT_PASSES[self.config.model.prompt_pass](self.policy, batch), "current")
        logprobs = completion_logprobs(logits, batch.completions, sampling.temperature).to(self.precision.loss)
        logprobs = logprobs.masked_fill(outside, 0.0)
        recorder.tensor("logprobs", logprobs, step.update)
        log_ratio = self.formulas.log_ratio(logprobs, batch).masked_fill(outside, 0.0)
        log_ratio = step.at(Stage.LOG_RATIO, log_ratio)
        log_ratio.register_hook(lambda gradient: recorder.tensor("log_ratio_gradient", gradient, step.update))
        ratio = log_ratio.detach().exp()
        recorder.tensor("ratio", ratio, step.update)
        per_token = clipped_surrogate(log_ratio, batch.advantages, use.epsilon, use.epsilon_high, use.delta)
        if self.reference is not None:
            assert batch.ref_logprobs is not None
            delta = step.at(Stage.KL_DELTA, (batch.ref_logprobs - logprobs).masked_fill(outside, 0.0))
            kl = self.formulas.kl_estimator(delta)
            metrics["kl"] = kl.float().sum() / num_tokens
            if use.beta:  # 0 * inf is NaN: a penalty without weight must not be there at all
                per_token = per_token + use.beta * kl
        metrics |= step_metrics.clipping(step, ratio.float(), batch, num_tokens)
        return LossOutput(weighted_sum(per_token, batch.weights), metrics)

    def backward(self, step: Step, loss: Tensor) -> None:
        """Note the loss, and add its gradients to those of the batch so far."""
        self.recorder.metric("loss", loss.sum(), step.update)  # a guard may answer with a tensor of one element
        self.formulas.accumulation(self.scaler.scale(loss), self.optimizer)

    def gradients(self) -> Any:
        """The policy with the gradients of the whole batch, unscaled."""
        self.scaler.unscale_(self.optimizer)
        self._unscaled = True
        return self.policy

    def apply(self, step: Step) -> None:
        """One AdamW update. GradScaler (fp16) leaves out one with inf gradients."""
        assert step.coefficients is not None
        before = self.scaler.get_scale()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self._unscaled = False
        if self.scaler.get_scale() < before:
            step.say("grad_scaler", Stage.GRADIENTS, Verdict.CHANGED, f"inf at loss scale {before:g}; update left out")
            return
        self._committed += 1
        dtype = self.parameters[0].dtype
        facts = {"adam_eps": step.coefficients.adam_eps}
        facts["adam_eps_in_weights_dtype"] = float(torch.tensor(step.coefficients.adam_eps, dtype=dtype))
        states = [self.optimizer.state[p] for p in self.parameters if p in self.optimizer.state]
        moments = [state["exp_avg"] for state in states] + [state["exp_avg_sq"] for state in states]
        self.recorder.parameters("moments", [*self.names, *self.names], moments, step.update, facts)

    def end(self, step: Step, failed: bool = False) -> Stepped:
        """Carry out the step's verdict and say what happened."""
        links, metrics = self._read(failed)
        weights = [note for note in links if note.link == Stage.WEIGHTS]
        self.healthy = not any(note.broken for note in weights[-1:]) if weights else self.healthy
        self.optimizer.zero_grad()
        if self._unscaled:
            self.scaler.update()
        if step.verdict >= Verdict.ROLL_BACK:
            self.updates = self.snapshots.restore()
            self.healthy, self._committed = True, 0
        self.updates += self._committed
        self.last_verdict, self.last_metrics = step.verdict, metrics
        if not failed:
            metrics |= self._weights_metrics(step, weights)
        metrics["step_time"] = time.perf_counter() - self._started
        done, acted = self._committed, tuple(step.actions)
        return Stepped(step.index, done, step.verdict, metrics, links, acted, self._samples, failed)

    def evaluate(self, tasks: Tasks, step: int) -> Iterator[Evaluated]:
        """Mean reward of held-out problems sampled at temperature 1; nothing where `run.num_eval` is 0."""
        problems = tasks.held_out[: self.config.run.num_eval]
        if not problems:
            return
        self.policy.eval()  # the last step may have left dropout on
        sampling = SamplingConfig(max_completion_length=self.config.sampling.max_completion_length)
        generator, total, judged = self._generator(0, "evaluation"), 0.0, 0
        for first in range(0, len(problems), EVALUATED_AT_ONCE):
            part = problems[first : first + EVALUATED_AT_ONCE]
            prompts = [problem.prompt for problem in part]
            with self._autocast():
                batch = rollouts.sample(self.policy, self.tokenizer, prompts, 1, sampling, generator)
            values, scorable = reward_functions.judge(self.rewards, part, rollouts.texts(self.tokenizer, batch))
            total, judged = total + float(values[scorable].sum()), judged + int(scorable.sum())
        yield Evaluated(step, total / judged if judged else math.nan, judged)

    def _generator(self, step: int, purpose: str) -> torch.Generator:
        seed = seeds.derive(self.config.run.seed, step, purpose)
        return torch.Generator(self.policy.device).manual_seed(seed)

    def _autocast(self) -> torch.autocast:
        dtype = self.precision.autocast
        return torch.autocast(self.policy.device.type, dtype=dtype, enabled=dtype is not None)

    @torch.no_grad()
    def _logprobs(self, step: Step, model: Any, batch: Batch, sampling: SamplingConfig, note: str) -> Tensor:
        """(B, T) log-probabilities of the completions under a model, without gradient."""
        rows = []
        for part in batch.split(self.config.data.micro_batch_prompts):
            step.batch = part
            with self._autocast():
                logits = step.at(Stage.LOGITS, PROMPT_PASSES[self.config.model.prompt_pass](model, part), note)
            rows.append(completion_logprobs(logits, part.completions, sampling.temperature).to(self.precision.loss))
        return torch.cat(rows).masked_fill(~batch.completion_mask, 0.0)

    def _old_logprobs(self, step: Step, batch: Batch, sampling: SamplingConfig) -> Tensor:
        """The sampler's own log-probabilities where they are the trained quantity; else computed, and compared."""
        if rollouts.is_plain(sampling) and self.precision.autocast is None and self.precision.weights == torch.float32:
            return batch.sampling_logprobs
        old = self._logprobs(step, self.policy, batch, sampling, "old")
        step_metrics.sampler(self.recorder, batch, old)
        return old

    def _read(self, failed: bool) -> tuple[tuple[LinkNote, ...], dict[str, float]]:
        try:
            return self.recorder.flush()
        except RuntimeError:
            # After a device-side assert the device answers nothing more: the notes of this step are lost with it,
            # and the crash text is what there is. Anything else is an error of its own.
            if failed and self.policy.device.type == "cuda":
                return (), {}
            raise

    def _weights_metrics(self, step: Step, weights: list[LinkNote]) -> dict[str, float]:
        use = step.coefficients
        metrics = {"weights/nonfinite": weights[-1].nonfinite} if weights else {}
        metrics |= {"learning_rate": use.learning_rate, "beta": use.beta} if use else {}
        metrics |= {"loss_scale": self.scaler.get_scale()} if self.precision.scaler else {}
        move = self.snapshots.largest_move(step.index)
        return metrics if move is None else {**metrics, "weights/max_move": move}


def validated(config: Config, own: bool = False) -> tuple[formulas.Formulas, Arrangement]:
    """The config's formulas, and its interventions, arranged; the user's own, which are code to run, only with `own`.

    Raises ConfigError for a guard, fault, setting or formula that does not exist.
    """
    probes = [*PROBES, *([MeasureExactKL] if config.run.exact_kl else [])]
    return formulas.chosen(config, own), arrange(config, FAULTS, GUARDS, probes, own)
