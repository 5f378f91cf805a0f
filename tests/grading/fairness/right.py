"""Right answers in other words, beside those of the mutants' tables ANOTHER_WAY."""

READ, RATE, SAVED = "00_start/reading", "00_start/learning_rate", "00_start/saved"
HAND, NATS, PULLS = "01_grpo_by_hand/by_hand", "02_explosion/reported", "05_kl/pulls"
ORDER = ("far token", "large loss", "nan gradient", "nan clipped", "nan weights", "nan logits", "nan probabilities")
DRAWS = "bool(not_too_large & not_too_small)"

RIGHT = {
    READ: {
        "a float for a step": {"spike_step = 5": "spike_step = 5.0"},
        "with a decimal": {"906": "906.2"},
        "read off the axis": {"906": "0.9e3"},
        "a little high": {"906": "985"},
        "a comparison": {"= False": "= 2 < 1"},
        "a tensor": {"906": "torch.tensor(906.0)", "spike_step = 5": "import torch\n\nspike_step = torch.tensor(5)"},
        "of numpy": {"906": "np.float32(906)", "spike_step = 5": "import numpy as np\n\nspike_step = np.int64(5)"},
    },
    "00_start/guess": {letter: f"answer = {letter!r}" for letter in "cdBD"},
    "00_start/out_of_range": {
        "with filter": "def steps_out_of_range(norms, limit):\n"
        "    return list(filter(lambda step: not norms[step] <= limit, range(len(norms))))",
        "by numpy": "import numpy as np\n\n\ndef steps_out_of_range(norms, limit):\n"
        "    return np.flatnonzero(~(np.array(norms) <= limit)).tolist()",
        "by torch": "import torch\n\n\ndef steps_out_of_range(norms, limit):\n"
        "    return (~(torch.tensor(norms, dtype=torch.float64) <= limit)).nonzero()[:, 0].tolist()",
        "a tuple": {"return [step": "return tuple([step", "<= limit]": "<= limit])"},
        "an array": "import numpy as np\n\n\ndef steps_out_of_range(norms, limit):\n"
        "    return np.flatnonzero(~(np.array(norms) <= limit))",
        "a tensor": "import torch\n\n\ndef steps_out_of_range(norms, limit):\n"
        "    return (~(torch.tensor(norms) <= limit)).nonzero().flatten()",
        "an index": "import pandas as pd\n\n\ndef steps_out_of_range(norms, limit):\n"
        "    norms = pd.Series(norms)\n    return norms.index[~(norms <= limit)]",
        "a generator": "def steps_out_of_range(norms, limit):\n    for step, norm in enumerate(norms):\n"
        "        if not norm <= limit:\n            yield step",
    },
    RATE: {"as a decimal": "learning_rate = 0.0003", "a quotient": "learning_rate = 1 / 2000"},
    SAVED: {
        "a fraction": {"0.645": "258 / 400"},
        "a low end": {"0.645": "0.58"},
        "rounded": {"0.645": "0.6"},
        "a float for a step": {"acted = 20": "acted = 20.0"},
        "in one line": 'ended, guard, acted, held_out = "done", "sanitize_rewards", 20, 0.62',
    },
    HAND: {
        "fractions": {"right_one = 1.5": "right_one = 3 / 2", "wrong_one = -0.5": "wrong_one = -1 / 2"},
        "two digits": {"ratio = 1.649": "ratio = 1.65", "loss_wrong = 0.824": "loss_wrong = 0.82"},
        "all digits": {"ratio = 1.649": "ratio = 1.6487212707", "loss_wrong = 0.824": "loss_wrong = 0.8243606354"},
        "worked out": {
            "ratio = 1.649": "import math\n\nratio = math.exp(0.5)",
            "loss_wrong = 0.824": "loss_wrong = 0.5 * ratio",
            "loss_right = -1.8": "loss_right = -min(ratio, 1.2) * right_one",
        },
        "tensors": {"right_one = 1.5": "import torch\n\nright_one = torch.tensor(1.5)"},
        "unpacked": "right_one, wrong_one, ratio, loss_right, loss_wrong = 1.5, -0.5, 1.65, -1.8, 0.824",
    },
    "01_grpo_by_hand/advantages": {
        "a smaller eps": {"eps=1e-6": "eps=1e-12"},
        "by rows": "import torch\n\n\ndef advantages(rewards, scorable=None):\n    rows = []\n    for row in rewards:\n"
        "        flat = len(row) < 2 or bool((row == row[0]).all())\n"
        "        rows.append(torch.zeros_like(row) if flat else (row - row.mean()) / (row.std() + 1e-6))\n"
        "    return torch.stack(rows)",
        "the std from squares": {
            "rewards.std(dim=1, keepdim=True)": "(centred.square().sum(1, True) / (rewards.shape[1] - 1)).sqrt()"
        },
    },
    "01_grpo_by_hand/policy_loss": {
        "the larger of two losses": {
            "-torch.min(ratio * advantages, clipped": "torch.max(-ratio * advantages, -clipped",
        },
        "with where": {
            "-torch.min(ratio * advantages, clipped * advantages)": "-torch.where(advantages > 0, "
            "torch.minimum(ratio, clipped), torch.maximum(ratio, clipped)) * advantages"
        },
        "expanded": {"advantages[:, None]": "advantages.unsqueeze(-1).expand_as(logprobs)"},
    },
    "01_grpo_by_hand/slope": {
        "named": "def slope(f, x, h):\n    a, b = x - h, x + h\n    return (f(b) - f(a)) / (b - a)",
        "halved": {"/ (2 * h)": "/ h / 2"},
    },
    "01_grpo_by_hand/aggregate": {
        "with where": {"per_token.masked_fill(mask == 0, 0.0)": "torch.where(mask.bool(), per_token, 0.0)"},
        "nansum after masking": {"return values.sum() /": "return values.nansum() /"},
        "a number": {
            "return (values.sum(dim=1) / mask.sum(dim=1)).mean()": "return (values.sum(1) / mask.sum(1)).mean().item()",
            "values.sum() / (": "values.sum().item() / int(",
        },
    },
    "02_explosion/gradient": {
        "case by case": "import math\n\n\ndef gradient(log_ratio, advantage, epsilon=0.2):\n"
        "    r = math.e**log_ratio\n    if advantage >= 0:\n"
        "        return -advantage * r if r <= 1 + epsilon else 0\n"
        "    return -advantage * r if r >= 1 - epsilon else 0",
        "a tensor": {
            "return 0.0 if": "import torch\n    return torch.tensor(0.0 if",
            "-ratio * advantage": "-ratio * advantage, dtype=torch.float64)",
        },
    },
    NATS: {"three decimals": "nats = 18.550", "all digits": "nats = 18.5500897", "low": "nats = 18.54"},
    "02_explosion/culprit": {
        "a tensor for a row": {"return row, token": "return torch.tensor(row), token"},
        "unravelled": {
            "row, token = divmod(int(pull.argmax()), pull.shape[1])": "row, token = [int(i) for i in "
            "torch.unravel_index(pull.argmax(), pull.shape)]"
        },
        "in double precision": {
            "ratio, a = log_ratio.exp()": "log_ratio = log_ratio.double()\n    ratio, a = log_ratio.exp()"
        },
    },
    "02_explosion/log_ratio": {
        "subtracted by name": {
            "logprobs - batch.old_logprobs": "torch.sub(logprobs, batch.old_logprobs)",
            "def ": "import torch\n\n\ndef ",
        },
        "the old one detached": {"batch.old_logprobs": "batch.old_logprobs.detach()"},
    },
    "02_explosion/bounded": {
        "clip": {"delta.clamp(": "delta.clip("},
        "exp - 1": {"torch.expm1(delta)": "delta.exp() - 1"},
        "hardtanh": {"delta.clamp(": "torch.nn.functional.hardtanh(delta, "},
        "min and max": {"delta.clamp(-limit, limit)": "delta.clamp(min=-limit).clamp(max=limit)"},
    },
    "03_error_chain/order": {"joined": f"order = [*{ORDER!r}]\norder += ['multinomial']"},
    "03_error_chain/accepts": {
        "not any": {DRAWS: "not bool((probabilities.isnan() | probabilities.isinf() | (probabilities < 0)).any())"},
        "of numpy": {DRAWS: "probabilities.numpy().min() >= 0 and probabilities.numpy().max() < math.inf"},
        "one by one": "import math\n\n\ndef accepts(probabilities):\n"
        "    return all(0 <= p < math.inf for p in probabilities.flatten().tolist())",
        "the sum": {DRAWS: "bool(probabilities.sum().isfinite() & (probabilities >= 0).all())"},
    },
    "03_error_chain/finite_first": {
        "not above": {"math.isfinite(norm) and norm <= limit": "not (math.isnan(norm) or norm > limit)"},
        "in full": {"{norm:.4g}": "{norm}"},
        "only the number": {"grad norm {norm:.4g}, limit {limit:g}": "{norm:.6g}"},
    },
    "03_error_chain/epsilon": {
        "1e-2": "adam_eps = 1e-2",
        "0.0002": "adam_eps = 0.0002",
        "6e-5": "adam_eps = 6e-5",
        "a power": "adam_eps = 10**-3",
    },
    "04_guards/saved": {"a fraction": {"0.625": "250 / 400"}, "another": {"0.625": "0.66"}},
    "04_guards/skip": {
        "decided first": "def update_or_skip(optimizer, norm, limit):\n    fine = norm <= limit\n    if fine:\n"
        "        optimizer.step()\n    return fine",
        "with isfinite": {"if norm <= limit": "import math\n    if math.isfinite(norm) and not norm > limit"},
        "clears": {"    return False": "    optimizer.zero_grad()\n    return False"},
    },
    "05_kl/k3": {
        "special": {"torch.expm1(delta)": "torch.special.expm1(delta)"},
        "turned": {"torch.expm1(delta) - delta": "-delta + delta.expm1()"},
    },
    "05_kl/expected_gradient": {
        "no_grad": {"log_p.exp().detach()": "theta.detach().softmax(0)"},
        "dot": {
            "(log_p.exp().detach() * estimator(log_ref - log_p)).sum()": "log_p.exp().detach() "
            "@ estimator(log_ref - log_p)"
        },
    },
    PULLS: {
        "capitals": {'k1 = "c"': 'k1 = "C"', 'hinge = "d"': 'hinge = "D"'},
        "unpacked": 'k1, k2, k3, hinge = "cabd"',
        "in a tuple": 'k1, k2, k3, hinge = ("c", "a", "b", "d")',
    },
    "05_kl/straight": {
        "min": {"delta.clamp(max=limit)": "torch.minimum(delta, torch.tensor(limit, dtype=delta.dtype))"},
        "relu": {"(delta - inside)": "torch.relu(delta - limit)"},
    },
    "05_kl/next_beta": {
        "ratio bounded": {"max(-0.2, min(0.2, kl / target - 1))": "min(1.2, max(0.8, kl / target)) - 1"},
        "nan and inf by name": {"not math.isfinite(kl)": "math.isnan(kl) or kl in (math.inf, -math.inf)"},
        "by numpy": {
            "max(-0.2, min(0.2, kl / target - 1))": "float(np.clip(kl / target - 1, -0.2, 0.2))",
            "import math": "import math\n\nimport numpy as np",
        },
    },
    "06_silent_failures/one_update": {
        "as indices": {"(loss_of(part) * part.mask).sum()": "loss_of(part)[part.mask].sum()"},
        "None": {"zero_grad()": "zero_grad(set_to_none=True)"},
        "in a closure": "def one_update(parts, loss_of, optimizer):\n"
        "    total = sum(part.mask.sum() for part in parts)\n\n    def closure():\n        optimizer.zero_grad()\n"
        "        loss = sum((loss_of(part) * part.mask).sum() for part in parts) / total\n"
        "        loss.backward()\n        return loss\n\n    optimizer.step(closure)",
        "divided afterwards": "def one_update(parts, loss_of, optimizer):\n    optimizer.zero_grad()\n"
        "    for part in parts:\n        (loss_of(part) * part.mask).sum().backward()\n"
        "    total = sum(int(part.mask.sum()) for part in parts)\n"
        "    for group in optimizer.param_groups:\n        for p in group['params']:\n            p.grad /= total\n"
        "    optimizer.step()",
    },
    "06_silent_failures/completion_mask": {
        "shifted": "import torch\n\n\ndef completion_mask(tokens, end):\n    ended = (tokens == end).cumsum(1) > 0\n"
        "    return ~torch.cat([torch.zeros_like(ended[:, :1]), ended[:, :-1]], 1)",
        "by position": "import torch\n\n\ndef completion_mask(tokens, end):\n    ends = (tokens == end).int()\n"
        "    last = torch.where(ends.any(1), ends.argmax(1), tokens.shape[1])\n"
        "    return torch.arange(tokens.shape[1])[None] <= last[:, None]",
    },
    "06_silent_failures/mismatch": {
        "tensors": {"float(gaps.mean()), float(gaps.max())": "gaps.mean(), gaps.max()"},
        "a list": {"return float(gaps.mean()), float(gaps.max())": "return [gaps.mean().item(), gaps.max().item()]"},
        "a tensor of two": {
            "return float(gaps.mean()), float(gaps.max())": "import torch\n\n"
            "    return torch.stack([gaps.mean(), gaps.max()])"
        },
        "selected": {
            "(old_logprobs - sampling_logprobs)[mask]": "torch.masked_select(sampling_logprobs - old_logprobs, mask)",
            "def ": "import torch\n\n\ndef ",
        },
    },
    "06_silent_failures/which": {
        "other limits": {"< 1e-6": "< 0.5", "> 0.1": "> 0.01", "> 8": "> 6", "> 1.1": "> 2"},
        "greater or equal": {"== 1:": ">= 0.999:"},
        "by the step": {'record["weights/max_move"] > 0 else': 'record["ratio/max"] > 1.01 else'},
    },
    "07_precision_and_verl/largest": {
        "a table": 'LIMITS = {"float16": 11.09, "bfloat16": 88.72, "float32": 88.7228, "float64": 709.7827}\n\n\n'
        "def largest_log_ratio(dtype):\n    return LIMITS[dtype]",
        "by numpy": {"math.log(": "np.log(", "import math": "import numpy as np"},
        "a tensor": {
            "return math": "return torch.tensor(math",
            ".max)": ".max))",
        },
        "of the exponents": "def largest_log_ratio(dtype):\n"
        '    return {"float16": 16, "bfloat16": 128, "float32": 128, "float64": 1024}[dtype] * 0.6931',
    },
    "07_precision_and_verl/scaler": {
        "modulo": {"good == interval": "good and good % interval == 0"},
        "halves": {"scale / 2": "scale * 0.5", "scale * 2": "scale + scale"},
    },
    "07_precision_and_verl/masked": {
        "torch.where": {
            "difference.masked_fill(~keep, 0.0)": "torch.where(keep, difference, 0.0)",
            "def ": "import torch\n\n\ndef ",
        },
        "not nan, not inf": {"difference.isfinite()": "~(difference.isnan() | difference.isinf())"},
    },
    "04_guards/hides": {"a capital letter": 'answer = "C"'},
    "09_two_objectives/cause": {"a capital letter": 'answer = "C"'},
    "07_precision_and_verl/cures": {
        "a capital letter": 'cures = ("H",)',
        "a list": "cures = list('h')",
        "one in brackets": 'cures = ("h")',
    },
    "08_mystery_runs/objective": {
        "advantages expanded": {"advantages[:, None]": "advantages.unsqueeze(1)"},
        "the larger loss": {"-torch.min(ratio * advantages, ratio": "torch.max(-ratio * advantages, -ratio"},
    },
    "08_mystery_runs/gradients": {
        "detached": {"g.clone()": "g.detach().clone()"},
        "plus": {"p.grad.add_(g)": "p.grad += g"},
        "zeros first": {"p.grad = g.clone()": "p.grad = torch.zeros_like(p) + g", "def ": "import torch\n\n\ndef "},
    },
    "08_mystery_runs/update": {
        "item": {"float(norm)": "norm.item()"},
        "divided once": {"(loss() / len(losses)).backward()": "torch.div(loss(), len(losses)).backward()"},
    },
    "09_two_objectives/set_grads": {"sliced": {"p.grad.add_(part)": "p.grad = p.grad + part"}},
    "09_two_objectives/cosine": {
        "in double precision": {
            "(a * b).sum()": "(a.double() * b.double()).sum()",
            "g.square()": "g.double().square()",
        },
    },
    "09_two_objectives/next_betas": {
        "a new dictionary": {"dict(betas)": "{name: beta for name, beta in betas.items()}"},
        "a power": {"math.sqrt(low * high)": "(low * high) ** 0.5"},
    },
    "09_two_objectives/without_conflict": {
        "dot": {"f @ h": "torch.dot(f, h)", "def ": "import torch\n\n\ndef "},
        "sum of products": {"f @ h": "(f * h).sum()"},
    },
}
