"""A fault for measurements of memory, named by this file: every completion gets as long as it may be."""

from dataclasses import dataclass

from torch import Tensor

from grpo_lab.core.hooks import Stage
from grpo_lab.training.interventions import Intervention, Outcome, Step


@dataclass(frozen=True)
class NeverEnd(Intervention):
    """Takes the end tokens out of the distribution that is sampled from."""

    stage = Stage.PROBABILITIES

    end: int = 0
    """The tokenizer's end token; the model names its own."""

    def __call__(self, value: Tensor, step: Step) -> Outcome:
        ids = step.policy.generation_config.eos_token_id
        value = value + 1e-9  # something is left where only an end was likely
        value[:, [self.end, *(ids if isinstance(ids, list) else [self.end if ids is None else ids])]] = 0.0
        return Outcome(value)
