"""Answers to lab 8."""

RATIO, DELTA = "ratio = log_ratio.exp()", "(ref_logprobs - logprobs).masked_fill(mask == 0, 0.0).clamp(-10, 10)"
BOUNDED = "(logprobs - old_logprobs).masked_fill(mask == 0, 0.0).clamp(-5, 5)"
K3, MEAN = "0.05 * (torch.expm1(delta) - delta)", "(per_token * mask).sum() / mask.sum()"
CLEAR, STEP = "    optimizer.zero_grad()\n", "        optimizer.step()"
BACKWARD = "        (loss() / len(losses)).backward()\n"
NORM = "torch.nn.utils.clip_grad_norm_(parameters, max_norm)"
IF_FINE = "    if norm.isfinite():\n        optimizer"
REFORMED = """
overrides = {overrides!r}
guards = {guards!r}
"""
HEALED = ("loss.log_ratio=old", "optimizer.learning_rate=3e-4")
GUARDS = ("representable_epsilon", "skip_nonfinite", "clamp_kl")

FORMLESS = {
    "one name": 'answer = "healthy"',
    "seven": 'answer = dict.fromkeys(range(1, 8), "healthy")',
    "no such name": 'answer = dict.fromkeys(range(1, 9), "sick")',
    "a list": 'answer = ["healthy"] * 8',
    "a table": "answer = {1: {}}",
    "None": "answer = None",
}
WRONG = {
    "by_hand": FORMLESS,
    "verdicts": {
        **FORMLESS,
        "healthy, all of them": 'answer = dict.fromkeys(range(1, 9), "healthy")',
        "a low KL is healthy": {'"kl-hidden"': '"healthy"'},
        "two swapped": {'"explosion"': '"lost-unscale"', '"lost-unscale"': '"explosion"'},
        "what the tool says": {'"kl-hidden"': '"gradient-lost"'},
    },
    "defence": {"two words": 'answer = "It holds."', "None": "answer = None"},
    "first_break": {
        "large is broken": {"finite < 1 and": "largest > 1e4 and"},
        "only NaN": {"finite < 1 and": "largest != largest and"},
        "the last one": """
def first_break(steps):
    broken = [(step, note[0]) for step, notes in enumerate(steps) for note in notes if note[2] < 1]
    return broken[-1] if broken else None
""",
        "the first in the alphabet": {"in notes:\n            absorbed": "in sorted(notes):\n            absorbed"},
        "a ratio absorbed": {"not absorbed and ": ""},
        "filtered logits": {" and not filtered": ""},
        "counted from 1": {"enumerate(steps)": "enumerate(steps, start=1)"},
        "the link alone": {"return step, link": "return link"},
        "the last step": {"return step, link": "return len(steps) - 1, link"},
        "nothing": {"return step, link": "return None"},
    },
    "objective": {
        "as it was": """
import torch


def objective(logprobs, old_logprobs, ref_logprobs, advantages, mask):
    log_ratio = logprobs - ref_logprobs
    ratio = torch.exp(log_ratio).clamp(max=148.0)
    clipped = ratio.clamp(0.8, 1.2)
    advantages = advantages[:, None]
    surrogate = -torch.min(ratio * advantages, clipped * advantages)
    delta = ref_logprobs - logprobs
    kl = torch.expm1(delta) - delta
    per_token = surrogate + 0.05 * kl
    return (per_token * mask).mean()
""",
        "a name that is not defined": {"    delta = ": "    distance = "},
        "loss.log_ratio=reference": {"(logprobs - old_logprobs)": "(logprobs - ref_logprobs)"},
        "clamp after exp": {BOUNDED: BOUNDED.replace(".clamp(-5, 5)", ""), RATIO: f"{RATIO}.clamp(max=148.4)"},
        "log-ratio unbounded": {BOUNDED: BOUNDED.replace(".clamp(-5, 5)", "")},
        "log-ratio bounded further out": {"clamp(-5, 5)": "clamp(-6, 6)"},
        "delta bounded further out": {"clamp(-10, 10)": "clamp(-11, 10)"},
        "padding in delta": {DELTA: DELTA.replace(".masked_fill(mask == 0, 0.0)", "")},
        "delta unbounded": {DELTA: DELTA.replace(".clamp(-10, 10)", "")},
        "clamp after expm1": {
            DELTA: DELTA.replace(".clamp(-10, 10)", ""),
            "torch.expm1(delta)": "torch.expm1(delta).clamp(max=22025.47)",
        },
        "mask multiplied": {BOUNDED: "((logprobs - old_logprobs) * mask).clamp(-5, 5)"},
        "mask ignored": {
            BOUNDED: BOUNDED.replace(".masked_fill(mask == 0, 0.0)", ""),
            DELTA: DELTA.replace(".masked_fill(mask == 0, 0.0)", ""),
            MEAN: "per_token.mean()",
        },
        "hinge": {K3: "0.05 * delta.clamp(min=0)"},
        "sign of the KL": {f"surrogate + {K3}": f"surrogate - {K3}"},
        "delta upside down": {"(ref_logprobs - logprobs)": "(logprobs - ref_logprobs)"},
        "sign flipped": {"surrogate = -": "surrogate = "},
        "no exp": {RATIO: "ratio = 1 + log_ratio"},
        "max for min": {"torch.min": "torch.max"},
        "not clipped": {"ratio.clamp(0.8, 1.2)": "ratio"},
        "no KL": {f" + {K3}": ""},
        "another beta": {"0.05 *": "0.5 *"},
        "mean over padding": {MEAN: "(per_token * mask).mean()"},
        "token-mean for sequence-mean": {MEAN: "((per_token * mask).sum(dim=1) / mask.sum(dim=1)).mean()"},
        "sum": {" / mask.sum()": ""},
        "zero loss": {"return (": "return 0 * ("},
        "returns None": {"return": "found ="},
    },
    "gradients": {
        "copy_ for add_": {"p.grad.add_(g)": "p.grad.copy_(g)"},
        "no clone": {"g.clone()": "g"},
        "overwrites": {"p.grad.add_(g)": "p.grad = g.clone()"},
        "the first alone": {"p.grad.add_(g)": "pass"},
        "the first twice": {"p.grad = g.clone()": "p.grad = 2 * g"},
        "a mean of two": {"p.grad.add_(g)": "p.grad.add_(g).div_(2)"},
        "sign flipped": {"p.grad.add_(g)": "p.grad.sub_(g)"},
        "adds to what was given": {"p.grad.add_(g)": "p.grad = g.add_(p.grad)"},
        "one parameter": {
            "zip(parameters, gradients, strict=True)": "list(zip(parameters, gradients, strict=True))[:1]"
        },
        "zeros": {"g.clone()": "0 * g", "add_(g)": "add_(0 * g)"},
        "nothing": "def set_gradients(parameters, gradients):\n    return None",
    },
    "update": {
        "zero_grad in the loop": {CLEAR: "", BACKWARD: f"        optimizer.zero_grad()\n{BACKWARD}"},
        "zero_grad after backward": {CLEAR: "", f"    norm = {NORM}": f"{CLEAR}    norm = {NORM}"},
        "never cleared": {CLEAR: ""},
        "step inside": {BACKWARD: f"{BACKWARD}        optimizer.step()\n", STEP: "        pass"},
        "not divided": {" / len(losses)": ""},
        "the last one alone": {"in losses": "in losses[-1:]"},
        "not clipped": {NORM: NORM.replace("max_norm", "torch.inf")},
        "clipped in the loop": {BACKWARD: f"{BACKWARD}        {NORM}\n"},
        "the norm after clipping": {"return float(norm)": "return min(float(norm), max_norm)"},
        "nan > 10": {"norm.isfinite()": "not norm > 10"},
        "only NaN": {"norm.isfinite()": "not norm.isnan() and norm < 10"},
        "zeroes and steps": {
            IF_FINE: "    if not norm.isfinite():\n        optimizer.zero_grad(set_to_none=False)\n    optimizer"
        },
        "guard nothing": {"norm.isfinite()": "True"},
        "skip every step": {"norm.isfinite()": "False"},
        "zero loss": {"(loss() /": "(0 * loss() /"},
        "sign flipped": {"(loss() /": "(-loss() /"},
        "two steps": {STEP: f"{STEP}\n{STEP}"},
        "a tensor": {"return float(norm)": "return norm.view(1)"},
        "returns None": {"return float(norm)": ""},
    },
    "stable": {
        "one text": REFORMED.format(overrides="loss.beta=1", guards=GUARDS),
        "not to be set": REFORMED.format(overrides=("data.num_prompts=1",), guards=()),
        "no such setting": REFORMED.format(overrides=("loss.bet=1",), guards=()),
        "no such guard": REFORMED.format(overrides=HEALED, guards=("clamp_kll",)),
        "loss.log_ratio=reference": REFORMED.format(overrides=HEALED[1:], guards=GUARDS),
        "skip every step": REFORMED.format(overrides=HEALED, guards={"skip_spikes": {"threshold": 1e-9}}),
    },
}
ANOTHER_WAY = {
    "by_hand": {"any names": 'answer = dict.fromkeys(range(1, 9), "healthy")'},
    "first_break": {
        "the first of a list": """
def first_break(steps):
    notes = [(step, *note) for step, row in enumerate(steps) for note in row]
    whole = {(step, update) for step, link, update, share, _ in notes if link == "loss" and share == 1}
    absorbed = {("ratio", *place) for place in whole}
    broken = [note for note in notes if note[3] != 1 and (note[1], note[0], note[2]) not in absorbed]
    return next((note[:2] for note in broken if (note[1], note[4]) != ("logits", float("inf"))), None)
"""
    },
    "objective": {
        "padding taken out at the end": {
            BOUNDED: BOUNDED.replace(".masked_fill(mask == 0, 0.0)", ""),
            DELTA: DELTA.replace(".masked_fill(mask == 0, 0.0)", ""),
            "(per_token * mask)": "per_token.masked_fill(mask == 0, 0.0)",
        },
        "by rows of the mask": """
import torch


def objective(logprobs, old_logprobs, ref_logprobs, advantages, mask):
    kept = mask.bool()
    advantages = advantages[:, None].expand_as(logprobs)[kept]
    policy, old, reference = logprobs[kept], old_logprobs[kept], ref_logprobs[kept]
    ratio = torch.exp((policy - old).clamp(-5, 5))
    worse = torch.max(-ratio * advantages, -ratio.clamp(0.8, 1.2) * advantages)
    delta = (reference - policy).clamp(-10, 10)
    return (worse + 0.05 * (delta.exp() - 1 - delta)).mean()
""",
    },
    "gradients": {
        "a new tensor": {
            "p.grad.add_(g)": "p.grad = p.grad + g",
        }
    },
    "update": {
        "summed first": {
            BACKWARD: "        pass\n    (sum(loss() for loss in losses) / len(losses)).backward()\n",
        },
        "returns first": {IF_FINE: "    if not torch.isfinite(norm):\n        return norm.item()\n    optimizer"},
    },
    "stable": {"other guards": REFORMED.format(overrides=HEALED, guards=GUARDS)},
}
