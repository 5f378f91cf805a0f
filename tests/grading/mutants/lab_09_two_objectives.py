"""Answers to lab 9."""

EMPTY = "if a is not None and b is not None"
ADDED = "p.grad.add_(part)"
FINITE = "math.isfinite(kl)"
TARGET = "math.sqrt(low * high)"
ERROR = f"max(-0.2, min(0.2, kl / {TARGET} - 1))"
MOVED = "max(0.002, min(4.0, beta * (1 + 0.1 * error)))"
F_LEFT, H_LEFT = "f - product / (h @ h) * h", "h - product / (f @ f) * f"

WRONG = {
    "cosine": {
        "only the first parameter": {"zip(first, second, strict=True)": "[*zip(first, second, strict=True)][:1]"},
        "not divided": {"product / (lengths[0] * lengths[1])": "product"},
        "divided by the squares": {"math.sqrt(sum(": "(sum("},
        "mean over parameters": """
import torch


def cosine(first, second):
    pairs = [(a.flatten(), b.flatten()) for a, b in zip(first, second) if a is not None and b is not None]
    found = [torch.nn.functional.cosine_similarity(a, b, dim=0, eps=1e-30) for a, b in pairs]
    return float(sum(found)) / len(found)
""",
        "None is an error": {EMPTY: ""},
        "length of what both have": """
import math


def cosine(first, second):
    pairs = [(a, b) for a, b in zip(first, second) if a is not None and b is not None]
    product = sum((a * b).sum() for a, b in pairs)
    lengths = [math.sqrt(sum(pair[i].square().sum() for pair in pairs)) for i in range(2)]
    return float(product / (lengths[0] * lengths[1])) if lengths[0] * lengths[1] != 0 else 0.0
""",
        "0 / 0": {"if lengths[0] * lengths[1] == 0:": "if False:"},
        "an epsilon below": {"(lengths[0] * lengths[1])": "(lengths[0] * lengths[1] + 1e-8)"},
        "no NaN": {
            "(a * b).sum()": "(a * b).nan_to_num().sum()",
            "g.square().sum()": "g.nan_to_num().square().sum()",
        },
        "absolute": {"return float(product": "return abs(product"},
        "sign flipped": {"return float(": "return -float("},
        "the angle": {"return float(": "return math.acos("},
        "returns None": {"return float": "found = float"},
    },
    "forecast": {"no letter": 'answer = "both"', "a number": "answer = 3"},
    "set_grads": {
        "copy_ for add_": {ADDED: "p.grad.copy_(part)"},
        "overwrites": {ADDED: "p.grad = part"},
        "the first alone": {ADDED: "pass"},
        "weight ignored": {"weight * vector": "1.0 * vector"},
        "weight for the sum": {ADDED: "p.grad.add_(vector[start - p.numel() : start].view_as(p)).mul_(weight)"},
        "weighted twice": {ADDED: "p.grad.add_(weight * part)"},
        "always the beginning": {"        start += p.numel()\n": ""},
        "one parameter": {"for p in parameters": "for p in parameters[:1]"},
        "the last parameter first": {"for p in parameters": "for p in parameters[::-1]"},
        "columns for rows": {".view_as(p)": ".view(p.shape[::-1]).permute(tuple(range(p.dim()))[::-1])"},
        "scales what was given": {
            "    start = 0\n": "    start = 0\n    vector.mul_(weight)\n",
            "weight * vector": "vector",
        },
        "the mean of two": {ADDED: "p.grad.add_(part).div_(2)"},
        "sign flipped": {ADDED: "p.grad.sub_(part)"},
        "zeros": {"weight * vector": "0 * vector"},
        "nothing": "def set_grads(parameters, vector, weight):\n    return None",
    },
    "next_betas": {
        "one error for all": {"kl / math": "sum(kls.values()) / len(kls) / math"},
        "naive": {FINITE: "name in kls"},
        "NaN alone": {FINITE: "not math.isnan(kl)"},
        "inf alone": {FINITE: "kl != math.inf and name in kls"},
        "nan > limit": {FINITE: "not kl > 1e6"},
        "one NaN stops all": {FINITE: "all(map(math.isfinite, kls.values())) and name in kls"},
        "absent is 0": {"math.nan": "0.0"},
        "absent raises": {"kls.get(name, math.nan)": "kls[name]"},
        "left out": {"moved = dict(betas)": "moved = {}"},
        "arithmetic middle": {TARGET: "((low + high) / 2)"},
        "lower end": {TARGET: "low"},
        "upper end": {TARGET: "high"},
        "the band of F for both": {"bands[name]": "next(iter(bands.values()))"},
        "quiet inside the band": {FINITE: f"{FINITE} and not bands[name][0] <= kl <= bands[name][1]"},
        "not clipped": {ERROR: f"kl / {TARGET} - 1"},
        "clipped above only": {ERROR: f"min(0.2, kl / {TARGET} - 1)"},
        "clipped below only": {ERROR: f"max(-0.2, kl / {TARGET} - 1)"},
        "without limits": {MOVED: "beta * (1 + 0.1 * error)"},
        "no upper limit": {MOVED: "max(0.002, beta * (1 + 0.1 * error))"},
        "no lower limit": {MOVED: "min(4.0, beta * (1 + 0.1 * error))"},
        "sign flipped": {"1 + 0.1 * error": "1 - 0.1 * error"},
        "gain forgotten": {"0.1 * error": "error"},
        "added": {"beta * (1 + 0.1 * error)": "beta + 0.1 * error"},
        "returns None": {"return": "found ="},
    },
    "without_conflict": {
        "the sum": {"product < 0": "False"},
        "always projected": {"product < 0": "(h @ h) * (f @ f) != 0"},
        "where they agree": {"product < 0": "product > 0"},
        "nan > 0": {"product < 0": "not product >= 0"},
        "F alone": {f" + {H_LEFT}": " + h"},
        "H alone": {F_LEFT: "f"},
        "F lost": {F_LEFT: "0 * f"},
        "one after the other": {
            f"return {F_LEFT} + {H_LEFT}": f"f = {F_LEFT}\n        return f + h - (f @ h) / (f @ f) * f"
        },
        "divided by the length": {F_LEFT: "f - product / h.norm() * h", H_LEFT: "h - product / f.norm() * f"},
        "divided by both lengths": {
            F_LEFT: "f - product / (f.norm() * h.norm()) * h",
            H_LEFT: "h - product / (f.norm() * h.norm()) * f",
        },
        "not divided": {F_LEFT: "f - product * h", H_LEFT: "h - product * f"},
        "added": {F_LEFT: "f + product / (h @ h) * h", H_LEFT: "h + product / (f @ f) * f"},
        "the mean": {
            "    return f + h": "    return (f + h) / 2",
            "return f - product": "return 0.5 * (f - product",
            f"{H_LEFT}": f"{H_LEFT})",
        },
        "element by element": {"return f + h": "return (f + h) * (f * h >= 0)", "product < 0": "False"},
        "by the cosine": {"product < 0": "not product / (f.norm() * h.norm()) >= 0"},
        "no NaN": {"product = f @ h": "f, h = f.nan_to_num(), h.nan_to_num()\n    product = f @ h"},
        "0 for NaN": {"    return f + h": "    return (f + h) if product == product else 0 * f"},
        "zeros": {"    return f + h": "    return 0 * f"},
        "returns None": "def without_conflict(f, h):\n    f + h",
    },
    "cause": {
        "overwritten": {'"c"': '"a"'},
        "equal rewards": {'"c"': '"b"'},
        "a NaN": {'"c"': '"d"'},
        "no letter": {'"c"': '"the mean"'},
        "a number": "answer = 3",
    },
}
ANOTHER_WAY = {
    "cosine": {
        "one long vector": """
import torch


def cosine(first, second):
    one, two = [], []
    for a, b in zip(first, second):
        some = a if a is not None else b
        if some is not None:
            one.append((torch.zeros_like(some) if a is None else a).flatten())
            two.append((torch.zeros_like(some) if b is None else b).flatten())
    one, two = torch.cat(one), torch.cat(two)
    size = one.norm() * two.norm()
    return one @ two / size if size != 0 else 0.0
"""
    },
    "forecast": {"another letter": 'answer = "a"'},
    "set_grads": {
        "split at once": """
def set_grads(parameters, vector, weight):
    parts = vector.split([p.numel() for p in parameters])
    for p, part in zip(parameters, parts):
        part = weight * part.reshape(p.shape)
        p.grad = part if p.grad is None else p.grad + part
"""
    },
    "next_betas": {
        "moves what it was given": """
import math


def next_betas(betas, kls, bands):
    for name, kl in kls.items():
        if not 0 <= kl < math.inf:
            continue
        low, high = bands[name]
        error = kl / (low * high) ** 0.5 - 1
        betas[name] = min(4.0, max(0.002, betas[name] * (1 + min(0.02, max(-0.02, 0.1 * error)))))
    return betas
"""
    },
    "without_conflict": {
        "as multiples of both": {
            F_LEFT: "(1 - product / (f @ f)) * f",
            H_LEFT: "(1 - product / (h @ h)) * h",
        },
        "by unit vectors": """
import torch


def without_conflict(f, h):
    if not torch.dot(f, h) < 0:
        return f + h
    along_f, along_h = f / f.norm(), h / h.norm()
    return f - (f @ along_h) * along_h + h - (h @ along_f) * along_f
""",
    },
    "cause": {},
}
