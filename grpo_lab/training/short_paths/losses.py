"""The public path `grpo_lab.losses`."""

from grpo_lab.algorithm.losses import *  # noqa: F403
