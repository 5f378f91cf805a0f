"""The public path `grpo_lab.logprobs`."""

from grpo_lab.algorithm.logprobs import *  # noqa: F403
