"""Lab 7: number formats, loss scaling, `!!!!!!!!`, spikes, and which of verl's remedies cure what."""

from __future__ import annotations

from grpo_lab.course import judges
from grpo_lab.course.exercises import Exercise, LabPage, Question
from grpo_lab.course.labs.lab_07_precision_and_verl import cases

EXERCISES = (
    Exercise(
        "forecast",
        "Predict: one cause in four formats",
        "prediction",
        minutes=2,
        difficulty=1,
        points=1,
        hints=(
            "The gradient norm of this cause is some 200,000 in fp32.",
            "The largest numbers are 3.4e38 in fp32 and bf16, and 65,504 in fp16.",
            "What is needed for a crash is an overflow, not a lack of digits.",
        ),
        check=judges.prediction("abcd"),
    ),
    Exercise(
        "largest",
        "The largest log-ratio of a format",
        "code",
        minutes=4,
        difficulty=1,
        points=2,
        hints=(
            "You want the x at which e^x reaches the largest number of the dtype.",
            "`torch.finfo(torch.float16).max` is 65504. `getattr(torch, 'float16')` is `torch.float16`.",
            "The inverse of exp is `math.log`.",
        ),
        check=cases.LARGEST,
    ),
    Exercise(
        "scaler",
        "What a loss scaler does",
        "code",
        minutes=8,
        difficulty=2,
        points=3,
        hints=(
            "Keep one more number than the scale: how many good updates there were in a row.",
            "An overflow halves the scale and sets the count to 0. When the count reaches the interval the scale "
            "doubles; "
            "what becomes of the count?",
            "For each mark: either `scale, good = scale / 2, 0` or `good += 1`; then, if `good == interval`, "
            "`scale, good = scale * 2, 0`; then append the scale.",
        ),
        check=cases.SCALES,
    ),
    Exercise(
        "masked",
        "A log-ratio without NaN",
        "code",
        minutes=8,
        difficulty=2,
        points=3,
        hints=(
            "Which tokens may keep their log-ratio? Those that are trained, and whose log-ratio is a number.",
            "Multiplying by 0 does not remove a NaN. `torch.nan_to_num` makes 3e38 of inf, and exp of that is inf "
            "again.",
            "`log_ratio.masked_fill(mask, 0.0)`, with a mask that is True where the token is not trained or "
            "`~log_ratio.isfinite()`.",
        ),
        check=cases.MASKED,
    ),
    Exercise(
        "remedy",
        "A remedy that keeps learning",
        "configuration",
        minutes=6,
        difficulty=2,
        points=3,
        hints=(
            "There are two kinds: guards that refuse a step, and guards that take something out of it.",
            "One or two of 32 completions are broken. It would be enough to leave those out, before the loss is "
            "computed.",
            "Look through `gl.GUARDS` for the guard whose stage is BATCH.",
        ),
        check=cases.REMEDY,
    ),
    Exercise(
        "cures",
        "Eight remedies for a spike",
        "choice",
        minutes=6,
        difficulty=2,
        points=2,
        hints=(
            "The loss and its gradient are there before clip, rate, optimizer and warm-up get to see them.",
            "In the table of your runs: under which override is the largest norm of an update that was *made* not a "
            "spike?",
            "Only one of the eight looks at the norm, before clipping, and refuses.",
        ),
        check=cases.CURES,
    ),
)

QUESTIONS = (
    Question(
        "bf16 has fewer digits than fp16. Why does cuda-001's cause kill the run in fp16 weights and not in bf16 "
        "weights?",
        (
            (
                "What kills it is an overflow, and bf16 reaches as far as fp32, to 3.4e38.",
                "Yes. Digits are precision, exponent bits are range; fp16 has few of the latter and ends at 65,504.",
            ),
            (
                "bf16 rounds the NaN away.",
                "No format does. A NaN stays one through every operation.",
            ),
            (
                "It does kill it in bf16 as well, only later.",
                "In your run no weight broke. The norm was as large as in fp32, and the reward as bad.",
            ),
        ),
        right=0,
    ),
    Question(
        "The answers of your model have become !!!!!!!! overnight. What do you look for first?",
        (
            (
                "The reward function: it must be paying for exclamation marks.",
                "Possible, but such a policy drifts there. All answers alike from one step to the next is something "
                "else.",
            ),
            (
                "The temperature, which must have become 0.",
                "Greedy decoding of a healthy model gives answers. It is the argmax of a row of NaN that is token 0.",
            ),
            (
                "The first step whose log-probabilities were not finite; the weights are NaN since then.",
                "Yes. Greedy decoding does not crash: the argmax of NaN is 0, and token 0 is ! in many vocabularies.",
            ),
        ),
        right=2,
    ),
    Question(
        "Norm and KL show one spike, the reward curve looks fine. What does that tell you about the run?",
        (
            (
                "The run is fine: the reward is what counts.",
                "The reward was computed before the sample was damaged, and is a mean over many. It cannot tell.",
            ),
            (
                "Nothing yet: look at that step's samples, at the largest log-ratio, and at whether the update was "
                "made.",
                "Yes. One corrupt sample and the beginning of a collapse look alike for one step.",
            ),
            (
                "The learning rate is too high.",
                "Then the KL would stay high. Here it was back in the next step, and a tenth of the rate changed "
                "nothing.",
            ),
        ),
        right=1,
    ),
)

LAB = LabPage(
    "07_precision_and_verl",
    "Precision, and verl's remedies",
    minutes=45,
    difficulty=3,
    summary="You can say what each number format breaks, trace `!!!!!!!!` to its first NaN, and tell a remedy from a "
    "decoy by measuring.",
    exercises={exercise.name: exercise for exercise in EXERCISES},
    questions=QUESTIONS,
)
