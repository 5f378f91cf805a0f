"""Answers that are nearly right: a digit, a sign, a bound, an index or a quote away. Each must earn nothing."""

RIGHT_ONE, LOSS = "right_one = 1.5", "loss_right = -1.8"
DELTA = "delta.clamp(-limit, limit)"
PARTS = "(loss_of(part) * part.mask).sum() / total"
ERROR = "max(-0.2, min(0.2, kl / target - 1))"

NEAR = {
    "00_start/reading": {
        "a step early": {"spike_step = 5": "spike_step = 4"},
        "half a step": {"spike_step = 5": "spike_step = 5.5"},
        "11 % low": {"906": "805"},
        "11 % high": {"906": "1006"},
        "a comma": {"906": "906,"},
        "False in quotes": {"= False": '= "False"'},
        "None": {"= False": "= None"},
    },
    "00_start/guess": {"with a bracket": 'answer = "b)"', "two": 'answer = "bc"'},
    "00_start/out_of_range": {
        "the limit itself": {"not norm <= limit": "not norm < limit - 1e-9 and norm != norm"},
        "below the limit": {"<= limit": "< limit"},
        "True and False": {
            "[step for step, norm in enumerate(norms) if not norm <= limit]": "[not n <= limit for n in norms]"
        },
        "a column": "import torch\n\n\ndef steps_out_of_range(norms, limit):\n"
        "    return (~(torch.tensor(norms) <= limit)).nonzero()",
        "one too many": {"enumerate(norms)": "enumerate([*norms, float('nan')])"},
        "the last one lost": {"enumerate(norms)": "enumerate(norms[:-1])"},
        "absolute limit": {"<= limit]": "<= max(limit, 1.0)]"},
        "texts": {"[step for": "[str(step) for"},
        "the first alone": {"not norm <= limit]": "not norm <= limit][:1]"},
    },
    "00_start/saved": {
        "with a capital": {'"done"': '"Done"'},
        "a hyphen": {"sanitize_rewards": "sanitize-rewards"},
        "a step early": {"acted = 20": "acted = 19"},
        "just below": {"0.645": "0.49"},
        "a percentage": {"0.645": "64.5"},
        "above 1": {"0.645": "1.01"},
    },
    "01_grpo_by_hand/by_hand": {
        "1 % high": {RIGHT_ONE: "right_one = 1.515"},
        "rounded to 1.7": {"ratio = 1.649": "ratio = 1.7"},
        "rounded to 1.6": {"ratio = 1.649": "ratio = 1.6"},
        "e^0.5 by series": {"ratio = 1.649": "ratio = 1.625"},
        "the sign of the loss": {"loss_wrong = 0.824": "loss_wrong = -0.824"},
        "the clip at 1.28": {LOSS: "loss_right = -1.92"},
        "the lower clip": {"loss_wrong = 0.824": "loss_wrong = 0.4"},
        "population std": {RIGHT_ONE: "right_one = 1.732", "wrong_one = -0.5": "wrong_one = -0.577"},
        "a tuple": {RIGHT_ONE: "right_one = 1.5,"},
        "a text": {RIGHT_ONE: 'right_one = "1.5"'},
        "a complex number": {RIGHT_ONE: "right_one = 1.5 + 0j"},
    },
    "01_grpo_by_hand/advantages": {
        "eps under the root": {
            "(rewards.std(dim=1, keepdim=True) + eps)": "(rewards.var(dim=1, keepdim=True) + 0.001).sqrt()"
        },
        "a large eps": {"eps=1e-6": "eps=1e-3"},
        "in half precision": {"(centred / (": "(centred.half().float() / ("},
        "the median": {"rewards.mean(dim=1, keepdim=True)": "rewards.median(dim=1, keepdim=True).values"},
        "flattened": {".masked_fill(equal, 0.0)": ".masked_fill(equal, 0.0).flatten()"},
        "one of a group": {"torch.zeros_like(rewards)": "rewards"},
    },
    "01_grpo_by_hand/policy_loss": {
        "epsilon 0.2 always": {"ratio.clamp(1 - epsilon, 1 + epsilon_high)": "ratio.clamp(0.8, 1.2)"},
        "log clipped": {
            "ratio.clamp(1 - epsilon, 1 + epsilon_high)": "(logprobs - old_logprobs)"
            ".clamp(-epsilon, epsilon_high).exp()"
        },
        "detached clip": {"clipped * advantages)": "clipped * advantages).detach() + 0 * logprobs"},
        "per completion": {"clipped * advantages)": "clipped * advantages).mean(1, keepdim=True)"},
    },
    "01_grpo_by_hand/slope": {
        "a third of h": {"(2 * h)": "(2 * h) * (1 + h)"},
        "half the step": {"f(x + h) - f(x - h)) / (2 * h)": "f(x + h / 2) - f(x - h / 2)) / h"},
    },
    "01_grpo_by_hand/aggregate": {
        "one too few": {"mask.sum() if": "(mask.sum() - 1) if"},
        "at least one more": {"mask.sum(dim=1)).mean()": "(mask.sum(dim=1) + 1e-2)).mean()"},
        "width for number": {"mask.numel()": "mask.shape[0]"},
        "a text": {
            "return values.sum() / (": "return str(float(values.sum())) * int(",
        },
    },
    "02_explosion/gradient": {
        "below 0.2": {"ratio > 1 + epsilon": "log_ratio > epsilon"},
        "below -0.2": {"ratio < 1 - epsilon": "log_ratio < -epsilon"},
        "epsilon 0.19": {"epsilon=0.2": "epsilon=0.15"},
        "1 % off": {"-ratio * advantage": "-1.01 * ratio * advantage"},
    },
    "02_explosion/reported": {
        "one decimal": "nats = 18.6",
        "18.5": "nats = 18.5",
        "18.58": "nats = 18.58",
        "18.52": "nats = 18.52",
        "negative": "nats = -18.55",
        "a text": 'nats = "18.55"',
        "a list": "nats = [18.55]",
    },
    "02_explosion/culprit": {
        "from 1": {"return row, token, term": "return row + 1, token + 1, term"},
        "token first": {"return row, token, term": "return token, row, term"},
        "KL in capitals": {'("kl", of_kl)': '("KL", of_kl)'},
        "no term": {"return row, token, term": "return row, token"},
        "beta squared": {"beta * (": "beta**2 * ("},
    },
    "02_explosion/log_ratio": {
        "the mean": {"logprobs - batch.old_logprobs": "(logprobs - batch.old_logprobs).mean(1, keepdim=True)"},
        "half": {"logprobs - batch.old_logprobs": "0.5 * (logprobs - batch.old_logprobs)"},
        "clamped": {"logprobs - batch.old_logprobs": "(logprobs - batch.old_logprobs).clamp(-0.01, 0.01)"},
    },
    "02_explosion/bounded": {
        "one side": {DELTA: "delta.clamp(max=limit)"},
        "the other side": {DELTA: "delta.clamp(min=-limit)"},
        "a bound of 10.1": {"limit=10.0": "limit=10.1"},
        "a bound of 9.9": {"limit=10.0": "limit=9.9"},
        "delta twice": {"- delta": "- 2 * delta"},
        "smooth": {DELTA: "limit * torch.tanh(delta / limit)"},
        "detached": {DELTA: "delta.detach().clamp(-limit, limit) + 0 * delta"},
    },
    "03_error_chain/order": {
        "a set": {"order = (": "order = str((", '"multinomial",\n)': '"multinomial",\n))'},
        "a space": {'"nan weights", "nan logits"': '"nan weights", "nan  logits"'},
        "probabilities first": {'"nan logits", "nan probabilities"': '"nan probabilities", "nan logits"'},
    },
    "03_error_chain/accepts": {
        "1 at most": {"< math.inf": "<= 1"},
        "from -0.001": {">= 0": ">= -0.001"},
        "the sum is finite": {"bool(not_too_large & not_too_small)": "bool(probabilities.sum().isfinite())"},
        "a text": {"bool(not_too_large & not_too_small)": "str(bool(not_too_large & not_too_small))"},
    },
    "03_error_chain/face": {
        "CPU with a capital": {'"multinomial-cpu"': '"multinomial-CPU"'},
        "None for other": {'else "other"': "else None"},
    },
    "03_error_chain/finite_first": {
        "a limit of 9": {"10.0": "9.0"},
        "a limit of 12": {"10.0": "12.0"},
        "rolls back": {"SKIP_STEP": "ROLL_BACK"},
        "rounded away": {"{norm:.4g}": "{norm:.0e}"},
    },
    "03_error_chain/epsilon": {
        "2e-5": "adam_eps = 2e-5",
        "1e-5": "adam_eps = 1e-5",
        "0.02": "adam_eps = 0.02",
        "0.1": "adam_eps = 0.1",
        "a tuple": "adam_eps = (1e-4,)",
    },
    "04_guards/saved": {"another guard": {"clamp_log_ratio": "clamp_kl"}, "just below": {"0.625": "0.495"}},
    "04_guards/guard": {
        "a factor of 7.5 of the last": {"max(norm, largest or 0.0)": "norm"},
        "a factor of 4": {"8.0\n\n": "4.0\n\n"},
        "a factor of 9.5": {"8.0\n\n": "12.0\n\n"},
    },
    "04_guards/skip": {
        "below the limit": {"<= limit": "< limit"},
        "a limit of its own": {"norm <= limit": "norm <= 8"},
        "1 for True": {"return True": "return 1"},
        "steps twice": {"        optimizer.step()": "        optimizer.step()\n        optimizer.step()"},
    },
    "04_guards/hides": {"another capital": 'answer = "D"', "a list": 'answer = ["c"]'},
    "05_kl/k3": {
        "exp - 1": {"torch.expm1(delta)": "(delta.exp() - 1)"},
        "second order": {"torch.expm1(delta) - delta": "delta.square() / 2"},
        "bounded": {"torch.expm1(delta) - delta": "torch.expm1(delta.clamp(-10, 1)) - delta.clamp(-10, 1)"},
        "absolute": {"torch.expm1(delta) - delta": "torch.expm1(delta.abs()) - delta.abs()"},
    },
    "05_kl/pulls": {
        "another capital": {'k1 = "c"': 'k1 = "A"'},
        "k2 and k3 swapped": {'k2 = "a"': 'k2 = "b"', 'k3 = "b"': 'k3 = "a"'},
        "a blank": {'hinge = "d"': 'hinge = "d "'},
    },
    "05_kl/straight": {
        "limit 4.9": {"limit=5.0": "limit=4.9"},
        "the slope of k3 + 1": {"math.expm1(limit)": "math.exp(limit)"},
        "a jump": {"(delta - inside)": "(delta - inside + 0.01 * (delta > limit))"},
    },
    "05_kl/next_beta": {
        "bounded at 0.25": {ERROR: ERROR.replace("min(0.2", "min(0.25")},
        "bounded at -0.1": {ERROR: ERROR.replace("max(-0.2", "max(-0.1")},
        "gain 0.11": {"0.1 * error": "0.11 * error"},
        "exponential": {"beta * (1 + 0.1 * error)": "beta * math.exp(error)"},
    },
    "06_silent_failures/one_update": {
        "a closure that adds up": {
            "    optimizer.step()": "    optimizer.step(lambda: loss_of(parts[0]).sum().backward())"
        },
        "one token more": {PARTS: f"{PARTS.replace('/ total', '/ (total + 1)')}"},
        "clears after": {
            "    optimizer.zero_grad()\n": "",
            "    optimizer.step()": "    optimizer.step()\n    optimizer.zero_grad()",
        },
        "the mean of means": {PARTS: "loss_of(part)[part.mask].mean() / len(parts)"},
    },
    "06_silent_failures/completion_mask": {
        "integers": {"before == 0": "(before == 0).int()"},
        "one short": {"ends.cumsum(dim=1) - ends.int()": "ends.cumsum(dim=1)"},
    },
    "06_silent_failures/mismatch": {
        "the mean alone": {"float(gaps.mean()), float(gaps.max())": "gaps.mean()[None]"},
        "texts": {"float(gaps.mean()), float(gaps.max())": "str(float(gaps.mean())), str(float(gaps.max()))"},
        "of numbers below": {"gaps.max()": "gaps.quantile(0.9)"},
        "the root of squares": {"gaps.mean()": "gaps.square().mean().sqrt()"},
        "swapped": {"float(gaps.mean()), float(gaps.max())": "float(gaps.max()), float(gaps.mean())"},
    },
    "06_silent_failures/which": {
        "a hyphen": {'"step_inside" if': '"step-inside" if'},
        "a limit of 2": {
            '"sampling/sampling_logp_difference/mean"] > 0.1': '"sampling/sampling_logp_difference/mean"] > 0.5'
        },
        "a limit of 4 nats": {"> 8": "> 4"},
    },
    "07_precision_and_verl/largest": {
        "11 for fp16": 'def largest_log_ratio(dtype):\n    return {"float16": 11, "float64": 709}.get(dtype, 88)',
        "rounded up": {"math.log(torch": "math.ceil(math.log(torch", ".max)": ".max))"},
        "twice the largest": {".max)": ".max * 2)"},
        "half the largest": {".max)": ".max / 2)"},
        "bf16 rounded to 89": "import math\n\nimport torch\n\n\ndef largest_log_ratio(dtype):\n"
        '    return 89 if dtype == "bfloat16" else math.log(torch.finfo(getattr(torch, dtype)).max)',
    },
    "07_precision_and_verl/scaler": {
        "begins at the old scale": {"found, good = [], 0": "found, good = [scale], 0"},
        "grows by half": {"scale * 2": "scale * 1.5"},
        "counts through": {"scale * 2, 0": "scale * 2, 1"},
    },
    "07_precision_and_verl/masked": {
        "only the policy": {"difference.isfinite()": "logprobs.isfinite()"},
        "only the old one": {"difference.isfinite()": "batch.old_logprobs.isfinite()"},
    },
    "07_precision_and_verl/cures": {
        "another capital": 'cures = ("G",)',
        "two": 'cures = ("g", "h")',
        "a set": 'cures = {"h"}',
    },
    "08_mystery_runs/objective": {
        "beta 0.04": {"0.05 *": "0.04 *"},
        "a clip of 0.25": {"0.8, 1.2": "0.75, 1.25"},
        "bounded at 4.9": {"clamp(-5, 5)": "clamp(-4.9, 4.9)"},
    },
    "08_mystery_runs/gradients": {
        "a mean": {"p.grad.add_(g)": "p.grad = (p.grad + g) / 2"},
        "the last": {"p.grad.add_(g)": "p.grad = g.clone()"},
    },
    "08_mystery_runs/update": {
        "a norm of 0.9": {"max_norm)\n": "0.9 * max_norm)\n"},
        "the norm of the first": {"float(norm)": "float(norm) / len(losses)"},
    },
    "08_mystery_runs/by_hand": {"seven": {'    8: "healthy",\n': ""}, "a capital": {'8: "healthy"': '8: "Healthy"'}},
    "08_mystery_runs/verdicts": {"one wrong": {'"kl-hidden"': '"healthy"'}},
    "09_two_objectives/cosine": {
        "absolute": {"return float(product": "return float(abs(product)"},
        "squared": {"return float(product": "return float(product**2"},
        "NaN for 0": {"return 0.0": "return math.nan"},
    },
    "09_two_objectives/set_grads": {"the mean": {"p.grad.add_(part)": "p.grad.add_(part).mul_(0.5)"}},
    "09_two_objectives/next_betas": {
        "arithmetic mean": {"math.sqrt(low * high)": "(low + high) / 2"},
        "from 0.001": {"max(0.002": "max(0.001"},
        "to 5": {"min(4.0": "min(5.0"},
        "absent falls": {"math.nan": "1e-9"},
    },
    "09_two_objectives/without_conflict": {
        "half": {"product < 0": "product < -1e9"},
        "the larger wins": {"- product / (f @ f) * f": "- 0.9 * product / (f @ f) * f"},
    },
    "09_two_objectives/cause": {"another capital": 'answer = "D"', "a blank": 'answer = "c "'},
}
