"""Crashes: the kind, the operator and the explanation of an error's text."""

import re

from grpo_lab.events import Crash

_MULTINOMIAL = "torch.multinomial"
_CHECKED = (
    "torch.multinomial checks that every probability is finite and not negative. The one-element result of that check "
    "is what is asserted"
)
_LINUX = f"{_CHECKED}, on CUDA under Linux with this text. The process has lost its CUDA context."
_WINDOWS = (
    f"{_CHECKED} as `input[0] != 0`, which does not mean that the first probability must not be 0. "
    "The process has lost its CUDA context."
)
_CPU = f"{_CHECKED}; on the CPU it raises."
_ZERO_SUM = "A row of probabilities sums to 0. softmax never makes one: something set probabilities to 0 after it."
_CUDA = "A kernel's assertion failed; the process has lost its CUDA context. CUDA_LAUNCH_BLOCKING=1 names the call."
_MEMORY = r"out of memory|OutOfMemory|MemoryError|(can't allocate|not enough) memory"
_CRASHES = (
    (r"Assertion `probability tensor contains either", "multinomial-cuda-linux", _MULTINOMIAL, _LINUX),
    (r"Assertion `?input\[0\] != 0`? failed", "multinomial-cuda-windows", _MULTINOMIAL, _WINDOWS),
    (r"probability tensor contains either", "multinomial-cpu", _MULTINOMIAL, _CPU),
    (r"invalid multinomial distribution", "multinomial-zero-sum", _MULTINOMIAL, _ZERO_SUM),
    (r"device-side assert triggered", "cuda-assert", "an unknown CUDA kernel", _CUDA),
    (_MEMORY, "out-of-memory", "an allocation", "Fewer prompts or a smaller model."),
)
"""Pattern, kind, operator and explanation; the first pattern that matches counts."""


def classify_crash(text: str) -> Crash:
    """The crash that an error's text tells of, on the CPU or on CUDA under Linux or Windows.

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
