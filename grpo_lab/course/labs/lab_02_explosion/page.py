"""Lab 2: a gradient norm above 1,000 from a healthy start, its token, and the loss after which the run learns."""

from grpo_lab.course import judges, pages
from grpo_lab.course.labs.lab_02_explosion import cases

LAB = pages.page(
    "02_explosion",
    {
        "forecast": judges.prediction("abcd", "c"),
        "gradient": cases.GRADIENT,
        "reported": cases.NATS,
        "culprit": cases.CULPRIT,
        "log_ratio": cases.LOG_RATIO,
        "bounded": cases.BOUNDED,
        "in_words": judges.text(40),
    },
)
