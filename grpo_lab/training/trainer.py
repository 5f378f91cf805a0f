"""GRPO as a generator of events, with a stage for guards and faults at every value (see `events.Stage`).

for each step
    draw prompts, sample a group of completions for each, score them
    advantage = (reward - mean of its group) / standard deviation of its group
    for each of mu updates
        minimise  -min(ratio A, clip(ratio) A) + beta KL(policy || reference)

This is algorithm 1 of DeepSeekMath (https://arxiv.org/abs/2402.03300), without its outer loop, and it is kept small:
- one process and one device; no data, tensor or pipeline parallelism, no gradient checkpointing;
- the policy itself samples, token by token with a cache of its own; no vLLM, no asynchronous sampler;
- every batch is sampled anew and used for mu updates of the whole batch, then forgotten: no replay of old completions,
  no minibatches (micro-batches only accumulate gradients), no importance weight for the sampler's mismatch;
- the reference is the initial policy and never moves; the reward model is not trained;
- groups without spread stay in the batch, and cut-off completions are trained like others (no dynamic sampling and no
  overlong filter as in DAPO);
- a completion is one turn of plain text: no chat template, no tools;
- snapshots are in memory only: an interrupted run starts again.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from grpo_lab.config.schema import Config
from grpo_lab.events import Changed, Ended, Event, Stage, Started, Verdict
from grpo_lab.tasks.tasks import Tasks
from grpo_lab.training.attempt import Attempt, Refused
from grpo_lab.training.evaluation import evaluate
from grpo_lab.training.learner import Learner, RewardFunctions
from grpo_lab.training.torch_settings import own_settings

Controls = Callable[[int], Sequence[str]]
"""Called at the top of each step; returns overrides for `Config.with_`, applied to the running model."""


@own_settings
def train(
    config: Config,
    model: tuple[Any, Any] | None = None,
    tasks: Tasks | None = None,
    rewards: RewardFunctions | None = None,
    controls: Controls | None = None,
) -> Iterator[Event]:
    """Train a policy and yield its events; nothing is printed, plotted or saved here.

    `model` is a (policy, tokenizer) pair, trained in place; `tasks` and `rewards` replace the configured ones.
    Raises ConfigError for a config that cannot run. Raises any error of a step after a last `Stepped(failed=True)`,
    which holds everything that was recorded before it.
    """
    learner = Learner(config, model, rewards, tasks)
    yield Started(config.to_dict(), learner.updates.num_parameters, str(learner.policy.device))
    yield from evaluate(learner, 0)
    for index in range(config.run.num_steps):
        if overrides := tuple(controls(index)) if controls else ():
            learner.change(overrides)
            yield Changed(index, overrides)
        attempt = learner.begin(index)
        try:
            grpo_step(learner, attempt)
        except Refused:
            pass  # the guard's reason is in attempt.actions, and learner.end carries out the verdict
        except Exception:
            yield learner.end(attempt, failed=True)
            raise
        yield learner.end(attempt)
        if attempt.verdict == Verdict.STOP:
            yield Ended("stopped", attempt.reason)
            return
    yield from evaluate(learner, config.run.num_steps)
    yield Ended("done")


def grpo_step(learner: Learner, attempt: Attempt) -> None:
    """One step of GRPO; a run with one goal has one objective. Raises Refused where a guard refuses the rest."""
    updates = learner.updates
    attempt.replace(coefficients=attempt.apply(Stage.COEFFICIENTS, updates.coefficients(learner.config)))
    sampled, parts = [learner.sample(attempt, objective) for objective in learner.drawn(attempt.step.index)], []
    for part in sampled:
        advantages = learner.advantages(attempt, part, learner.score(attempt, part))
        advantages = attempt.apply(Stage.ADVANTAGES, advantages)
        batch = attempt.apply(Stage.BATCH, learner.compute_logprobs(attempt, part, advantages))
        parts.append(learner.add_token_weights(attempt, part, batch))
    for update in range(learner.config.loss.num_iterations):
        updates.begin(attempt, update)
        for part in parts:
            attempt.turn_to(part.objective, sampling=part.sampling, num_tokens=part.num_tokens)
            for micro_batch in part.batch.split(learner.config.data.micro_batch_prompts):
                output = learner.loss(attempt, micro_batch)
                learner.recorder.metrics(output.metrics, update)
                learner.backward(attempt, attempt.apply(Stage.LOSS, output.loss))
            updates.set_aside()
        updates.combine(attempt, learner.combination.gradients)
        attempt.apply(Stage.GRADIENTS, updates.gradients())
        updates.apply(attempt)
        attempt.apply(Stage.WEIGHTS, learner.policy)
