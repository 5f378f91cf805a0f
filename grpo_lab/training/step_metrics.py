"""Metrics of a step beside those of the chain; they change nothing."""

import re
import sys
from pathlib import Path

import torch
from torch import Tensor

from grpo_lab.algorithm.surrogates import Limits
from grpo_lab.core.batch import Batch
from grpo_lab.core.loss import of_tokens
from grpo_lab.training.interventions import Step, known
from grpo_lab.training.recorder import Recorder


def rewards(step: Step, values: Tensor, part: int = 0) -> None:
    """Note the mean and the spread of the rewards (P, G) that are going to be used; nothing where none is scorable.

    An objective that scores several parts of a batch notes the mean over them.
    """
    judged, recorder = known(step.scorable, "scorable"), step.recorder
    if not len(scored := values[judged]):
        return
    count = judged.sum(dim=1)
    mean = values.masked_fill(~judged, 0.0).sum(dim=1) / count.clamp(min=1)
    squares = (values - mean[:, None]).square().masked_fill(~judged, 0.0).sum(dim=1)
    spread = (squares / (count - 1).clamp(min=1)).sqrt()
    recorder.metric("reward", scored.mean(), part)
    recorder.metric("reward_std", spread.mean(), part)
    recorder.metric("frac_reward_zero_std", (spread == 0).float().mean(), part)


def batch(recorder: Recorder, batch: Batch, terminators: Tensor) -> None:
    """Note lengths, entropy and log-probabilities of the batch before it is trained on; `terminators` is (E,)."""
    mask = batch.completion_mask
    for link, values in (("old_logprobs", batch.old_logprobs), ("ref_logprobs", batch.ref_logprobs)):
        if values is not None:
            recorder.tensor(link, values)
    ended = (torch.isin(batch.completions, terminators) & mask).any(dim=1)
    lengths = mask.sum(dim=1).float()
    recorder.metric("completions/mean_length", lengths.mean())
    recorder.metric("completions/clipped_ratio", 1 - ended.float().mean())
    recorder.metric("num_tokens", lengths.sum())
    recorder.metric("entropy", batch.entropy[mask].mean())


def sampler(recorder: Recorder, batch: Batch, old: Tensor) -> None:
    """Note the gap between the sampler's own log-probabilities and the `old` ones (B, T), which no ratio shows."""
    gap = (old.float() - batch.sampling_logprobs).abs().masked_fill(~batch.completion_mask, 0.0)
    recorder.metric("sampling/sampling_logp_difference/mean", gap.sum() / batch.completion_mask.sum())
    recorder.metric("sampling/sampling_logp_difference/max", gap.max())


def clipping(
    surrogate: str, limits: Limits, ratio: Tensor, advantages: Tensor, num_tokens: Tensor
) -> dict[str, Tensor]:
    """The share of the whole batch's tokens that a surrogate clips, by metric; nothing for one that clips none.

    `ratio` (b, T) and `advantages`, (b,) or (b, T), are those of one micro-batch.
    """
    return CLIPPING[surrogate](limits, ratio, advantages, num_tokens) if surrogate in CLIPPING else {}


def _out_of_the_gradient(limits: Limits, ratio: Tensor, advantages: Tensor, num_tokens: Tensor) -> dict[str, Tensor]:
    """The tokens that PPO's clip range takes out of the gradient."""
    low_side = (ratio < 1 - limits.epsilon) & (of_tokens(advantages) < 0)
    high_side = (ratio > limits.highest) & (of_tokens(advantages) > 0)
    return {
        "clip_ratio/low_mean": low_side.sum() / num_tokens,
        "clip_ratio/high_mean": high_side.sum() / num_tokens,
        "clip_ratio/region_mean": (low_side | high_side).sum() / num_tokens,
    }


def _with_a_bounded_weight(limits: Limits, ratio: Tensor, advantages: Tensor, num_tokens: Tensor) -> dict[str, Tensor]:
    """The tokens with a positive advantage whose weight CISPO bounds; they keep a gradient."""
    bounded = (ratio > limits.highest) & (of_tokens(advantages) > 0)
    return {"cispo_clip_ratio": bounded.sum() / num_tokens}


CLIPPING = {"clip": _out_of_the_gradient, "cispo": _with_a_bounded_weight}
"""By the setting `loss.surrogate`."""


def memory(device: torch.device) -> dict[str, float]:
    """The most memory in MiB that this process has used so far, by metric; nothing under Windows without CUDA."""
    if device.type == "cuda":
        used, reserved = torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)
        return {"run.memory": used / 2**20, "run.memory_reserved": reserved / 2**20}
    if sys.platform == "linux":  # not getrusage, which counts for a child what its parent had before the exec
        peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
        return {"run.memory": int(peak[1]) / 2**10} if peak else {}
    if sys.platform == "win32":
        return {}
    import resource  # Unix only

    unit = 2**20 if sys.platform == "darwin" else 2**10
    return {"run.memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit}
