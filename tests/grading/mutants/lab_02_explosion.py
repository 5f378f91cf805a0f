"""Answers to lab 2."""

CLIPPED = "0.0 if clipped_above or clipped_below else -ratio * advantage"
BY_NAME = """
from grpo_lab.training.registry import FORMULAS


def log_ratio(logprobs, batch):
    return FORMULAS["log_ratio"][{!r}](logprobs, batch)
"""
DIFFERENCE = "logprobs - batch.old_logprobs"
BOUND, K3 = "delta = delta.clamp(-limit, limit)", "return torch.expm1(delta) - delta"

WRONG = {
    "forecast": {"no letter": 'answer = "e"', "a number": "answer = 3"},
    "gradient": {
        "never clipped": {CLIPPED: "-ratio * advantage"},
        "clipped above only": {" or clipped_below": ""},
        "clipped below only": {"clipped_above or ": ""},
        "clipped on both sides": {
            "clipped_above = advantage > 0 and": "clipped_above =",
            "clipped_below = advantage < 0 and": "clipped_below =",
        },
        "the other two sides": {
            "advantage > 0 and": "advantage < 0 and",
            "advantage < 0 and ratio": "advantage > 0 and ratio",
        },
        "sign flipped": {"else -ratio": "else ratio"},
        "the value of the ratio": {CLIPPED: "ratio"},
        "without the advantage": {"-ratio * advantage": "-ratio * math.copysign(1, advantage)"},
        "by the ratio": {"-ratio * advantage": "-advantage"},
        "no exp": {"math.exp(log_ratio)": "1 + log_ratio"},
        "the slope of the clip range": {"return 0.0 if": "return -(1 + epsilon) * advantage if"},
        "another range": {"epsilon=0.2": "epsilon=0.4"},
        "clipped from 1 on, below": {"ratio < 1 - epsilon": "ratio < 1"},
        "zero": {f"return {CLIPPED}": "return 0.0"},
        "returns None": {"return": "found ="},
    },
    "reported": {
        "base 10": "nats = 8.056",
        "base 2": "nats = 26.76",
        "the ratio itself": "nats = 113_818_385",
        "sign flipped": "nats = -18.55",
        "nearly": "nats = 18.6",
        "NaN": 'nats = float("nan")',
        "inf": 'nats = float("inf")',
        "True": "nats = True",
        "a text": 'nats = "18.55"',
        "None": "nats = None",
    },
    "culprit": {
        "the furthest": """
def culprit(log_ratio, advantages, beta, epsilon=0.2):
    row, token = divmod(int(log_ratio.abs().argmax()), log_ratio.shape[1])
    return row, token, "ratio" if log_ratio[row, token] > 0 else "kl"
""",
        "without the clip": {".masked_fill(clipped, 0.0)": ""},
        "clipped for any A": {"(a > 0) & (ratio >": "(a == a) & (ratio >"},
        "without beta": {"beta * ": ""},
        "without the advantage": {"(ratio * a).abs()": "ratio"},
        "the KL the other way round": {"torch.exp(-log_ratio)": "torch.exp(log_ratio)"},
        "the value of the KL": {"(torch.exp(-log_ratio) - 1).abs()": "(torch.exp(-log_ratio) - 1).square()"},
        "rows and tokens swapped": {"row, token = divmod": "token, row = divmod"},
        "only the ratio": {"if of_ratio.max() > of_kl.max()": "if True"},
        "only the KL": {"if of_ratio.max() > of_kl.max()": "if False"},
        "the smaller one": {"of_ratio.max() > of_kl.max()": "of_ratio.max() < of_kl.max()"},
        "no exp": {"ratio, a = log_ratio.exp()": "ratio, a = 1 + log_ratio"},
        "sign forgotten": {"(ratio * a).abs()": "(ratio * a)"},
        "returns None": {"return row": "found = row"},
    },
    "log_ratio": {
        "loss.log_ratio=reference": BY_NAME.format("reference"),
        "the sampler's own": {"batch.old_logprobs": "batch.sampling_logprobs"},
        "sign flipped": {DIFFERENCE: "batch.old_logprobs - logprobs"},
        "the ratio": {DIFFERENCE: f"({DIFFERENCE}).exp()"},
        "detached": {DIFFERENCE: "logprobs.detach() - batch.old_logprobs"},
        "always 1": {DIFFERENCE: "logprobs - logprobs.detach()"},
        "returns None": {"return": "found ="},
    },
    "in_words": {"two words": 'answer = "Too large."', "a number": "answer = 3"},
    "bounded": {
        "unbounded": {BOUND: ""},
        "clamp after exp": {BOUND: "", K3: "return delta.exp().clamp(max=22026.4658) - delta.clamp(-limit, limit) - 1"},
        "the estimate clamped": {BOUND: "", K3: "return (torch.expm1(delta) - delta).clamp(max=22015.4658)"},
        "the exponent alone": {BOUND: "", "expm1(delta)": "expm1(delta.clamp(-limit, limit))"},
        "where after exp": {K3: f"{K3} + 0 * given.exp()", BOUND: f"given = delta\n    {BOUND}"},
        "one side": {"clamp(-limit, limit)": "clamp(max=limit)"},
        "another limit": {"limit=10.0": "limit=5.0"},
        "the hinge": {K3: "return delta.clamp(min=0)"},
        "sign flipped": {"delta = delta": "delta = -delta"},
        "clamped in place of the gradient": {
            "delta.clamp(": "delta + (delta.clamp(",
            "limit, limit)": "limit, limit) - delta).detach()",
        },
        "zero": {"return torch": "return 0 * torch"},
        "returns None": {"return": "found ="},
    },
}
ANOTHER_WAY = {
    "forecast": {"another letter": 'answer = "a"'},
    "gradient": {
        "by autograd": """
import torch


def gradient(log_ratio, advantage, epsilon=0.2):
    at = torch.tensor(log_ratio, dtype=torch.float64, requires_grad=True)
    ratio = at.exp()
    loss = -torch.min(ratio * advantage, ratio.clamp(1 - epsilon, 1 + epsilon) * advantage)
    loss.backward()
    return float(at.grad)
"""
    },
    "reported": {
        "rounded further out": "nats = 18.56",
        "worked out": "import math\n\nnats = math.log(113_818_385)",
    },
    "culprit": {
        "by autograd": """
import torch


def culprit(log_ratio, advantages, beta, epsilon=0.2):
    found = {}
    for term in ("ratio", "kl"):
        at = log_ratio.double().requires_grad_()
        ratio, a = at.exp(), advantages[:, None].double()
        surrogate = -torch.min(ratio * a, ratio.clamp(1 - epsilon, 1 + epsilon) * a)
        (surrogate if term == "ratio" else beta * (torch.expm1(-at) + at)).sum().backward()
        found[term] = at.grad.abs()
    term = max(found, key=lambda name: found[name].max())
    row, token = divmod(found[term].argmax().item(), log_ratio.shape[1])
    return [row, token, term]
"""
    },
    "log_ratio": {"loss.log_ratio=old": BY_NAME.format("old")},
    "bounded": {
        "between two tensors": {
            BOUND: "delta = torch.minimum(torch.maximum(delta, torch.tensor(-limit)), torch.tensor(limit))"
        }
    },
}
