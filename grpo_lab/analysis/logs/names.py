"""The names that trainers give to the metrics of `grpo_lab.metrics`, whose own names are TRL's."""

from collections.abc import Iterable

from grpo_lab.metrics import METRICS

OTHER_NAMES: dict[str, tuple[str, ...]] = {
    "reward": ("critic/rewards/mean", "critic/score/mean", "objective/scores"),
    "reward_std": ("critic/rewards/std",),
    "kl": ("actor/kl_loss", "actor/reward_kl_penalty", "critic/kl", "objective/kl"),
    "entropy": ("actor/entropy", "actor/entropy_loss", "policy/entropy_avg"),
    "grad_norm": ("actor/grad_norm",),
    "loss": ("actor/loss", "actor/pg_loss", "loss/policy_avg"),
    "learning_rate": ("actor/lr", "lr"),
    "beta": ("actor/kl_coef", "actor/reward_kl_penalty_coeff", "critic/kl_coeff"),
    "ratio/max": ("sampling/importance_sampling_ratio/max",),
    "clip_ratio/region_mean": ("clip_ratio", "actor/pg_clipfrac"),
    "completions/mean_length": ("completion_length", "response_length/mean"),
    "completions/clipped_ratio": ("response_length/clip_ratio",),
    "sampling/sampling_logp_difference/mean": ("training/rollout_probs_diff_mean",),
    "sampling/sampling_logp_difference/max": ("training/rollout_probs_diff_max",),
    "step_time": ("timing_s/step", "perf/time_per_step"),
}
"""For each metric its names in verl, older versions of TRL, and PPO trainers, the closest first.

verl's `rollout_probs_diff` compares probabilities, and TRL's metric log-probabilities. A difference of probabilities is
never the larger one, so a mismatch that it shows is real.
"""
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
    """For each metric that was logged, its name in the log.

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
    return chosen
