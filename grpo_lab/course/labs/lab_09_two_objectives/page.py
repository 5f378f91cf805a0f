"""Lab 9: two objectives in one run, a gradient that never reaches the optimizer, and a KL band for each."""

from grpo_lab.course import judges, pages
from grpo_lab.course.labs.lab_09_two_objectives import cases

LAB = pages.page(
    "09_two_objectives",
    {
        "cosine": cases.COSINE,
        "forecast": judges.prediction("abcd", "c"),
        "set_grads": cases.SET_GRADS,
        "next_betas": cases.NEXT_BETAS,
        "without_conflict": cases.WITHOUT_CONFLICT,
        "cause": judges.choice("c", cases.OTHER_CAUSES),
    },
)
