"""Lab 6: runs in which every number is finite, every guard content, and something is wrong."""

from __future__ import annotations

from grpo_lab.course import judges
from grpo_lab.course.exercises import Exercise, LabPage, Question
from grpo_lab.course.labs.lab_06_silent_failures import cases

EXERCISES = (
    Exercise(
        "forecast",
        "Predict: who makes KL = 0.000",
        "prediction",
        minutes=3,
        difficulty=1,
        points=1,
        hints=(
            "KL = 0.000 means that policy and reference are the same weights. So ask of each: does a weight move?",
            "After `zero_grad`, what does the optimizer find? And what does it find when one micro-batch is left?",
            "Read the three loops line by line and write down what is in `.grad` when `step` is called.",
        ),
        check=judges.prediction("abcd"),
    ),
    Exercise(
        "one_update",
        "Accumulation that equals one batch",
        "code",
        minutes=9,
        difficulty=3,
        points=3,
        hints=(
            "`backward` adds to what is in `.grad`. So clear it once, call `backward` for every part, `step` once.",
            "The loss of the whole batch is a sum over all trained tokens, divided by their number. A part "
            "contributes its own sum, and is divided by the same number.",
            "Count first: `total = sum(part.mask.sum() for part in parts)`. In the loop: "
            "`(loss_of(part) * part.mask).sum() / total`.",
        ),
        check=cases.ONE_UPDATE,
    ),
    Exercise(
        "completion_mask",
        "A mask from positions",
        "code",
        minutes=7,
        difficulty=2,
        points=2,
        hints=(
            "Which token is the last one that was sampled? Count end tokens from the left.",
            "`ends = tokens == end` is True at end tokens, and `ends.cumsum(dim=1)` counts them, each with itself.",
            "A position is padding when an end token stands *before* it: subtract the position itself from the count.",
        ),
        check=cases.MASK,
    ),
    Exercise(
        "mismatch",
        "The number that shows an ignored temperature",
        "code",
        minutes=4,
        difficulty=1,
        points=2,
        hints=(
            "Two sets of log-probabilities of the same tokens: the sampler's, and those that the loss uses.",
            "`(old_logprobs - sampling_logprobs)[mask]` keeps trained tokens alone.",
            "`.abs()` first, then `.mean()` and `.max()`; `float(...)` makes plain numbers of them.",
        ),
        check=cases.MISMATCHES,
    ),
    Exercise(
        "which",
        "Tell them apart by their records",
        "code",
        minutes=10,
        difficulty=3,
        points=4,
        hints=(
            "Go through the table above row by row, and look for a number that is unlike the others of its row.",
            "Ask in an order: were there groups with something to teach? Is the gradient 0? Do sampler and trainer "
            "agree? Is the ratio 1?",
            "Two pairs need a second look. Gradient 0: do the weights move? Sampler and trainer disagree: by about 4 "
            "nats at most, or by more than 10?",
        ),
        check=cases.WHICH,
    ),
)

QUESTIONS = (
    Question(
        "KL is 0.000 for fifty steps. What do you look at first?",
        (
            ("beta, and raise it.", "It weighs a term whose value is 0. Nothing will come of it."),
            (
                "Whether any weight moves, and what is in .grad when step is called.",
                "Yes. Policy and reference are the same weights: either no update is made, or it is made of zeros.",
            ),
            ("The KL estimator.", "Every estimator is 0 where policy and reference agree, and they do."),
        ),
        right=1,
    ),
    Question(
        "All rewards of all groups are equal, and yet every weight moves by about as much as in a healthy run. How?",
        (
            (
                "AdamW divides by the size of the gradient: of a tiny one, rounding or the KL term, it makes a full "
                "step.",
                "Yes. Measured here: a gradient norm a hundred times smaller, and four fifths of the movement.",
            ),
            (
                "Advantages of equal rewards are not 0.",
                "In a naive formula they are not; in this run they are exactly 0.",
            ),
            ("Weight decay.", "It is 0 here."),
        ),
        right=0,
    ),
    Question(
        "The temperature never reaches the sampler. Why does the ratio not show it?",
        (
            ("Clipping hides it.", "Nothing is clipped: the ratio is exactly 1."),
            (
                "Both passes that it compares compute log-probabilities in the same, wrong, way.",
                "Yes. Only the sampler's own log-probabilities tell. vLLM and the like return them: log the "
                "difference.",
            ),
            ("The temperature cancels in a softmax.", "It does not: it changes how peaked the distribution is."),
        ),
        right=1,
    ),
)

LAB = LabPage(
    "06_silent_failures",
    "Silent failures",
    minutes=45,
    difficulty=2,
    summary="You can name a failure that no guard sees from eight numbers of its record, and write what prevents it.",
    exercises={exercise.name: exercise for exercise in EXERCISES},
    questions=QUESTIONS,
)
