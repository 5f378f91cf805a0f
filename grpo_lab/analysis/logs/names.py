"""The names that trainers give to the metrics of `grpo_lab.metrics`, whose own names are TRL's."""

from collections.abc import Iterable

from grpo_lab.metrics import METRICS, OTHER_NAMES, of_objective

STEP_NAMES = ("step", "global_step", "_step", "training/global_step", "train/global_step", "iteration")
PREFIXES = ("train/", "rollout/")
"""The callbacks of TensorBoard and Weights & Biases put these before every name."""
CUMULATIVE = ("num_tokens",)
"""TRL counts these from the start of the run; here they are counted for each step."""
TRL_ONLY = (
    "epoch",
    "completions/mean_terminated_length",
    "completions/min_length",
    "train_runtime",
    "clip_ratio/low_min",
)


def _bare(name: str) -> str:
    """A name without a callback's prefix."""
    for prefix in PREFIXES:
        if name.startswith(prefix):
            return name.removeprefix(prefix)
    return name


def choose(names: Iterable[str]) -> dict[str, str]:
    """For each metric that was logged, of the run or of one objective, its name in the log.

    >>> choose(["train/kl", "critic/score/mean", "critic/rewards/mean", "perf/mfu/actor"])
    {'reward': 'critic/rewards/mean', 'kl': 'train/kl'}
    """
    logged = {_bare(name): name for name in reversed(list(names))}
    is_trl = any(name in logged for name in TRL_ONLY)
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
