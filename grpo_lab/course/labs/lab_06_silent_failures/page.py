"""Lab 6: runs in which every number is finite, every guard content, and something is wrong."""

from grpo_lab.course import judges, pages
from grpo_lab.course.labs.lab_06_silent_failures import cases

LAB = pages.page(
    "06_silent_failures",
    {
        "forecast": judges.prediction("abcd", "d"),
        "one_update": cases.ONE_UPDATE,
        "completion_mask": cases.MASK,
        "mismatch": cases.MISMATCHES,
        "which": cases.WHICH,
    },
)
