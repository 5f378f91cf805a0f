"""The public path `grpo_lab.logprobs`."""

from grpo_lab.algorithm.losses import entropies  # noqa: F401
from grpo_lab.core.logprobs import *  # noqa: F403
from grpo_lab.training.large_vocabulary import head_logprobs  # noqa: F401
