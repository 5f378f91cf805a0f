"""Lab 7: number formats, loss scaling, `!!!!!!!!`, spikes, and verl's remedies."""

from grpo_lab.course import judges, pages
from grpo_lab.course.labs.lab_07_precision_and_verl import cases

LAB = pages.page(
    "07_precision_and_verl",
    {
        "forecast": judges.prediction("abcd", "b"),
        "largest": cases.LARGEST,
        "scaler": cases.SCALES,
        "masked": cases.MASKED,
        "remedy": cases.REMEDY,
        "cures": cases.CURES,
    },
)
