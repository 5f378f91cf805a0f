r"""Sends a refusal of half a character, which no report could hold.

Place: 02_explosion/forecast
Said: half of a character: \?
"""

import inspect
import json
import os


def attack(*_, **__):
    known = {}
    frame = inspect.currentframe()
    while frame := frame and frame.f_back:
        known |= {name: frame.f_locals[name] for name in ("asked", "replies") if name in frame.f_locals}
    for line in ({"refused": "half of a character: \ud800"}, {"end": 1}):
        os.write(known["replies"], json.dumps(line).encode() + b"\n")
    os._exit(0)
