"""Answers to lab 7."""

DIFFERENCE, KEEP = "difference = logprobs - batch.old_logprobs", "difference.isfinite() & batch.completion_mask"
FILLED = "difference.masked_fill(~keep, 0.0)"
BY_NAME = """
from grpo_lab.training.registry import FORMULAS


def log_ratio(logprobs, batch):
    return FORMULAS["log_ratio"][{!r}](logprobs, batch)
"""
LARGEST = "math.log(torch.finfo(getattr(torch, dtype)).max)"

WRONG = {
    "forecast": {"no letter": 'answer = "e"', "a number": "answer = 3"},
    "largest": {
        "the largest number": {LARGEST: "torch.finfo(getattr(torch, dtype)).max"},
        "base 10": {"math.log(": "math.log10("},
        "base 2": {"math.log(": "math.log2("},
        "the smallest": {".max": ".tiny"},
        "sign flipped": {LARGEST: f"-{LARGEST}"},
        "always fp32": {"getattr(torch, dtype)": "torch.float32"},
        "bf16 as fp16": {"getattr(torch, dtype)": 'torch.float16 if "16" in dtype else getattr(torch, dtype)'},
        "returns None": {"return": "found ="},
    },
    "scaler": {
        "never grows": {"scale * 2": "scale"},
        "never shrinks": {"(scale / 2, 0)": "(scale, 0)"},
        "an overflow does not reset": {"(scale / 2, 0)": "(scale / 2, good)"},
        "grows at every update after": {"good == interval": "good >= interval", "scale * 2, 0": "scale * 2, good"},
        "one update late": {"good == interval": "good == interval + 1"},
        "one update early": {"good == interval": "good == max(1, interval - 1)"},
        "quarters": {"scale / 2": "scale / 4"},
        "upside down": {"scale / 2": "scale * 2", "scale * 2, 0\n": "scale / 2, 0\n"},
        "one number": {"return found": "return found[-1]"},
        "the scale before": {
            "return found": "return [first, *found[:-1]]",
            "found, good = [], 0": "first, found, good = scale, [], 0",
        },
        "counts overflows": {'== "x"': '!= "x"'},
        "returns None": {"return found": "found"},
    },
    "masked": {
        "loss.log_ratio=old": BY_NAME.format("old"),
        "loss.log_ratio=reference": BY_NAME.format("reference"),
        "times the mask": {FILLED: "difference * keep"},
        "nan_to_num": {FILLED: "torch.nan_to_num(difference)", "def ": "import torch\n\n\ndef "},
        "nan_to_num to 0": {FILLED: "torch.nan_to_num(difference, 0.0, 0.0, 0.0)", "def ": "import torch\n\n\ndef "},
        "only what is trained": {KEEP: "batch.completion_mask"},
        "only what is finite": {KEEP: "difference.isfinite()"},
        "only NaN": {KEEP: "~difference.isnan() & batch.completion_mask"},
        "the whole row": {KEEP: f"({KEEP}) & difference.isfinite().all(dim=1, keepdim=True)"},
        "detached": {DIFFERENCE: "difference = logprobs.detach() - batch.old_logprobs"},
        "sign flipped": {DIFFERENCE: "difference = batch.old_logprobs - logprobs"},
        "the ratio": {FILLED: f"{FILLED}.exp()"},
        "1 for 0": {"(~keep, 0.0)": "(~keep, 1.0)"},
        "clamped": {FILLED: "difference.clamp(-5, 5)"},
        "zero": {FILLED: "0 * logprobs.masked_fill(~keep, 0.0)"},
        "returns None": {"return": "found ="},
    },
    "remedy": {
        "guard nothing": "guards = ()",
        "one text": 'guards = "drop_nonfinite_samples"',
        "no such guard": 'guards = ("drop_nonfinite_sample",)',
        "a guard of one's own": 'guards = ("mine.py:Mine",)',
        "a number": "guards = (1,)",
        "None": "guards = None",
        "a clamp keeps NaN": 'guards = ("clamp_log_ratio",)',
        "a clip spreads NaN": 'guards = ("clip_gradients",)',
        "nan > 10": 'guards = {"skip_spikes": {"nan_passes": True}}',
        "skips nearly every step": 'guards = ("skip_nonfinite",)',
        "skip every step": 'guards = {"drop_nonfinite_samples": {}, "skip_spikes": {"threshold": 1e-9}}',
        "a loss that is NaN": 'guards = ("clamp_log_ratio", "clamp_kl")',
    },
    "cures": {
        "none": "cures = ()",
        "one too many": 'cures = ("a", "h")',
        "another one": 'cures = ("a",)',
        "all": 'cures = tuple("abcdefgh")',
        "no letter": 'cures = ("i",)',
        "the override": 'cures = ("guards.skip_spikes=on",)',
        "a number": "cures = (1,)",
        "None": "cures = None",
    },
}
ANOTHER_WAY = {
    "forecast": {"another letter": 'answer = "a"'},
    "largest": {
        "the logarithm of torch": {
            LARGEST: "torch.tensor(torch.finfo(getattr(torch, dtype)).max, dtype=torch.float64).log().item()"
        }
    },
    "scaler": {
        "a tuple": {"return found": "return tuple(found)"},
        "torch's own": """
import torch


def scales(overflowed, scale, interval):
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=interval)
    for mark in overflowed:
        scaler.scale(weight.sum()).backward()
        weight.grad = torch.full((1,), float("inf") if mark == "x" else 1.0)
        scaler.step(optimizer)
        scaler.update()
        yield scaler.get_scale()
""",
    },
    "masked": {
        "before subtracting": {
            DIFFERENCE: "",
            KEEP: "logprobs.isfinite() & batch.old_logprobs.isfinite() & batch.completion_mask",
            FILLED: "logprobs.masked_fill(~keep, 0.0) - batch.old_logprobs.masked_fill(~keep, 0.0)",
        },
        "with where": {FILLED: "difference.where(keep, 0.0)"},
    },
    "remedy": {"one more": 'guards = ["drop_nonfinite_samples", "skip_nonfinite"]'},
    "cures": {"a list": 'cures = ["h"]', "a text": 'cures = "h"'},
}
