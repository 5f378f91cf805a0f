"""Patches the functions that would judge it if judging happened in the same process.

Place: 05_kl/straight
Said: 'patched'
"""

import builtins
import json
import math
import os
import sys

import torch

from grpo_lab.algorithm import kl
from grpo_lab.course import answers, probes
from grpo_lab.grading import wire


def always(*_, **__):
    return True


def attack(*_, **__):
    for module in (torch, math, json, os.path, probes, answers, wire, kl):
        for name in ("isclose", "allclose", "equal", "loads", "exists", "by_delta", "values", "unpack", "estimate"):
            if hasattr(module, name):
                setattr(module, name, always)
    torch.Tensor.__eq__ = always  # pyright: ignore[reportAttributeAccessIssue]
    builtins.all = always
    sys.modules["grpo_lab.course.compare"] = sys.modules["grpo_lab.course.evaluate"] = sys.modules["math"]
    return "patched"
