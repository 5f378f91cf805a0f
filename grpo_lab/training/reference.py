"""The reference of a run: the policy with its trained tensors as they were, so that no frozen weight exists twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor

from grpo_lab.training.wrong_formulas import reference_with_adapters_on


class Reference:
    """The policy as it is now: inside every later `with` block it has the weights that it has now.

    It keeps a copy of trained tensors only. With new adapters, of which one matrix is 0, that is the model with its
    adapters off, to the bit; with adapters that were trained before, it is the model as those had made it.
    """

    def __init__(self, policy: Any) -> None:
        self._trained = [parameter for parameter in policy.parameters() if parameter.requires_grad]
        self._others = [parameter.detach().clone() for parameter in self._trained]

    def parameters(self) -> Iterator[Tensor]:
        """The tensors that are kept, outside of a `with` block."""
        return iter(self._others)

    def __enter__(self) -> None:
        """Exchange the values; tensors change hands, and nothing is copied."""
        for place, parameter in enumerate(self._trained):
            parameter.data, self._others[place] = self._others[place], parameter.data

    def __exit__(self, *error: object) -> None:
        self.__enter__()


REFERENCES: dict[str, Callable[[Any], AbstractContextManager[None]]] = {
    "adapters_off": Reference,
    "adapters_on": reference_with_adapters_on,
}
"""By name, as `lora.reference` selects one: from a policy, the block in which it is the reference."""
