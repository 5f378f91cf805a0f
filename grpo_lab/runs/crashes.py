"""Crashes: the kind, the operator and the explanation of an error's text, from data/crashes.toml."""

import re
from typing import NamedTuple

import torch

from grpo_lab.events import Crash
from grpo_lab.paths import data_tables, rows


class _Known(NamedTuple):
    pattern: str
    operator: str
    explanation: str


_CRASHES = rows(_Known, data_tables("crashes"))
"""By kind; the first pattern that matches counts."""
HANG, OUT_OF_MEMORY = "hang", "out-of-memory"
"""The kinds of a run that its watchdog ended, and of one that did not fit."""


def classify_crash(text: str) -> Crash:
    """The crash that an error's text tells of, on the CPU or on CUDA under Linux or Windows.

    >>> classify_crash("TensorCompare.cu:110: block: [0,0,0] Assertion `input[0] != 0` failed.").operator
    'torch.multinomial'
    >>> classify_crash("probability tensor contains either `inf`, `nan` or element < 0").kind
    'multinomial-cpu'
    """
    for kind, (pattern, operator, explanation) in _CRASHES.items():
        if re.search(pattern, text):
            line = next((line for line in text.splitlines() if re.search(pattern, line)), text)
            return Crash(kind, operator, line.strip(), explanation)
    last = text.strip().splitlines()[-1] if text.strip() else "no text"
    return Crash("unknown", "unknown", last, "Not a crash known here; the whole text is in the run folder.")


def context_lost(error: BaseException) -> bool:
    """Whether the CUDA context of this process is lost, with every tensor in it, so that only a new process can go on.

    An assertion fails between two calls, and the error that tells of it may be of any type and come from any later one.
    """
    if torch.cuda.is_initialized():
        try:
            torch.cuda.synchronize()
        except RuntimeError:
            return True
    return isinstance(error, torch.AcceleratorError)
