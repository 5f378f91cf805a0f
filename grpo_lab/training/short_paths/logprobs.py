"""The public path `grpo_lab.logprobs`."""

from grpo_lab.core.logprobs import *  # noqa: F403
