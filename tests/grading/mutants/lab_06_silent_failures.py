"""Answers to lab 6."""

SHARE = "(loss_of(part) * part.mask).sum() / total"
ADDED = "        loss.backward()\n"
STEPPED = "    optimizer.step()"
TOTAL = "sum(part.mask.sum() for part in parts)"


def accumulated(name):
    """One update whose gradients are added up as the registry has it under that name."""
    definition = "def one_update"
    return {
        definition: f"from grpo_lab.training.registry import FORMULAS\n\n\n{definition}",
        "loss.backward()": f"FORMULAS['accumulation'][{name!r}](loss, optimizer)",
    }


BY_NAME = """
import torch

from grpo_lab.core.batch import Batch
from grpo_lab.training.registry import FORMULAS


def completion_mask(tokens, end):
    once, rows = torch.ones(1, 1, dtype=torch.long), torch.zeros(len(tokens), dtype=torch.long)
    sampled, unknown = torch.ones_like(tokens, dtype=torch.bool), torch.zeros(tokens.shape)
    return FORMULAS["completion_mask"][{!r}](Batch(once, once, rows, tokens, sampled, unknown, unknown), {})
"""
GAPS, BOTH = "(old_logprobs - sampling_logprobs)[mask].abs()", "float(gaps.mean()), float(gaps.max())"
MEAN, LARGEST = (f'record["sampling/sampling_logp_difference/{name}"]' for name in ("mean", "max"))

