"""Lab 1: GRPO in numbers small enough to work by hand, then in code that drives a run."""

from __future__ import annotations

from grpo_lab.course import judges
from grpo_lab.course.exercises import Exercise, LabPage, Question
from grpo_lab.course.labs.lab_01_grpo_by_hand import cases

EXERCISES = (
    Exercise(
        "by_hand",
        "One group, one token, five numbers",
        "configuration",
        minutes=6,
        difficulty=1,
        points=2,
        hints=(
            "The mean of 1 0 0 0 is 0.25. The deviations are 0.75 and three times -0.25.",
            "Squares: 0.5625 and three times 0.0625, together 0.75. Divide by G - 1 = 3, take the root: that is the "
            "std.",
            "The clipped ratio is 1.2. With A = 1.5 compare 1.649 · 1.5 with 1.2 · 1.5; with A = -0.5 compare -0.824 "
            "with -0.6. The minimum is the smaller number, and the loss is minus that.",
        ),
        check=cases.BY_HAND,
    ),
    Exercise(
        "advantages",
        "Advantages of many groups at once",
        "code",
        minutes=6,
        difficulty=1,
        points=2,
        hints=(
            "`rewards` has a row for each group. `rewards.mean(dim=1, keepdim=True)` keeps the shape that can be "
            "subtracted.",
            "torch's `std` divides by G - 1 unless told otherwise. Two kinds of group need care: equal rewards, and "
            "one completion alone.",
            "A row whose largest and smallest reward are the same says nothing: `masked_fill` its advantages with 0. "
            "A group of one can return zeros before anything is computed.",
        ),
        check=cases.ADVANTAGES,
    ),
    Exercise(
        "flipped",
        "Predict: one sign is wrong",
        "prediction",
        minutes=2,
        difficulty=1,
        points=1,
        hints=(
            "What size does a gradient have when every advantage is multiplied by -1?",
            "Which completions are made likelier then, and what does that do to the next batch's rewards?",
            "When all completions of a group are equally wrong, what are their advantages, and how large is the "
            "gradient?",
        ),
        check=judges.prediction("abcd"),
    ),
    Exercise(
        "policy_loss",
        "The clipped loss of every token",
        "code",
        minutes=6,
        difficulty=2,
        points=3,
        hints=(
            "Begin with the ratio: exp of a difference of log-probabilities. Shapes: `logprobs` is (B, T), "
            "`advantages` (B,).",
            "`advantages[:, None]` is (B, 1) and meets (B, T) row by row.",
            "`clipped = ratio.clamp(1 - epsilon, 1 + epsilon_high)`, then minus the `torch.min` of two products.",
        ),
        check=cases.POLICY_LOSS,
    ),
    Exercise(
        "slope",
        "A derivative without calculus",
        "code",
        minutes=3,
        difficulty=1,
        points=1,
        hints=(
            "A slope is a rise over a run.",
            "Go one step of `h` to the right and one to the left. How far apart are the two points?",
            "The rise is `f(x + h) - f(x - h)`.",
        ),
        check=cases.SLOPE,
    ),
    Exercise(
        "aggregate",
        "From tokens to one number, three ways",
        "code",
        minutes=6,
        difficulty=2,
        points=2,
        hints=(
            "All three are a sum over trained tokens, divided by something. What differs is the something.",
            "Padding may hold anything, NaN included. `masked_fill(mask == 0, 0.0)` replaces it; multiplying does not.",
            "Lengths are `mask.sum(dim=1)`; rows and width are `mask.shape`. For `sequence` divide each row's sum by "
            "its length before you average.",
        ),
        check=cases.AGGREGATE,
    ),
)

QUESTIONS = (
    Question(
        "The policy loss of a healthy run hovers around 0 while its reward doubles. Why?",
        (
            ("The learning rate is too small to show.", "The reward doubled: something was learned."),
            (
                "At the first update every ratio is 1, and the advantages of a group sum to 0.",
                "Yes. The loss is -A averaged over tokens, about 0 whatever the policy. Its gradient is not.",
            ),
            ("Clipping bounds it at 0.", "Clipping bounds the ratio, and at the first update nothing is clipped."),
        ),
        right=1,
    ),
    Question(
        "Without the division by the standard deviation the gradient norm of the same run is about half as large. How "
        "does that change what AdamW learns here?",
        (
            (
                "Hardly: AdamW divides a common factor out again.",
                "Yes: in 40 steps both runs above came from 0.35 to 0.57. What changes is which prompts weigh more.",
            ),
            (
                "It learns half as fast.",
                "With plain gradient descent it would. AdamW's step does not depend on a common factor.",
            ),
            (
                "It does not learn: the advantages are too small.",
                "The run without it learned as much. Try it in the panel.",
            ),
        ),
        right=0,
    ),
    Question(
        "A token belongs to a completion of 100 tokens, another one to a completion of 10. How much does each weigh "
        "in a sequence mean?",
        (
            ("The same.", "That is the token mean."),
            (
                "The one in the short completion ten times as much.",
                "Yes. So long wrong answers are punished less for each of their tokens: the length bias that DAPO and "
                "Dr. GRPO removed.",
            ),
            (
                "The one in the long completion ten times as much.",
                "The other way round: each completion shares a weight of 1.",
            ),
        ),
        right=1,
    ),
)

LAB = LabPage(
    "01_grpo_by_hand",
    "GRPO by hand",
    minutes=40,
    difficulty=1,
    summary="You can work a GRPO loss out on paper, write it in a few lines, check its gradient and drive a run with "
    "it.",
    exercises={exercise.name: exercise for exercise in EXERCISES},
    questions=QUESTIONS,
)
