"""Lab 2: a gradient norm above 10,000 from a healthy start, the token that did it, and what bounds it."""

from __future__ import annotations

from grpo_lab.course import judges
from grpo_lab.course.exercises import Exercise, LabPage, Question
from grpo_lab.course.labs.lab_02_explosion import cases

EXERCISES = (
    Exercise(
        "forecast",
        "Predict: eight rounds of the reported loss",
        "prediction",
        minutes=2,
        difficulty=1,
        points=1,
        hints=(
            "Which norm is logged: the one before clipping, or the one after?",
            "A number in fp32 may be as large as 3.4e38. How much larger than that would a gradient have to be to "
            "become inf?",
            "AdamW divides the gradient by its own recent size. So how far does one step move a weight, however large "
            "the norm is?",
        ),
        check=judges.prediction("abcd"),
    ),
    Exercise(
        "gradient",
        "The side that min leaves open",
        "code",
        minutes=8,
        difficulty=2,
        points=3,
        hints=(
            "There are two branches, `r A` and `clip(r) A`. Ask first which of them `min` picks; only then "
            "differentiate.",
            "The clipped branch is constant outside the range, so its slope is 0. With A > 0 it is picked above the "
            "range. With A < 0, on which side?",
            "Two conditions give 0: `A > 0 and r > 1 + epsilon`, `A < 0 and r < 1 - epsilon`. Everywhere else the "
            "loss is "
            "`-r A`, and the slope of `e^x` is `e^x`.",
        ),
        check=cases.GRADIENT,
    ),
    Exercise(
        "reported",
        "How far is 113,818,385?",
        "configuration",
        minutes=2,
        difficulty=1,
        points=1,
        hints=(
            "On the open side, with A = -1, the slope is the ratio itself: e^nats.",
            "You are looking for the number whose exponential is 113,818,385.",
            "`math.log` is the natural logarithm.",
        ),
        check=cases.NATS,
    ),
    Exercise(
        "culprit",
        "Which token, and through which exp?",
        "code",
        minutes=8,
        difficulty=3,
        points=3,
        hints=(
            "You need one more tensor of the same shape: how strongly the KL term pulls on each token.",
            "The KL term is `beta * (e^d - 1 - d)` with `d = ref_logprobs - logprobs`, and here `d = -log_ratio`. Its "
            "derivative by d is `beta * (e^d - 1)`.",
            "`of_kl = beta * (torch.exp(-log_ratio) - 1).abs()`. Compare the two largest elements; "
            "`divmod(int(tensor.argmax()), width)` gives row and token.",
        ),
        check=cases.CULPRIT,
    ),
    Exercise(
        "log_ratio",
        "The right denominator",
        "code",
        minutes=4,
        difficulty=1,
        points=2,
        hints=(
            "The completions were drawn by some policy. The ratio corrects for the fact that it is no longer the "
            "current "
            "one. Which policy drew them?",
            "At the first update of a batch nothing has moved yet, so the ratio must be exactly 1 there.",
            "The batch holds `old_logprobs`, `ref_logprobs` and `sampling_logprobs`, each of shape (B, T).",
        ),
        check=cases.LOG_RATIO,
    ),
    Exercise(
        "bounded",
        "A KL estimate that cannot explode",
        "code",
        minutes=6,
        difficulty=2,
        points=3,
        hints=(
            "A clamp after `exp` mends the value. What does backward multiply its 0 with, once `exp` has returned inf?",
            "So bound the number that goes into `exp`, not the one that comes out.",
            "`delta.clamp(-limit, limit)` first; then k3 of that, in all of its terms.",
        ),
        check=cases.BOUNDED,
    ),
    Exercise(
        "in_words",
        "Why a harder clip will not do",
        "text",
        minutes=4,
        difficulty=2,
        points=2,
        hints=(
            "What does AdamW do with a factor that is common to all gradients of a step?",
            "What is the ratio there to correct? From which policy did the batch come, and what is the ratio at the "
            "first update?",
            "A full answer names (1) why the step is as long as before and its direction still wrong, (2) which "
            "policy belongs in the denominator, and what the ratio corrects, (3) the exp that is left, and where a "
            "bound belongs.",
        ),
        check=judges.text(40),
    ),
)

QUESTIONS = (
    Question(
        "PPO clips the ratio to [0.8, 1.2]. How can one token have a gradient of a hundred million?",
        (
            (
                "It cannot: a bug in the clipping must be behind it.",
                "The clip worked as written. min(r A, clip(r) A) takes the unclipped branch where that is the smaller.",
            ),
            (
                "With A < 0 and a large ratio, min picks the branch that is not clipped.",
                "Yes. That side has no bound: the slope is r · |A|, and r is e^(log-ratio).",
            ),
            (
                "Many small gradients add up over the tokens.",
                "They do add up, but a batch has some hundred tokens, not a hundred million. One token was enough.",
            ),
        ),
        right=1,
    ),
    Question(
        "Why is the reference the wrong denominator of the ratio, even where nothing explodes?",
        (
            (
                "The distance to it grows with all that was learned, so clipping binds although the last step was "
                "small.",
                "Yes. The ratio is there to correct for updates made since sampling; the reference has no part in "
                "that.",
            ),
            (
                "The reference is a larger model, so its probabilities are on another scale.",
                "It is a copy of the policy at the start, of the same size.",
            ),
            (
                "It is not wrong, only slower: its log-probabilities need another forward pass.",
                "The pass is needed for the KL anyway. What is wrong is what the ratio then means.",
            ),
        ),
        right=0,
    ),
    Question(
        "The norm was 60,000, the clip at 0.5 was on, and every weight is finite. Is the run all right?",
        (
            (
                "Yes, that is what clipping is for.",
                "Look at the reward: it fell to 0 and stayed there. The step had the usual length and a useless "
                "direction.",
            ),
            (
                "Yes, as long as no weight is NaN.",
                "Finite weights can hold a policy that says nothing but nines. Look at the samples.",
            ),
            (
                "No: one token chose the direction, and AdamW took a step of the usual length in it.",
                "Yes. Clipping bounds the length, AdamW divides the length out anyway, and neither mends the "
                "direction.",
            ),
        ),
        right=2,
    ),
)

LAB = LabPage(
    "02_explosion",
    "The explosion",
    minutes=45,
    difficulty=2,
    summary="You can make a gradient norm explode from a healthy start, name the token and the term that did it, and "
    "bound both.",
    exercises={exercise.name: exercise for exercise in EXERCISES},
    questions=QUESTIONS,
)
