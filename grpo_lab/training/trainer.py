"""GRPO as a generator of events, with a stage for guards and faults at every value (see `events.Stage`).

for each step
    for each objective: draw prompts, sample a group of completions for each, score them
    advantage = (reward - mean of its group) / standard deviation of its group
    for each of mu updates: minimise  -min(ratio A, clip(ratio) A) + beta KL(policy || reference)

Advantage, ratio, surrogate, credit and KL are formulas that the config names, by default those of DeepSeekMath
(https://arxiv.org/abs/2402.03300). Left out: gradient checkpointing, vLLM, asynchronous sampling, replay, turns.
"""

from collections.abc import Iterator
from contextlib import suppress

from grpo_lab.config.schema import Config
from grpo_lab.events import Ended, Event, Stage, Verdict
from grpo_lab.tasks.tasks import Tasks
from grpo_lab.training.attempt import Attempt, Refused, ended
from grpo_lab.training.evaluation import evaluate
from grpo_lab.training.given import public
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
            attempt = learner.begin(index)
            try:
                with suppress(Refused):  # the guard's reason is in attempt.actions; learner.end carries out the verdict
                    STEPS[stage](learner, attempt)
                event = learner.end(attempt)
            except Exception:
                yield learner.fail(attempt)
                raise
            yield event
            if attempt.verdict == Verdict.STOP:
                yield Ended("stopped", attempt.reason)
                return
        yield from evaluate(learner, learner.steps.stop)
    yield ended(learner.refusals, learner.updates.count)


def grpo_step(learner: Learner, attempt: Attempt) -> None:
    """One step of GRPO; a run with one goal has one objective. Raises Refused where a guard refuses the rest."""
    attempt.replace(coefficients=attempt.apply(Stage.COEFFICIENTS, learner.updates.coefficients(attempt.step)))
    sampled, parts = [learner.sample(attempt, objective) for objective in learner.drawn(attempt.step.index)], []
    for part in sampled:
        part, scores = learner.judged(attempt, part)
        advantages = attempt.apply(Stage.ADVANTAGES, learner.advantages(attempt, part, scores))
        batch = attempt.apply(Stage.BATCH, learner.compute_logprobs(attempt, part, advantages))
        parts.append(learner.add_token_weights(attempt, part, learner.assign_credit(batch)))
    for update in range(learner.config.loss.num_iterations):
        learner.updates.begin(attempt, update)
        for part in parts:
            with learner.shared(attempt, part) as micro_batches:
                for micro_batch in micro_batches:
                    learner.backward(attempt, learner.loss(attempt, micro_batch))
        learner.updates.commit(attempt, learner.combination.gradients)


STEPS = {"sft": sft_step, "grpo": grpo_step}
