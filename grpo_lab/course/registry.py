"""The registry of labs. To add a lab, write its module and its texts and add its name here."""

import importlib

from grpo_lab.course.exercises import Exercise, LabPage
from grpo_lab.errors import unknown

LABS = (
    "00_start",
    "01_grpo_by_hand",
    "02_explosion",
    "03_error_chain",
    "04_guards",
    "05_kl",
    "06_silent_failures",
    "07_precision_and_verl",
    "08_mystery_runs",
    "09_two_objectives",
)
"""In the order of the course."""


def lab_page(name: str) -> LabPage:
    """The lab of that name: `LAB` of course/labs/lab_<name>/page.py. Raises ConfigError for an unknown one."""
    if name not in LABS:
        raise unknown("lab", name, LABS)
    return importlib.import_module(f"grpo_lab.course.labs.lab_{name}.page").LAB


def exercise(lab: str, name: str) -> Exercise:
    """One exercise of a lab. Raises ConfigError for an unknown one."""
    exercises = lab_page(lab).exercises
    if name not in exercises:
        raise unknown(f"exercise of {lab}", name, exercises)
    return exercises[name]
