"""The metrics of a step and the links of the chain: label, unit, healthy range and meaning of each."""

import math
from typing import NamedTuple


class Metric(NamedTuple):
    """How one number of a step is shown and judged."""

    label: str
    unit: str
    low: float
    high: float
    meaning: str


_ANY = math.inf


METRICS: dict[str, Metric] = {
    "reward": Metric("reward", "", -_ANY, _ANY, "mean reward of the completions that could be scored"),
    "reward_std": Metric("reward spread", "", -_ANY, _ANY, "mean over groups of the rewards' standard deviation"),
    "frac_reward_zero_std": Metric("groups without spread", "share", 0, 0.9, "groups whose rewards are all equal"),
    "kl": Metric("KL to reference", "nats", -0.01, 1, "mean KL estimate per token, by the estimator in the loss"),
    "kl/exact": Metric(
        "exact KL", "nats", 0, 1, "mean KL(policy || reference) per token over the whole vocabulary (run.exact_kl)"
    ),
    "entropy": Metric("entropy", "nats", 0.01, _ANY, "mean entropy of the next-token distribution while sampling"),
    "grad_norm": Metric("gradient norm", "", 0, 10, "before clipping; the largest of the step's updates"),
    "loss": Metric("loss", "", -10, 10, "the number that was differentiated; mean over the step's updates"),
    "learning_rate": Metric("learning rate", "", 0, _ANY, "as the optimizer used it"),
    "beta": Metric("beta", "", 0, _ANY, "weight of the KL penalty as used"),
    "ratio/max": Metric("largest ratio", "", 0, 5, "exp of the largest log-ratio of a trained token"),
    "log_ratio/max": Metric("largest log-ratio", "nats", 0, 1.6, "largest magnitude over trained tokens"),
    "clip_ratio/low_mean": Metric("clipped low", "share", 0, 0.5, "tokens whose ratio was below the clip range"),
    "clip_ratio/high_mean": Metric("clipped high", "share", 0, 0.5, "tokens whose ratio was above the clip range"),
    "clip_ratio/region_mean": Metric("clipped", "share", 0, 0.5, "tokens outside the clip range on either side"),
    "completions/mean_length": Metric("completion length", "tokens", 1.01, _ANY, "tokens trained per completion"),
    "completions/clipped_ratio": Metric("cut off", "share", 0, 0.5, "completions that reached the length limit"),
    "num_tokens": Metric("tokens", "tokens", 1, _ANY, "tokens trained in this step"),
    "sampling/sampling_logp_difference/mean": Metric(  # a top_p of 0.85 alone explains log(1 / 0.85) = 0.16
        "sampler mismatch", "nats", 0, 0.2, "mean gap between the sampler's log-probability and the trained one"
    ),
    "sampling/sampling_logp_difference/max": Metric(
        "largest sampler mismatch",
        "nats",
        0,
        1,
        "largest gap between the sampler's log-probability and the trained one",
    ),
    "weights/max_move": Metric("largest move", "", 0, 0.1, "largest change of any single weight since the snapshot"),
    "weights/nonfinite": Metric("broken weights", "weights", 0, 0, "weights that are NaN or inf after the step"),
    "loss_scale": Metric("loss scale", "", 1, _ANY, "GradScaler's factor (precision fp16 only)"),
    "step_time": Metric("step time", "s", 0, _ANY, "wall time of the step"),
}


class Link(NamedTuple):
    """How one link is shown: its label, and the magnitude above which it is a warning."""

    label: str
    warning: float


LINKS: dict[str, Link] = {
    "probabilities": Link("sampling probabilities", 1.01),
    "rewards": Link("rewards", 1e3),
    "advantages": Link("advantages", 10),
    "logits": Link("logits", 1e3),
    "old_logprobs": Link("old logprobs", 30),
    "ref_logprobs": Link("reference logprobs", 30),
    "logprobs": Link("logprobs", 30),
    "log_ratio": Link("log-ratio", 5),
    "ratio": Link("ratio", 150),
    "kl_delta": Link("reference - policy", 10),
    "loss": Link("loss", 10),
    "log_ratio_gradient": Link("gradient at log-ratio", 10),
    "gradients": Link("gradients", 10),
    "clipped_gradients": Link("clipped gradients", 10),
    "moments": Link("optimizer moments", 1e4),
    "weights": Link("weights", 1e4),
}
"""The chain in order; torch.multinomial, its end, shows as a crash."""
