"""Lab 5: KL estimators, their gradients, and a KL metric that falls while the policy drifts."""

from grpo_lab.course import judges, pages
from grpo_lab.course.labs.lab_05_kl import cases

LAB = pages.page(
    "05_kl",
    {
        "forecast": judges.prediction("abcd", "b"),
        "k3": cases.K3,
        "expected_gradient": cases.EXPECTED_GRADIENT,
        "pulls": cases.MATCHES,
        "straight": cases.STRAIGHT,
        "next_beta": cases.NEXT_BETA,
        "review": judges.text(40),
    },
)
