"""The public path `grpo_lab.advantages`."""

from grpo_lab.algorithm.advantages import *  # noqa: F403