WRONG = {
    "forecast": {"no letter": 'answer = ""', "a number": "answer = 4"},
    "one_update": {
        **{f"loss.accumulation={name}": accumulated(name) for name in ("overwrite", "step_inside", "zeroed")},
        "zero_grad in the loop": {"    optimizer.zero_grad()\n": "", ADDED: f"        optimizer.zero_grad()\n{ADDED}"},
        "step inside, never cleared": {ADDED: f"{ADDED}        optimizer.step()\n", STEPPED: ""},
        "never cleared": {"    optimizer.zero_grad()\n": ""},
        "not divided": {" / total": ""},
        "a mean each, added": {"/ total": "/ part.mask.sum()"},
        "divided by the number of parts": {"/ total": "/ part.mask.sum() / len(parts)"},
        "mask ignored": {" * part.mask)": ")", TOTAL: TOTAL.replace("sum() for", "numel() for")},
        "padding counted below": {TOTAL: TOTAL.replace("sum() for", "numel() for")},
        "the last part alone": {"for part in parts:": "for part in parts[-1:]:"},
        "zero loss": {SHARE: f"0 * {SHARE}"},
        "sign flipped": {SHARE: f"-{SHARE}"},
        "two steps": {STEPPED: f"{STEPPED}\n{STEPPED}"},
        "no step": {STEPPED: ""},
        "nothing": "def one_update(parts, loss_of, optimizer):\n    return None",
    },
    "completion_mask": {
        "loss.completion_mask=all": BY_NAME.format("all", 9),
        "loss.completion_mask=not_pad": BY_NAME.format("not_pad", 9),
        "loss.completion_mask=not_pad, another token": BY_NAME.format("not_pad", 0),
        "without the end token": {" - ends.int()": ""},
        "one token too many": {"before == 0": "before <= 1"},
        "numbers": {"before == 0": "(before == 0).float()"},
        "upside down": {"before == 0": "before != 0"},
        "over the rows": {"dim=1": "dim=0"},
        "up to the last end token": """
def completion_mask(tokens, end):
    ends = tokens == end
    return (ends.flip(1).cumsum(dim=1).flip(1) > 0) | ~ends.any(dim=1, keepdim=True)
""",
        "the end of the first row": {
            "before = ends": "before = ends[:1]",
            "ends.int()": "ends[:1].int()",
            "before == 0": "(before == 0).expand_as(ends)",
        },
        "returns None": {"return before": "found = before"},
    },
    "mismatch": {
        "signed": {".abs()": ""},
        "sign flipped": {".abs()": ".abs().neg()"},
        "the ratio": {".abs()": ".exp()"},
        "squared": {".abs()": ".square()"},
        "probabilities": {GAPS: "(old_logprobs.exp() - sampling_logprobs.exp())[mask].abs()"},
        "mask ignored": {"[mask]": ""},
        "padding counted below": {"[mask].abs()": ".abs() * mask"},
        "the largest of all": {BOTH: "float(gaps.mean()), float((old_logprobs - sampling_logprobs).abs().max())"},
        "magnitude of the mean": {".abs()": "", BOTH: "abs(float(gaps.mean())), float(gaps.abs().max())"},
        "mean of the rows": """
def mismatch(old_logprobs, sampling_logprobs, mask):
    gaps = (old_logprobs - sampling_logprobs).abs() * mask
    return float((gaps.sum(dim=1) / mask.sum(dim=1)).mean()), float(gaps.max())
""",
        "max and mean": {BOTH: "float(gaps.max()), float(gaps.mean())"},
        "mean alone": {", float(gaps.max())": ""},
        "median": {"gaps.mean()": "gaps.median()"},
        "zero": {BOTH: "0.0, 0.0"},
        "returns None": {"return": "found ="},
    },
    "which": {
        "always healthy": {
            'return "no_spread"': 'return "healthy"',
            'return "step': 'return "healthy" or "step',
            'return "pad': 'return "healthy" or "pad',
            'return "drop': 'return "healthy" or "drop',
        },
        "no second look at 0": {'"step_inside" if': '"zeroed" if'},
        "KL 0 alone": {
            '"step_inside" if record["weights/max_move"] > 0 else "zeroed"': '"zeroed"',
            'record["grad_norm"] < 1e-6': 'record["kl"] < 1e-3',
        },
        "spread not looked at": {'"frac_reward_zero_std"] == 1': '"frac_reward_zero_std"] > 1'},
        "any group without spread": {'"frac_reward_zero_std"] == 1': '"frac_reward_zero_std"] > 0'},
        "mismatch means temperature": {'"padding" if': '"temperature" if'},
        "mismatch means padding": {'else "temperature"': 'else "padding"'},
        "the ratio means dropout": {
            '    if record["frac': '    if record["ratio/max"] > 1.1:\n        return "dropout"\n    if record["frac'
        },
        "the ratio not looked at": {'"dropout" if': '"healthy" if'},
        "returns None": {'return "dropout"': 'found = "dropout"'},
    },
}
ANOTHER_WAY = {
    "forecast": {"another letter": 'answer = "a"'},
    "one_update": {
        "loss.accumulation=add": accumulated("add"),
        "summed first": """
import torch


def one_update(parts, loss_of, optimizer):
    optimizer.zero_grad()
    torch.cat([loss_of(part)[part.mask] for part in parts]).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    },
    "completion_mask": {
        "row by row": """
import torch


def completion_mask(tokens, end):
    mask = torch.zeros(tokens.shape, dtype=torch.bool)
    for row, ids in enumerate(tokens.tolist()):
        mask[row, : (ids.index(end) + 1 if end in ids else len(ids))] = True
    return mask
"""
    },
    "mismatch": {
        "padding replaced": {
            GAPS: "(old_logprobs - sampling_logprobs).masked_fill(~mask, 0.0).abs()",
            BOTH: "(gaps.sum() / mask.sum()).item(), gaps.max().item()",
        }
    },
    "which": {
        "in another order": """
def which(record):
    if record["weights/max_move"] == 0:
        return "zeroed"
    if record["ratio/max"] > 1.1:
        return "step_inside" if record["grad_norm"] == 0 else "dropout"
    if record["sampling/sampling_logp_difference/max"] > 2:
        return "temperature" if record["sampling/sampling_logp_difference/mean"] < 1 else "padding"
    return "no_spread" if record["grad_norm"] < 0.5 else "healthy"
"""
    },
}
