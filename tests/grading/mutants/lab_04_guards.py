"""Answers to lab 4."""

FINE = "math.isfinite(norm) and (largest is None or norm <= self.factor * largest)"
REMEMBER = 'self.memory["largest"] = max(norm, largest or 0.0)'

WRONG = {
    "reported": {"no letter": 'answer = "e"', "a number": "answer = 3"},
    "alone": {
        "one for all": 'answer = "skip_spikes"',
        "one scenario": 'answer = {"nan-reward": "skip_spikes"}',
        "no guard": {'"clamp_log_ratio"': '"clamp_logratio"'},
        "the decoys": {
            '"clamp_log_ratio"': '"dual_clip"',
            '"representable_epsilon"': '"skip_nonfinite"',
            '"sanitize_rewards"': '"clamp_advantages"',
        },
    },
    "rescue": {"no letter": 'answer = "e"', "a number": "answer = 3"},
    "saved": {
        "crashed": {'"done"': '"crashed"'},
        "another guard": {"clamp_log_ratio": "clip_gradients"},
        "one step later": {"acted = 20": "acted = 21"},
        "a step as a text": {"acted = 20": 'acted = "20"'},
        "the reward before": {"0.625": "0.285"},
        "a percentage": {"0.625": "62.5"},
        "NaN": {"0.625": 'float("nan")'},
        "True": {"0.625": "True"},
    },
    "guard": {
        "a fixed limit": {FINE: "norm <= 10"},
        "nan > limit": {FINE: "not norm > self.factor * (largest or math.inf)"},
        "only finite": {FINE: "math.isfinite(norm)"},
        "finite forgotten": {"math.isfinite(norm) and ": ""},
        "refused ones raise the bar": {
            f"            {REMEMBER}\n": "",
            "        if math": f"        {REMEMBER}\n        if math",
        },
        "the last one": {REMEMBER: 'self.memory["largest"] = norm'},
        "the smallest": {REMEMBER: 'self.memory["largest"] = min(norm, largest or norm)'},
        "a larger factor": {"8.0\n\n": "16.0\n\n"},
        "forgets": {f"            {REMEMBER}\n": ""},
        "skip every step": {FINE: "False"},
        "guard nothing": {FINE: "True"},
        "in silence": {'exceeds("grad norm", norm, self.factor * (largest or 1.0))': '""'},
        "a reason always": {"return Outcome(value)\n": 'return Outcome(value, Verdict.KEEP, "fine")\n'},
        "only changed": {"Verdict.SKIP_STEP, ex": "Verdict.CHANGED, ex"},
        "another factor": {"8.0\n\n": "3.0\n\n"},
        "returns None": {"return Outcome(value)\n": "return None\n"},
    },
    "skip": {
        "zeroes and steps": """
def update_or_skip(optimizer, norm, limit):
    fine = norm <= limit
    if not fine:
        optimizer.zero_grad(set_to_none=False)
    optimizer.step()
    return fine
""",
        "nan > limit": {"if norm <= limit": "if not norm > limit"},
        "only finite": {"if norm <= limit": "if norm < float('inf')"},
        "skip every step": {"        optimizer.step()\n": ""},
        "guard nothing": {"norm <= limit": "True"},
        "says the opposite": {"return True": "return False", "return False": "return True"},
        "returns None": {"        return True\n    return False": ""},
    },
    "hides": {**{f"the letter {letter}": f"answer = {letter!r}" for letter in "abde"}, "a number": "answer = 3"},
    "minimal_set": {
        "guard nothing": "guards = ()",
        "one text": 'guards = "skip_spikes"',
        "no such guard": 'guards = ("skip_spike", "representable_epsilon")',
        "a guard of one's own": 'guards = ("answers/04_guards/guard.py:SkipJumps",)',
        "no such setting": 'guards = {"skip_spikes": {"max_norm": 10.0}}',
        "skip every step": 'guards = {"skip_spikes": {"threshold": 1e-9}, "representable_epsilon": {}}',
        "every guard": "from grpo_lab.training.guards import GUARDS\n\nguards = tuple(GUARDS)",
        "one of two": 'guards = ("skip_spikes",)',
    },
}
ANOTHER_WAY = {
    "reported": {"another letter": 'answer = "a"'},
    "alone": {"another guard": {'"sanitize_rewards"': '"skip_nonfinite"', '"clamp_log_ratio"': '"skip_nonfinite"'}},
    "rescue": {"another letter": 'answer = "a"'},
    "saved": {"another run": {"0.625": "0.595"}},
    "guard": {
        "refuses first": """
from grpo_lab.interventions import Intervention, Outcome, Stage, Verdict


class SkipJumps(Intervention):
    name, stage = "mine", Stage.GRADIENTS

    def __call__(self, value, step):
        bar = 8 * self.memory.get("largest", float("inf"))
        if not step.grad_norm <= bar or step.grad_norm == float("inf"):
            return Outcome(value, verdict=Verdict.SKIP_STEP, reason=f"{step.grad_norm} is no norm that I know")
        self.memory["largest"] = max(step.grad_norm, self.memory.get("largest", 0))
        return Outcome(value)
"""
    },
    "skip": {
        "returns first": """
def update_or_skip(optimizer, norm, limit):
    if not norm <= limit:
        return False
    optimizer.step()
    return True
"""
    },
    "hides": {},
    "minimal_set": {"with settings": 'guards = {"representable_epsilon": {}, "skip_spikes": {"threshold": 12.0}}'},
}
