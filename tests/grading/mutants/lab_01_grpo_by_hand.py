"""Answers to lab 1."""

MEAN, STD = "rewards.mean(dim=1, keepdim=True)", "rewards.std(dim=1, keepdim=True)"
RATIO, WORSE = "(logprobs - old_logprobs).exp()", "torch.min(ratio * advantages, clipped * advantages)"
BY_SEQUENCE = """    if how == "sequence":
        return (values.sum(dim=1) / mask.sum(dim=1)).mean()
"""
BY_SCALE = """
from grpo_lab.training.registry import FORMULAS


def advantages(rewards, scorable=None):
    return FORMULAS["advantage_scale"][{!r}](rewards)
"""

WRONG = {
    "by_hand": {
        "std over G": {"right_one = 1.5": "right_one = 1.732"},
        "the sign of a wrong one": {"wrong_one = -0.5": "wrong_one = 0.5"},
        "no exp": {"ratio = 1.649": "ratio = 0.5"},
        "not clipped": {"loss_right = -1.8": "loss_right = -2.474"},
        "sign flipped": {"loss_right = -1.8": "loss_right = 1.8"},
        "clipped where the minimum is not": {"loss_wrong = 0.824": "loss_wrong = 0.6"},
        "a text": {"loss_wrong = 0.824": 'loss_wrong = "0.824"'},
        "True": {"right_one = 1.5": "right_one = True"},
    },
    "advantages": {
        **{
            f"loss.advantage_scale={name}": BY_SCALE.format(name)
            for name in ("group_naive", "batch", "none", "leave_one_out", "global", "reward")
        },
        "biased std": {STD: STD.replace("True", "True, correction=0")},
        "sign flipped": {"return (centred": "return (-centred"},
        "the mean of everything": {MEAN: "rewards.mean()"},
        "over the prompts": {MEAN: MEAN.replace("1", "0"), STD: STD.replace("1", "0")},
        "the variance": {STD: STD.replace("std", "var")},
        "the rewards": {"return (centred": "return rewards\n    return (centred"},
        "equal rewards not looked for": {".masked_fill(equal, 0.0)": ""},
        "1 for equal rewards": {"(equal, 0.0)": "(equal, 1.0)"},
        "a large eps": {"eps=1e-6": "eps=1e-2"},
        "zeros": {"rewards.shape[1] == 1": "True"},
        "returns None": {"return (centred": "found = (centred"},
    },
    "flipped": {"no letter": 'answer = "e"', "words": 'answer = "the loss"'},
    "policy_loss": {
        "sign flipped": {"return -torch": "return torch"},
        "no exp": {RATIO: "1 + logprobs - old_logprobs"},
        "log-ratio for ratio": {RATIO: "logprobs - old_logprobs"},
        "upside down": {RATIO: "(old_logprobs - logprobs).exp()"},
        "max for min": {"torch.min": "torch.max"},
        "not clipped": {WORSE: "(ratio * advantages)"},
        "clipped only": {WORSE: "(clipped * advantages)"},
        "clipped above only": {"clamp(1 - epsilon, 1": "clamp(0, 1"},
        "epsilon_high forgotten": {"clamp(1 - epsilon, 1 + epsilon_high)": "clamp(1 - epsilon, 1 + epsilon)"},
        "epsilon_high on both sides": {"clamp(1 - epsilon, 1": "clamp(1 - epsilon_high, 1"},
        "an advantage a column": {"[:, None]": "[None, :]"},
        "absolute advantage": {"advantages[:, None]": "advantages.abs()[:, None]"},
        "ratio without gradient": {RATIO: f"{RATIO}.detach() + 0 * logprobs"},
        "the mean": {"clipped * advantages)": "clipped * advantages).mean()"},
        "zero loss": {"return -torch": "return -0 * torch"},
        "returns None": {"return -torch": "loss = -torch"},
    },
    "slope": {
        "forwards": {"f(x - h)) / (2 * h)": "f(x)) / h"},
        "backwards": {"(f(x + h) -": "2 * (f(x) -"},
        "2 forgotten": {"(2 * h)": "h"},
        "h forgotten": {"(2 * h)": "2"},
        "rise only": {" / (2 * h)": ""},
        "a step of its own": {"return": "h = 1e-4\n    return"},
        "sign flipped": {"return (": "return -("},
        "returns None": {"return": "found ="},
    },
    "aggregate": {
        "mask ignored": {"per_token.masked_fill(mask == 0, 0.0)": "per_token", "mask.sum() if": "mask.numel() if"},
        "mask multiplied": {"per_token.masked_fill(mask == 0, 0.0)": "per_token * mask"},
        "NaN to 0, mask ignored": {"per_token.masked_fill(mask == 0, 0.0)": "per_token.nan_to_num()"},
        "mean over padding": {"mask.sum() if": "mask.numel() if"},
        "token for sequence": {BY_SEQUENCE: "", '== "token"': '!= "constant"'},
        "sequence for token": {'if how == "sequence"': 'if how != "constant"'},
        "token for constant": {' if how == "token" else mask.numel()': ""},
        "sequences by their width": {"/ mask.sum(dim=1)).mean()": "/ mask.shape[1]).mean()"},
        "sum": {"/ (mask.sum()": "/ (1"},
        "sum of sequence means": {".mean()": ".sum()"},
        "completions forgotten": {"mask.numel()": "mask.shape[1]"},
        "sign flipped": {"return values.sum() /": "return -values.sum() /"},
        "zero loss": {"values = ": "values = 0 * "},
        "returns None": {"return values": "found = values"},
    },
}
ANOTHER_WAY = {
    "by_hand": {"three digits": {"loss_right = -1.8": "loss_right = -1.801"}},
    "advantages": {
        "in two steps": """
import torch


def advantages(rewards, scorable=None):
    if rewards.shape[1] < 2:
        return rewards * 0
    variance, mean = torch.var_mean(rewards, dim=1, keepdim=True)
    spread = rewards.max(dim=1, keepdim=True).values - rewards.min(dim=1, keepdim=True).values
    return torch.where(spread > 0, (rewards - mean) / (variance.sqrt() + 1e-8), 0.0)
""",
        "loss.advantage_scale=group": BY_SCALE.format("group"),
    },
    "flipped": {"another letter": 'answer = "a"'},
    "policy_loss": {
        "the larger loss": """
import torch


def policy_loss(logprobs, old_logprobs, advantages, epsilon=0.2, epsilon_high=0.2):
    ratio = logprobs.exp() / old_logprobs.exp()
    losses = [-advantages.unsqueeze(1) * r for r in (ratio, ratio.clamp(1 - epsilon, 1 + epsilon_high))]
    return torch.stack(losses).amax(dim=0)
"""
    },
    "slope": {
        "the mean of two slopes": """
def slope(f, x, h):
    return ((f(x + h) - f(x)) / h + (f(x) - f(x - h)) / h) / 2
"""
    },
    "aggregate": {
        "row by row": """
import torch


def aggregate(per_token, mask, how):
    if how == "sequence":
        return torch.stack([row[kept.bool()].mean() for row, kept in zip(per_token, mask, strict=True)]).mean()
    kept = per_token[mask == 1]
    return kept.mean() if how == "token" else kept.sum() / (mask.shape[0] * mask.shape[1])
"""
    },
}
