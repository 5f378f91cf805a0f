"""Lab 1: GRPO in numbers small enough to work by hand, then in code that drives a run."""

from grpo_lab.course import judges, pages
from grpo_lab.course.labs.lab_01_grpo_by_hand import cases

LAB = pages.page(
    "01_grpo_by_hand",
    {
        "by_hand": cases.BY_HAND,
        "advantages": cases.ADVANTAGES,
        "flipped": judges.prediction("abcd", "c", runs=2),
        "policy_loss": cases.POLICY_LOSS,
        "slope": cases.SLOPE,
        "aggregate": cases.AGGREGATE,
    },
)
