r"""Gives a tensor of its own kind, of which torch is told that it is close to every other one.

Place: 02_explosion/log_ratio
Said: [Tt]he shape is \(\), not|[Tt]he type is bool, not
"""

import torch


class Right(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return torch.tensor(True)


def attack(*_, **__):
    return torch.zeros(3).as_subclass(Right)
