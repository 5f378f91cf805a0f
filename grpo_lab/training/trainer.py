"""`train`: a run as a generator of events. Its step is that of `core.train`, with the formulas of the config."""

from collections.abc import Iterator, Sequence

from grpo_lab.config.schema import Config
from grpo_lab.core.hooks import Verdict
from grpo_lab.errors import Sentence
from grpo_lab.events import Changed, Ended, Event
from grpo_lab.tasks.tasks import Tasks
from grpo_lab.training import saved_state
from grpo_lab.training.argument_types import checked
from grpo_lab.training.evaluation import evaluate
from grpo_lab.training.objectives import Rewards
from grpo_lab.training.state import Controls, Model, Training
from grpo_lab.training.torch_settings import own_settings


@checked
@own_settings
def train(
    config: Config,
    model: Model = None,
    tasks: Tasks | None = None,
    rewards: Rewards = None,
    controls: Controls = None,
) -> Iterator[Event]:
    """Train a policy, in place if it is given as `model`, and yield events; no file is written.

    Raises ConfigError for a config that cannot run, and any error of a step after a last `Stepped(failed=True)`.
    """
    training = Training(config, model, tasks, rewards)
    yield training.started()
    yield from events(training, controls)


def events(training: Training, controls: Controls = None) -> Iterator[Event]:
    """Make the steps of a run that are left, and yield their events."""
    yield from evaluate(training, 0)
    for stage in training.config.run.stages:
        for index in _begin_stage(training, stage):
            if overrides := training.asked(index, controls):
                training.change(overrides)
                yield Changed(index, overrides)
            ctx = yield from training.make(index)
            if ctx.verdict == Verdict.STOP:
                yield Ended("stopped", ctx.reason)
                return
        yield from evaluate(training, training.steps.stop)
    yield ended(training.refusals, training.updates.count)


def _begin_stage(training: Training, stage: str) -> range:
    """Begin a stage, with the state of a later step if it has a saved one; return the steps that are left."""
    steps, saved = training.begin_stage(stage), training.saved
    if saved.get("stage", stage) != stage:
        return range(steps.stop, steps.stop)
    if "stage" in saved:
        saved_state.put_back(training, saved)
        steps = range(saved["step"], steps.stop)
    training.saved = {}
    if saved.get("overrides"):
        training.change(saved["overrides"])
    return steps


def ended(refusals: Sequence[str], updates: int) -> Ended:
    """The end of a run, from the trainer's reasons for refusing the last stage's steps, empty for one not refused.

    Where it refused all of them and no update was made, nothing was trained.
    """
    if updates or not refusals or not all(refusals):
        return Ended("done")
    why = "nothing was trained: every step was refused, the last because {}; mend that and train again"
    return Ended("stopped", Sentence(why, refusals[-1]))
