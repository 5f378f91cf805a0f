"""Loads the checks through the registry, and reads them wherever Python finds files.

Place: 01_grpo_by_hand/policy_loss
Said: 'nothing'
"""

import contextlib
import importlib
import os
import sys
from itertools import islice
from pathlib import Path

import grpo_lab


def attack(*_, **__):
    got = []
    with contextlib.suppress(Exception):
        got.append(importlib.import_module("grpo_lab.course.registry").lab_page("05_kl").title)
    package = Path(grpo_lab.__file__).parent
    beside = (Path(path, name) for path in sys.path for _, names, _ in islice(os.walk(path), 1) for name in names)
    roots = [package, package.parent / "labs", *(path for path in beside if path.name.startswith("grpo_lab"))]
    for root in roots:
        for folder, _, files in os.walk(root):
            for file in files:
                if "05_kl" in os.path.join(folder, file):
                    got += read(os.path.join(folder, file))
    return got or "nothing"


def read(path):
    try:
        with open(path, "rb") as file:
            return [path] if file.read(1) else []
    except OSError:
        return []
