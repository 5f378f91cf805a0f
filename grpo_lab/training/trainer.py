"""GRPO as a generator of events, with a stage for guards and faults at every value (see `hooks.Stage`).

for each step
    for each objective: draw prompts, sample a group of completions for each, score them
    advantage = (reward - mean of its group) / standard deviation of its group
    for each of mu updates: minimise  -min(ratio A, clip(ratio) A) + beta KL(policy || reference)

Advantage, ratio, surrogate, credit and KL are formulas that the config names, by default those of DeepSeekMath
(https://arxiv.org/abs/2402.03300). Left out: gradient checkpointing, vLLM, asynchronous sampling, replay, turns.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress

from grpo_lab.config.schema import Config
from grpo_lab.core.hooks import Refused, Stage, Verdict
from grpo_lab.events import Ended, Event
from grpo_lab.tasks.tasks import Tasks
from grpo_lab.training.evaluation import evaluate
from grpo_lab.training.given import public
from grpo_lab.training.interventions import Step
from grpo_lab.training.learner import Controls, Learner, Model, Rewards
from grpo_lab.training.learner_state import NO_CHECKPOINTS, NoCheckpoints, before_step
from grpo_lab.training.sft import sft_step
from grpo_lab.training.world import ALONE, World


@public
def train(
    config: Config,
    model: Model = None,
    tasks: Tasks | None = None,
    rewards: Rewards = None,
    controls: Controls = None,
    checkpoints: NoCheckpoints = NO_CHECKPOINTS,
    world: World = ALONE,
) -> Iterator[Event]:
    """Train a policy, in place if it is given as `model`, and yield events; `checkpoints` alone writes files.

    Raises ConfigError for a config that cannot run, and any error of a step after a last `Stepped(failed=True)`.
    """
    learner = Learner(config, model, rewards, tasks, world)
    yield from checkpoints.open(learner)
    yield from evaluate(learner, 0)
    for stage in config.run.stages:
        for index in checkpoints.begin_stage(learner, stage):
            yield from before_step(learner, index, checkpoints, controls)
            ctx = learner.begin(index)
            try:
                with suppress(Refused):  # the guard's reason is in ctx.actions; learner.end carries out the verdict
                    STEPS[stage](learner, ctx)
                event = learner.end(ctx)
            except Exception:
                yield learner.fail(ctx)
                raise
            yield event
            if ctx.verdict == Verdict.STOP:
                yield Ended("stopped", ctx.reason)
                return
        yield from evaluate(learner, learner.steps.stop)
    yield ended(learner.refusals, learner.updates.count)


def grpo_step(learner: Learner, ctx: Step) -> None:
    """One step of GRPO; a run with one goal has one objective. Raises Refused where a guard refuses the rest."""
    ctx.coefficients = ctx.apply(Stage.COEFFICIENTS, learner.updates.coefficients(ctx))
    sampled, parts = [learner.sample(ctx, objective) for objective in learner.drawn(ctx.index)], []
    for part in sampled:
        part, scores = learner.judged(ctx, part)
        advantages = ctx.apply(Stage.ADVANTAGES, learner.advantages(ctx, part, scores))
        batch = ctx.apply(Stage.BATCH, learner.compute_logprobs(ctx, part, advantages))
        parts.append(learner.add_token_weights(ctx, part, learner.assign_credit(batch)))
    for update in range(learner.config.loss.num_iterations):
        learner.updates.begin(ctx, update)
        for part in parts:
            with learner.shared(ctx, part) as micro_batches:
                for micro_batch in micro_batches:
                    learner.backward(ctx, learner.loss(ctx, micro_batch))
        learner.updates.commit(ctx, learner.combination.gradients)


STEPS = {"sft": sft_step, "grpo": grpo_step}


def ended(refusals: Sequence[str], updates: int) -> Ended:
    """The end of a run, from the trainer's reasons for refusing the last stage's steps, empty for one not refused.

    Where it refused all of them and no update was made, nothing was trained.
    """
    if updates or not refusals or not all(refusals):
        return Ended("done")
    reason = f"nothing was trained: every step was refused, the last because {refusals[-1]}; mend that and train again"
    return Ended("stopped", reason)
