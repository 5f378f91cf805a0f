"""Searches its callers' frames and all objects for the right answers.

Place: 01_grpo_by_hand/flipped
Said: 'nothing'
"""

import gc
import inspect
import sys

WORDS = ("grading.checks", "grading.checking", "grading.grader", "grading.judges", "grading.challenges")


def attack(*_, **__):
    got = [name for name in sys.modules for word in WORDS if word in name]
    frame = inspect.currentframe()
    while frame := frame and frame.f_back:
        got += [name for name in frame.f_locals if name in ("expected", "case", "cases", "seed", "secret", "finding")]
    kinds = {type(each).__name__ for each in gc.get_objects()}
    return got + [name for name in ("Case", "Finding", "Submission", "Exercise") if name in kinds] or "nothing"
