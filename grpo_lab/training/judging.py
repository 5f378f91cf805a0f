"""The calls of a step's judge: their metrics, the reason of those that failed, and the limit of their share."""

import torch

from grpo_lab.events import Stage, Verdict
from grpo_lab.tasks.judge_pool import Calls
from grpo_lab.training.attempt import Attempt, Refused
from grpo_lab.training.interventions import exceeds


def check(attempt: Attempt, calls: Calls | None, part: int = 0) -> None:
    """Note the share of failed calls and the seconds waited for them; nothing where there is no pool.

    An objective that scores several parts of a batch notes the mean over them.
    Raises Refused where the share is above `judge.max_failed`.
    """
    if calls is None:
        return
    recorder, limit = attempt.step.recorder, attempt.step.config.judge.max_failed
    recorder.metric("judge/failed", torch.tensor(calls.failed), part)
    recorder.metric("judge/time", torch.tensor(calls.waited), part)
    if not calls.failures:
        return
    refused = calls.failed > limit
    reason = f"{exceeds('share', calls.failed, limit)}; {calls.in_words()}" if refused else calls.in_words()
    verdict = Verdict.SKIP_STEP if refused else Verdict.KEEP
    attempt.record_action("judge", Stage.REWARDS, verdict, reason)
    if refused:
        raise Refused
