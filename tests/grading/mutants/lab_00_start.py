"""Answers to lab 0."""

WRONG = {
    "reading": {
        "counted from 1": {"spike_step = 5": "spike_step = 6"},
        "another norm": {"906": "606"},
        "a text for a number": {"906": '"906"'},
        "the reward is noticed": {"= False": "= True"},
        "0 for False": {"= False": "= 0"},
    },
    "guess": {"no letter": 'answer = "e"', "a number": "answer = 3"},
    "out_of_range": {
        "nan > limit": {"not norm <= limit": "norm > limit"},
        "no limit": {"not norm <= limit": "norm != norm or norm == float('inf')"},
        "counted from 1": {"[step for": "[step + 1 for"},
        "limit fixed": {"norm <= limit": "norm <= 10"},
        "the norms": {"[step for": "[norm for"},
        "the healthy ones": {"not norm": "norm"},
        "nothing": {"[step for step, norm in enumerate(norms) if not norm <= limit]": "[]"},
        "every step": {" if not norm <= limit": ""},
        "returns None": {"return [": "found = ["},
    },
    "learning_rate": {
        "a text": 'learning_rate = "3e-4"',
        "True": "learning_rate = True",
        "None": "learning_rate = None",
        "below 0": "learning_rate = -1.0",
        "NaN": 'learning_rate = float("nan")',
        "0": "learning_rate = 0",
    },
    "rescue": {"no letter": 'answer = "e"', "a number": "answer = 3"},
    "saved": {
        "crashed": {'"done"': '"crashed"'},
        "another guard": {"sanitize_rewards": "clip_gradients"},
        "one step later": {"acted = 20": "acted = 21"},
        "a step as a text": {"acted = 20": 'acted = "20"'},
        "the reward before": {"0.645": "0.285"},
        "a percentage": {"0.645": "62.5"},
        "NaN": {"0.645": 'float("nan")'},
        "True": {"0.645": "True"},
    },
}
ANOTHER_WAY = {
    "reading": {"the norm within ten percent": {"906": "950.5"}},
    "guess": {"another letter": 'answer = "a"'},
    "out_of_range": {
        "a loop that asks whether it is a number": """
import math


def steps_out_of_range(norms, limit):
    found = []
    for step in range(len(norms)):
        if math.isnan(norms[step]) or norms[step] > limit:
            found.append(step)
    return found
"""
    },
    "learning_rate": {"another rate": "learning_rate = 4e-4"},
    "rescue": {"another letter": 'answer = "a"'},
    "saved": {"another run": {"0.645": "0.595"}},
}
