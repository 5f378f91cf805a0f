"""The public path `grpo_lab.kl`."""

from grpo_lab.algorithm.kl import *  # noqa: F403
