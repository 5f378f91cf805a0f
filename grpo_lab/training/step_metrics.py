"""Metrics of a step beside those of the chain; they change nothing."""

import re
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from grpo_lab.core.batch import Batch
from grpo_lab.core.hooks import Stage
from grpo_lab.events import LinkNote
from grpo_lab.training.interventions import ObjectiveCoefficients, Step, known
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


def of_updates(ctx: Step, scaler: Any) -> dict[str, float]:
    """The coefficients as used, the loss scale, and the largest change of a weight, as far as each is known."""
    use, move = ctx.coefficients, ctx.largest_move()
    found = {"learning_rate": use.learning_rate, "beta": use.beta} if use else {}
    if isinstance(use, ObjectiveCoefficients):
        each = {f"beta/{name}": beta for name, beta in use.betas.items()}
        found |= {"beta": statistics.fmean(each.values()), **each}
    found |= {"loss_scale": scaler.get_scale()} if scaler.is_enabled() else {}
    return found if move is None else {**found, "weights/max_move": move}


def last_weights(links: Sequence[LinkNote]) -> LinkNote | None:
    """The note of the weights after the last update of a step; None where it had none."""
    return next((note for note in reversed(links) if note.link == Stage.WEIGHTS), None)


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
