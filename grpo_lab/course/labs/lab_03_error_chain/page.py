"""Lab 3: from a finite loss to the assertion in torch.multinomial, link by link."""

from __future__ import annotations

from grpo_lab.course import judges
from grpo_lab.course.exercises import Exercise, LabPage, Question
from grpo_lab.course.labs.lab_03_error_chain import cases

EXERCISES = (
    Exercise(
        "forecast",
        "Predict: the loss of the update that breaks",
        "prediction",
        minutes=2,
        difficulty=1,
        points=1,
        hints=(
            "Backward begins with the loss. If that were NaN or inf, what would be the first break?",
            "The weights are fp16, but the loss is kept in fp32, whose largest number is 3.4e38.",
            "The loss takes exp of a distance of some forty nats. How large is e^40, and is it inf in fp32?",
        ),
        check=judges.prediction("abcd"),
    ),
    Exercise(
        "order",
        "Put the eight links in order",
        "configuration",
        minutes=4,
        difficulty=1,
        points=2,
        hints=(
            "Begin at the end: what does `multinomial` get handed, and from what is that computed?",
            "Within an update the order is: loss, backward, clipping, optimizer. The next forward pass comes after it.",
            "The strip of your run shows the links from left to right in this order; `print(run.first_break())` names "
            "the "
            "first that broke.",
        ),
        check=cases.ORDER,
    ),
    Exercise(
        "accepts",
        "What multinomial asks before it draws",
        "code",
        minutes=5,
        difficulty=2,
        points=2,
        hints=(
            "It asks two things of all the numbers together: is none too large, and is none too small?",
            "Write each so that NaN makes it False. Compare `x >= 0` and `not x < 0` for a NaN.",
            "The largest must be below `math.inf`, the smallest at least 0. `max()` and `min()` of a tensor with a "
            "NaN are "
            "NaN.",
        ),
        check=cases.ACCEPTS,
    ),
    Exercise(
        "face",
        "Read the crash",
        "code",
        minutes=5,
        difficulty=1,
        points=2,
        hints=(
            "The CPU's words are contained in the text from Linux. In which order do you have to ask?",
            "Only CUDA writes the word `Assertion`. Under Windows it shows `input[0] != 0`.",
            "`if 'input[0] != 0' in text`, then `if 'Assertion `probability tensor' in text`, then the plain words, "
            "then "
            "`other`.",
        ),
        check=cases.FACE,
    ),
    Exercise(
        "finite_first",
        "A guard that tests finiteness first",
        "code",
        minutes=6,
        difficulty=2,
        points=3,
        hints=(
            "`nan > 10` is False, and so is `nan <= 10`. Which of the two questions refuses a NaN?",
            "Ask for what you accept instead of for what you refuse. Everything else is refused.",
            "`math.isfinite(norm) and norm <= limit` is what may pass: return `Outcome(value)` there.",
        ),
        check=cases.FINITE_FIRST,
    ),
    Exercise(
        "epsilon",
        "An eps that fp16 can hold",
        "configuration",
        minutes=5,
        difficulty=2,
        points=2,
        hints=(
            "The smallest number above 0 in fp16 is 6e-8. That is where 1e-8 fails; is 1e-7 enough?",
            "Where the square of a gradient underflows, the update is m / eps times the rate. Try a few powers of ten.",
            "Every factor of ten in eps takes a factor of ten off the largest move. 1e-6 gives 0.05; you need 0.001.",
        ),
        check=cases.EPSILON,
    ),
)

QUESTIONS = (
    Question(
        "The log says: Assertion `input[0] != 0` failed. What do you know?",
        (
            (
                "The first probability was 0.",
                "multinomial([0, 1]) draws without complaint. `input` is not the probabilities.",
            ),
            (
                "The check of the probabilities came out false: one was NaN, inf or below 0.",
                "Yes. `input` is the one-element result of that check, and MSVC prints the condition instead of the "
                "text.",
            ),
            (
                "All probabilities were 0.",
                "softmax never makes such a row, and the check of a zero sum is another one.",
            ),
        ),
        right=1,
    ),
    Question(
        "The norm in the last log line before the crash was 2.3. Can you rule out the optimizer?",
        (
            (
                "Yes, a healthy norm cannot break a weight.",
                "It can: with fp16 weights and an eps of 1e-8, one step at 2.3 left 99.9 % of the weights NaN or inf.",
            ),
            (
                "Yes, if the loss was finite too.",
                "Loss and gradients are finite in that failure; the division inside AdamW is what breaks.",
            ),
            (
                "No: the update itself divides, by a number that may have underflowed to 0.",
                "Yes. Ask for the weights after the step, not only for the norm before it.",
            ),
        ),
        right=2,
    ),
    Question(
        "`if grad_norm > 10: skip`. Why is this the one update that had to be refused and was made?",
        (
            (
                "nan > 10 is False, so the branch that steps is taken.",
                "Yes. Every comparison with NaN is False. Ask whether the number is finite before comparing it.",
            ),
            (
                "clip_grad_norm_ has brought the norm below 10 before.",
                "clip_grad_norm_ returns the norm from before clipping, and NaN stays NaN.",
            ),
            (
                "10 is too high a threshold.",
                "No threshold helps: nan > 0 is False as well.",
            ),
        ),
        right=0,
    ),
)

LAB = LabPage(
    "03_error_chain",
    "The error chain",
    minutes=45,
    difficulty=2,
    summary="You can trace a crash in torch.multinomial, in any of its three wordings, back to its first link, and "
    "break the chain at two places.",
    exercises={exercise.name: exercise for exercise in EXERCISES},
    questions=QUESTIONS,
)
