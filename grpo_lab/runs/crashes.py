"""What the text of a crash means."""

from __future__ import annotations

import re

from grpo_lab.events import Crash

_MULTINOMIAL = "torch.multinomial"
_NOT_FINITE = (
    "torch.multinomial checks that every probability is finite and not negative. The one-element result of that check "
    "is what is asserted"
)
_CRASHES: tuple[tuple[str, str, str, str], ...] = (
    (
        r"Assertion `probability tensor contains either",
        "multinomial-cuda-linux",
        _MULTINOMIAL,
        f"{_NOT_FINITE}, on CUDA under Linux with this text. The process has lost its CUDA context.",
    ),
    (
        r"Assertion `?input\[0\] != 0`? failed",
        "multinomial-cuda-windows",
        _MULTINOMIAL,
        f"{_NOT_FINITE} as `input[0] != 0`, which does not mean that the first probability must not be 0. "
        "The process has lost its CUDA context.",
    ),
    (
        r"probability tensor contains either",
        "multinomial-cpu",
        _MULTINOMIAL,
        f"{_NOT_FINITE}; on the CPU it raises.",
    ),
    (
        r"invalid multinomial distribution",
        "multinomial-zero-sum",
        _MULTINOMIAL,
        "A row of probabilities sums to 0. softmax never makes one: something set probabilities to 0 after it.",
    ),
    (
        r"device-side assert triggered",
        "cuda-assert",
        "an unknown CUDA kernel",
        "A kernel's assertion failed; the process has lost its CUDA context. CUDA_LAUNCH_BLOCKING=1 names the call.",
    ),
    (
        r"out of memory|OutOfMemory|MemoryError|(can't allocate|not enough) memory",
        "out-of-memory",
        "an allocation",
        "Fewer prompts or a smaller model.",
    ),
)


def classify_crash(text: str) -> Crash:
    """What a crash text means: the CPU's, CUDA's on Linux and on Windows, and a few others.

    >>> classify_crash("TensorCompare.cu:110: block: [0,0,0] Assertion `input[0] != 0` failed.").operator
    'torch.multinomial'
    >>> classify_crash("probability tensor contains either `inf`, `nan` or element < 0").kind
    'multinomial-cpu'
    """
    for pattern, kind, operator, explanation in _CRASHES:
        if re.search(pattern, text):
            line = next((line for line in text.splitlines() if re.search(pattern, line)), text)
            return Crash(kind, operator, line.strip(), explanation)
    last = text.strip().splitlines()[-1] if text.strip() else "no text"
    return Crash("unknown", "unknown", last, "Not a crash known here; the whole text is in the run folder.")
