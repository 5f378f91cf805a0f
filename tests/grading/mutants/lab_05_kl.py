"""Answers to lab 5."""

BY_NAME = """
from grpo_lab.training.registry import FORMULAS


def k3(delta):
    return FORMULAS["kl_estimator"][{!r}](delta)
"""
K3 = "torch.expm1(delta) - delta"
DRAWN = "log_p.exp().detach()"
ESTIMATED = "estimator(log_ref - log_p)"
INSIDE = "inside = delta.clamp(max=limit)"
LINE = "math.expm1(limit) * (delta - inside)"
ERROR = "max(-0.2, min(0.2, kl / target - 1))"

PULLS = {"k1": "c", "k2": "a", "k3": "b", "hinge": "d"}

WRONG = {
    "forecast": {"no letter": 'answer = "both"', "a number": "answer = 2"},
    "k3": {
        **{f"loss.kl_estimator={name}": BY_NAME.format(name) for name in ("k1", "k2", "hinge", "k3_exp")},
        "sign flipped": {K3: "torch.expm1(-delta) + delta"},
        "value flipped": {K3: f"-({K3})"},
        "without - delta": {K3: "torch.expm1(delta)"},
        "without - 1": {"expm1": "exp"},
        "no exp": {"torch.expm1(delta)": "delta"},
        "a number for all": {K3: f"({K3}).mean()"},
        "absolute": {K3: "delta.abs()"},
        "zero": {K3: f"0 * ({K3})"},
        "in half precision": {K3: f"({K3.replace('delta', 'delta.half()')}).float()"},
        "never below 0": {K3: "(delta.exp() - delta - 1).clamp(min=0)"},
        "returns None": {"return": "found ="},
    },
    "expected_gradient": {
        "differentiates the draw": {".detach()": ""},
        "drawn from the reference": {DRAWN: "log_ref.exp()"},
        "every token counts alike": {DRAWN: "torch.full_like(log_p, 1 / len(log_p)).detach()"},
        "policy minus reference": {f"* {ESTIMATED}": "* estimator(log_p - log_ref)"},
        "no exp": {DRAWN: "log_p.detach()"},
        "the estimator detached": {f"* {ESTIMATED}": f"* ({ESTIMATED}.detach() + 0 * log_p)"},
        "the mean": {".sum()": ".mean()"},
        "logits for log-probabilities": {"theta.log_softmax(0)": "theta * 1"},
        "sign flipped": {"return gradient": "return -gradient"},
        "the value": {"return gradient": f"return {ESTIMATED}"},
        "returns None": {"return": "found ="},
    },
    "pulls": {name: {f'{name} = "{right}"': f'{name} = "e"'} for name, right in PULLS.items()}
    | {
        "k2 and k3 swapped": {'k2 = "a"\nk3 = "b"': 'k2 = "b"\nk3 = "a"'},
        "numbers": "k1, k2, k3, hinge = 3, 1, 2, 4",
    },
    "straight": {
        "k3": {INSIDE: "inside = delta"},
        "clamped, flat": {f" + {LINE}": ""},
        "clamp after exp": {
            f"torch.expm1(inside) - inside + {LINE}": "(torch.expm1(delta) - delta).clamp(max=math.expm1(5) - 5)"
        },
        "where after exp": {"return": "return 0 * torch.where(delta > limit, 0.0, delta.exp()) +"},
        "slope e^limit": {"math.expm1(limit)": "math.exp(limit)"},
        "slope 1": {"math.expm1(limit) *": "1 *"},
        "clamped on both sides": {"clamp(max=limit)": "clamp(-limit, limit)"},
        "hinge": "def straight(delta, limit=5.0):\n    return delta.clamp(0, 10)",
        "sign flipped": {"(delta - inside)": "(inside - delta)"},
        "another limit": {"limit=5.0": "limit=4.0"},
        "a straight line everywhere": {"torch.expm1(inside) - inside": "0 * inside", "(delta - inside)": "delta"},
        "the line detached": {"(delta - inside)": "(delta - inside).detach()"},
        "zero": {"return": "return 0 *(", "(delta - inside)": "(delta - inside))"},
        "returns None": {"return": "found ="},
    },
    "review": {"two words": 'answer = "Looks good."', "a number": "answer = 3"},
    "next_beta": {
        "naive": {"    if not math.isfinite(kl):\n        return beta\n": ""},
        "clipped the other way round": {
            "    if not math.isfinite(kl):\n        return beta\n": "",
            ERROR: "min(0.2, max(-0.2, kl / target - 1))",
        },
        "nan > limit": {"not math.isfinite(kl)": "kl > 1e6"},
        "NaN becomes 0": {"return beta\n": "kl = 0.0\n"},
        "NaN alone": {"not math.isfinite(kl)": "math.isnan(kl)"},
        "inf alone": {"not math.isfinite(kl)": "kl == math.inf"},
        "returns 0 for NaN": {"return beta\n": "return 0.0\n"},
        "not clipped": {ERROR: "kl / target - 1"},
        "clipped above only": {ERROR: "min(0.2, kl / target - 1)"},
        "clipped below only": {ERROR: "max(-0.2, kl / target - 1)"},
        "upside down": {ERROR: ERROR.replace("kl / target", "target / max(kl, 1e-9)")},
        "sign flipped": {"1 + 0.1 * error": "1 - 0.1 * error"},
        "added": {"beta * (1 + 0.1 * error)": "beta + 0.1 * error"},
        "gain forgotten": {"0.1 * error": "error"},
        "the difference": {ERROR: ERROR.replace("kl / target - 1", "kl - target")},
        "returns None": {"return beta * ": "found = beta * "},
    },
}
ANOTHER_WAY = {
    "forecast": {"another letter": 'answer = "a"'},
    "k3": {
        "in double precision": {K3: "(torch.expm1(delta.double()) - delta.double()).float()"},
        "loss.kl_estimator=k3": BY_NAME.format("k3"),
    },
    "expected_gradient": {
        "by backward": """
import torch


def expected_gradient(theta, log_ref, estimator):
    log_p = theta.log_softmax(0)
    with torch.no_grad():
        weights = log_p.exp()
    (weights * estimator(log_ref - log_p)).sum().backward()
    return theta.grad
""",
        "token by token": """
import torch


def expected_gradient(theta, log_ref, estimator):
    total = torch.zeros_like(theta)
    for token, p in enumerate(theta.softmax(0).tolist()):
        log_p = theta.log_softmax(0)[token]
        total += p * torch.autograd.grad(estimator(log_ref[token] - log_p), theta)[0]
    return total
""",
    },
    "pulls": {},
    "straight": {
        "clamped on either side of a where": """
import math

import torch


def straight(delta, limit=5.0):
    below, above = delta.clamp(max=limit), delta.clamp(min=limit)
    line = math.expm1(limit) * above + math.expm1(limit) * (1 - limit) - limit
    return torch.where(delta > limit, line, torch.expm1(below) - below)
"""
    },
    "next_beta": {
        "case by case": """
def next_beta(beta, kl, target):
    if not 0 <= kl < float("inf"):
        return beta
    if kl > 1.2 * target:
        return 1.02 * beta
    return 0.98 * beta if kl < 0.8 * target else beta * (0.9 + 0.1 * kl / target)
"""
    },
}
