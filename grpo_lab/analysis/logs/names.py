"""The names that trainers give to the metrics of `grpo_lab.metrics`, whose own names are TRL's."""

import re
from collections.abc import Collection, Iterable

from grpo_lab.metrics import METRICS, OTHER_NAMES, of_objective

OF_MAX_STEPS = "global_step/max_steps"
"""ms-swift writes the step and the number of steps as one text, "10/100"."""
STEP_NAMES = (
    "step",
    "global_step",
    "training/global_step",
    "train/global_step",
    "_step",
    "Step",
    OF_MAX_STEPS,
    "iteration",
)
PREFIXES = ("train/", "rollout/")
"""The callbacks of TensorBoard and Weights & Biases put these before every name."""
CUMULATIVE = ("num_tokens",)
"""TRL counts these from the start of the run; here they are counted for each step."""
NAMES = frozenset((*METRICS, *(name for names in OTHER_NAMES.values() for name in names)))
"""All names of all metrics."""
MEASURED = frozenset(
    name
    for metric in ("loss", "reward", "reward_std", "grad_norm", "kl", "entropy", "completions/mean_length")
    for name in (metric, *OTHER_NAMES.get(metric, ()))
)
"""Measures of a step, under all names; settings as learning_rate and beta are printed elsewhere too."""
TRL_ONLY = (
    "epoch",
    "completions/mean_terminated_length",
    "completions/min_length",
    "train_runtime",
    "clip_ratio/low_min",
)
TRAINERS = ("trl", "ms-swift")
"""Frameworks built on Hugging Face's Trainer, which replaces a loss of NaN in its log by a finite number."""
_ONLY = {
    "ms-swift": re.compile(r"global_step/max_steps$|train_speed\(|memory\(GiB\)$"),
    "verl": re.compile(r"(actor|critic|perf|timing_s|global_seqlen|response_length)/"),
    "openrlhf": re.compile(r"(actor_lr|response_length|critic_loss|ptx_loss|total_length)$"),
    "grpo_lab": re.compile(r"run\.memory$"),
}
"""Names, without a callback's prefix, that only one framework logs; those that TRL alone logs are asked for last.

`gl.Guards` measures ratio/max and weights/max_move in loops that are not this project's.
"""
OF_A_NOTEBOOK = "Training Loss"
OF_CALLBACK = frozenset(
    f"train/{name}"
    for name in ("loss", "grad_norm", "learning_rate", "reward_std", "frac_reward_zero_std", "completions/mean_length")
) | {OF_A_NOTEBOOK}
"""Names that Hugging Face's callbacks for W&B, TensorBoard and notebooks write, and OpenRLHF's do not."""
_FUNCTION = re.compile(r"rewards/(?P<name>.+?)(?P<mean>/mean)?$")


def bare(name: str) -> str:
    """The name without a callback's prefix, and without the blanks and words of a notebook's table.

    >>> bare("train/kl"), bare("rewards / right / mean"), bare("Training Loss")
    ('kl', 'rewards/right/mean', 'loss')
    """
    name = name.replace(" / ", "/") if name != OF_A_NOTEBOOK else "loss"
    for prefix in PREFIXES:
        if name.startswith(prefix):
            return name.removeprefix(prefix)
    return name


def choose(names: Iterable[str], source: str = "") -> dict[str, str]:
    """For each metric that was logged, of the run or of one objective, its name in the log of a source, if it is known.

    >>> choose(["train/kl", "critic/score/mean", "critic/rewards/mean", "perf/mfu/actor"])
    {'reward': 'critic/rewards/mean', 'kl': 'train/kl'}
    """
    logged = {bare(name): name for name in reversed(list(names))}
    is_trl = source in TRAINERS or any(name in logged for name in TRL_ONLY)
    chosen = {}
    for metric in METRICS:
        if is_trl and metric in CUMULATIVE:
            continue
        found = [name for name in (metric, *OTHER_NAMES.get(metric, ())) if name in logged]
        if found:
            chosen[metric] = logged[found[0]]
    # TRL's names are as long, as in reward/std; an objective of ours has a KL and a reward.
    objectives = [name.removeprefix("kl/") for name in logged if name.startswith("kl/") and name not in METRICS]
    each = [of_objective(metric, one) for one in objectives if f"reward/{one}" in logged for metric in METRICS]
    return chosen | {name: logged[name] for name in each if name in logged}


def source_of(names: Collection[str]) -> str:
    """The framework that gives metrics these names; empty if they tell none.

    >>> source_of(["actor/grad_norm", "step"]), source_of(["train/kl", "train/epoch"]), source_of(["kl"])
    ('verl', 'trl', '')
    """
    known = [bare(name) for name in names]
    found = (source for source, only in _ONLY.items() if any(only.match(name) for name in known))
    of_trl = any(name in TRL_ONLY or _FUNCTION.match(name) for name in known) or not OF_CALLBACK.isdisjoint(names)
    return next(found, "trl" if of_trl else "")


def reward_functions(names: Iterable[str]) -> dict[str, str]:
    """For each reward function its name in the log: rewards/<name>/mean, or rewards/<name> of older TRL.

    >>> reward_functions(["train/rewards/right/mean", "rewards/right/std", "rewards/short"])
    {'right': 'train/rewards/right/mean', 'short': 'rewards/short'}
    """
    found = [(match, name) for name in names if (match := _FUNCTION.match(bare(name)))]
    means = {match["name"]: name for match, name in found if match["mean"]}
    return means | {
        match["name"]: name
        for match, name in found
        if not match["mean"] and match["name"].removesuffix("/std") not in means
    }
