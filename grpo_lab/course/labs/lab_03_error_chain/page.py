"""Lab 3: from a finite loss to the assertion in torch.multinomial, link by link."""

from grpo_lab.course import judges, pages
from grpo_lab.course.labs.lab_03_error_chain import cases

LAB = pages.page(
    "03_error_chain",
    {
        "forecast": judges.prediction("abcd", "c"),
        "order": cases.ORDER,
        "accepts": cases.ACCEPTS,
        "face": cases.FACE,
        "finite_first": cases.FINITE_FIRST,
        "epsilon": cases.EPSILON,
    },
)
