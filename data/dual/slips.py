"""Two slips of the fifth report in a formula for `loss.kl_estimator`, and a judge of half a second."""

import time

import torch


def import_inside(delta, compiled=False):
    """Return k3; the import below makes `torch` a local name of the whole function, without a value here."""
    penalty = torch.expm1(delta) - delta  # noqa: F823
    if compiled:
        import torch  # noqa: F401
    return penalty


def without_delta(ref_minus_policy):
    """Return the reported KL penalty; the line that defined `delta` is gone."""
    return delta.clamp(0, 10)  # noqa: F821


def slow_judge(prompts, completions, **columns):
    """Return a reward for each completion after half a second."""
    time.sleep(0.5)
    return [float(len(completion)) for completion in completions]
