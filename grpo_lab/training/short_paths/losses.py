"""The public path `grpo_lab.losses`."""

from grpo_lab.algorithm.losses import *  # noqa: F403
from grpo_lab.core.loss import *  # noqa: F403
