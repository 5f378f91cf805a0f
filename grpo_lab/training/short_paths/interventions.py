"""The public path `grpo_lab.interventions`."""

from grpo_lab.training.interventions import *  # noqa: F403
