"""Answers to lab 3."""

FINE = "math.isfinite(norm) and norm <= limit"
REFUSED = 'Outcome(value, Verdict.SKIP_STEP, f"grad norm {norm:.4g}, limit {limit:g}")'
BOTH = "not_too_large & not_too_small"

WRONG = {
    "forecast": {"no letter": 'answer = "e"', "a number": "answer = 3"},
    "order": {
        "loss and gradient swapped": {'"large loss", "nan gradient"': '"nan gradient", "large loss"'},
        "clipped and weights swapped": {
            '"nan clipped",\n': '"nan weights",\n',
            '"nan weights", "nan logits"': '"nan clipped", "nan logits"',
        },
        "upside down": {"order = (": "order = tuple(reversed((", '"multinomial",\n)': '"multinomial",\n)))'},
        "seven": {'    "far token", ': "    "},
        "one twice": {'"far token", "large loss"': '"large loss", "large loss"'},
        "another name": {'"nan logits", "nan prob': '"logits", "nan prob'},
        "one text": 'order = "multinomial"',
        "a number": "order = 8",
        "None": "order = None",
        "numbers": "order = [1] * 8",
        "nothing": "order = ()",
    },
    "accepts": {
        "the first is not 0": "def accepts(probabilities):\n    return bool(probabilities.view(-1)[0] != 0)",
        "all above 0": {">= 0": "> 0"},
        "sums to 1": "def accepts(probabilities):\n    return bool((probabilities.sum(-1) - 1).abs().max() < 1e-5)",
        "no NaN": {BOTH: "~probabilities.isnan().any()"},
        "finite": {BOTH: "probabilities.isfinite().all()"},
        "none below 0": {BOTH: "~(probabilities < 0).any()"},
        "none too large": {BOTH: "not_too_large"},
        "none too small": {BOTH: "not_too_small"},
        "nan < 0": {BOTH: "~(probabilities < 0).any() & ~(probabilities == math.inf).any()"},
        "either": {BOTH: "not_too_large | not_too_small"},
        "only the first row": {
            "probabilities.max()": "probabilities[0].max()",
            "probabilities.min()": "probabilities[0].min()",
        },
        "one answer a row": {"bool(": "(", "max()": "amax(-1)", "min()": "amin(-1)"},
        "upside down": {f"bool({BOTH})": f"not bool({BOTH})"},
        "always": {BOTH: "True"},
        "never": {BOTH: "False"},
        "returns None": {"return": "found ="},
    },
    "face": {
        "the words come first": {
            '    if "input': '    if "probability tensor" in text:\n        return cpu\n    if "input'
        },
        "the file decides": {
            '"Assertion `probability tensor contains either"': '"TensorCompare.cu"',
            '"input[0] != 0"': '"never"',
        },
        "any assertion": {"Assertion `probability tensor contains either": "Assertion `"},
        "any device-side assert": {"input[0] != 0": "device-side"},
        "never other": {'else "other"': "else cpu"},
        "any CUDA": {'else "other"': 'else linux if "CUDA" in text else "other"'},
        "Linux and Windows swapped": {"return windows": "return linux", "return linux": "return windows"},
        "always other": {"    cpu,": '    text = ""\n    cpu,'},
        "returns None": {"return cpu": "found = cpu"},
    },
    "finite_first": {
        "nan > 10": {FINE: "not norm > limit"},
        "only NaN": {FINE: "not math.isnan(norm)"},
        "only finite": {FINE: "math.isfinite(norm)"},
        "inf passes": {FINE: "norm <= limit or norm == math.inf"},
        "skip every step": {FINE: "False"},
        "guard nothing": {FINE: "True"},
        "refuses 0": {FINE: "0 < norm <= limit"},
        "another limit": {"10.0": "100.0"},
        "in silence": {REFUSED: "Outcome(value, Verdict.SKIP_STEP)"},
        "no number": {'f"grad norm {norm:.4g}, limit {limit:g}"': '"too large"'},
        "only says so": {"SKIP_STEP": "KEEP"},
        "ends the run": {"SKIP_STEP": "STOP"},
        "another guard": "from grpo_lab.training.guards import SkipNonfinite as FiniteFirst",
        "as reported": """
import functools

from grpo_lab.training.guards import SkipSpikes

FiniteFirst = functools.partial(SkipSpikes, nan_passes=True)
""",
        "returns None": {"return Outcome(value)": "return None"},
    },
    "epsilon": {
        "rounds to 0": {"1e-4": "2e-8"},
        "as usual": {"1e-4": "1e-8"},
        "0": {"1e-4": "0"},
        "survives rounding": {"1e-4": "1e-7"},
        "still too far": {"1e-4": "1e-5"},
        "divides every move away": {"1e-4": "1.0"},
        "overflows": {"1e-4": "1e6"},
        "below 0": {"1e-4": "-1e-4"},
        "NaN": {"1e-4": 'float("nan")'},
        "inf": {"1e-4": 'float("inf")'},
        "True": {"1e-4": "True"},
        "a text": {"1e-4": '"1e-4"'},
        "None": {"1e-4": "None"},
    },
}
ANOTHER_WAY = {
    "forecast": {"another letter": 'answer = "a"'},
    "order": {"a list": {"order = (": "order = list((", '"multinomial",\n)': '"multinomial",\n))'}},
    "accepts": {
        "in words": {f"bool({BOTH})": "bool((probabilities.isfinite() & (probabilities >= 0)).all())"},
        "a tensor": {f"bool({BOTH})": BOTH},
        "asks torch": """
import torch


def accepts(probabilities):
    try:
        torch.multinomial(probabilities, 1)
    except RuntimeError:
        return False
    return True
""",
    },
    "face": {
        "by regular expressions": r"""
import re

FACES = {
    r"Assertion `probability tensor": "multinomial-cuda-linux",
    r"input\[0\] != 0": "multinomial-cuda-windows",
    r"probability tensor": "multinomial-cpu",
}


def face(text):
    return next((name for pattern, name in FACES.items() if re.search(pattern, text)), "other")
"""
    },
    "finite_first": {
        "in one comparison": {FINE: "norm <= limit"},
        "the registered guard": "from grpo_lab.training.guards import SkipSpikes as FiniteFirst",
    },
    "epsilon": {"ten times as large": {"1e-4": "1e-3"}},
}
