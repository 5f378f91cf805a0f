"""Lab 5: what a KL estimate measures, what its gradient pulls on, and how the metric falls while the policy drifts."""

from __future__ import annotations

from grpo_lab.course import judges
from grpo_lab.course.exercises import Exercise, LabPage, Question
from grpo_lab.course.labs.lab_05_kl import cases

EXERCISES = (
    Exercise(
        "forecast",
        "Predict: what the fix did",
        "prediction",
        minutes=3,
        difficulty=1,
        points=1,
        hints=(
            "The estimate is computed from the tokens that were sampled, and from no others.",
            "Those tokens were sampled from the policy. Which of the two models finds them likelier, as a rule?",
            "Where the policy is the likelier one, `ref_logprobs - logprobs` is below 0. What does `clamp` leave?",
        ),
        check=judges.prediction("abcd"),
    ),
    Exercise(
        "k3",
        "k3, also near 0",
        "code",
        minutes=5,
        difficulty=1,
        points=2,
        hints=(
            "Write down e^delta - 1 - delta. It is never below 0 because e^delta lies above its tangent at 0.",
            "Try it on `delta = 1e-4` in fp32. The true value is 5e-9. What do you get, and why?",
            "`torch.expm1(x)` is e^x - 1, computed without forming e^x next to 1.",
        ),
        check=cases.K3,
    ),
    Exercise(
        "expected_gradient",
        "What the loss pulls on, without sampling noise",
        "code",
        minutes=8,
        difficulty=3,
        points=3,
        hints=(
            "With seven tokens an expectation is a sum of seven terms: probability times estimate.",
            "In training, tokens are drawn first, and the gradient goes through the estimate only. So which of the two "
            "factors must be kept out of the gradient?",
            "`log_p = theta.log_softmax(0)`; the weights are `log_p.exp().detach()`; and `torch.autograd.grad(loss,"
            " theta)` gives a tuple.",
        ),
        check=cases.EXPECTED_GRADIENT,
    ),
    Exercise(
        "pulls",
        "Match estimators and gradients",
        "choice",
        minutes=4,
        difficulty=2,
        points=2,
        hints=(
            "Read the table that your own function printed: four rows of estimators, below them the candidates.",
            "One of the rows is 0 everywhere. One is p - q.",
            "k2 is delta²/2. Its derivative by logp is logp - ref_logp: what KL(policy || reference) averages.",
        ),
        check=cases.MATCHES,
    ),
    Exercise(
        "straight",
        "An estimator that neither overflows nor lets go",
        "code",
        minutes=6,
        difficulty=2,
        points=3,
        hints=(
            "Split delta in two: the part up to the limit, and what is beyond it.",
            "`inside = delta.clamp(max=limit)` goes into k3. `delta - inside` is 0 up to the limit, and grows beyond.",
            "The slope of e^x - 1 - x at the limit is e^limit - 1: `math.expm1(limit)`.",
        ),
        check=cases.STRAIGHT,
    ),
    Exercise(
        "next_beta",
        "A beta that survives a NaN",
        "code",
        minutes=5,
        difficulty=2,
        points=2,
        hints=(
            "First ask whether the KL is a number at all. Every comparison with NaN is False, so `min` and `max` "
            "do not protect you.",
            "`math.isfinite(kl)` is False for NaN and for inf.",
            "`error = max(-0.2, min(0.2, kl / target - 1))`, then `beta * (1 + 0.1 * error)`.",
        ),
        check=cases.NEXT_BETA,
    ),
    Exercise(
        "review",
        "Review the fix",
        "text",
        minutes=5,
        difficulty=2,
        points=2,
        hints=(
            "What is the same before and after the change, and what is another? Think of policy, formula and tokens.",
            "For most sampled tokens delta is below 0. What are the value and the gradient of `delta.clamp(0, 10)` "
            "there? And beyond 10?",
            "A full answer names (1) that the formula changed and the policy need not have, (2) why it is 0 on most "
            "sampled tokens, (3) where the pull is gone, and (4) a measurement that would tell.",
        ),
        check=judges.text(40),
    ),
)

QUESTIONS = (
    Question(
        "A colleague replaces k3 by clamp(ref - logp, 0, 10), and the logged KL falls from 0.32 to 0.04. What do you "
        "know now?",
        (
            (
                "The policy is nearer to the reference.",
                "You know that another number is logged. The exact KL may have risen.",
            ),
            (
                "The metric changed; about the policy you know nothing yet.",
                "Yes. Compare like with like: log the exact KL, or k1 and k3 beside it.",
            ),
            (
                "The penalty is stronger than before.",
                "The hinge pulls on fewer tokens than k3, so it is weaker, if anything.",
            ),
        ),
        right=1,
    ),
    Question(
        "Why is k1 = logp - ref_logp a fair metric and a useless penalty?",
        (
            (
                "It is too noisy to train on.",
                "It is noisy, but that is not it: with all noise summed away its gradient is exactly 0.",
            ),
            ("It can be negative.", "It can, for one token. That does not make a gradient vanish."),
            (
                "Its mean is the KL, but its gradient through the sampled tokens has mean 0.",
                "Yes: that mean is the sum of p · grad log p, the gradient of 1. As part of the reward it does work.",
            ),
        ),
        right=2,
    ),
    Question(
        "Your KL is inf in one step of ten thousand, from one token 100 nats away. Under which remedy is that token "
        "pulled back?",
        (
            ("A smaller beta.", "0.001 times inf is inf."),
            (
                "Clamp delta at 10 before exp.",
                "It saves the run. But a clamped token has no gradient: nobody pulls it back.",
            ),
            (
                "Go on in a straight line beyond a limit.",
                "Yes. It stays finite, and the slope at the limit is what pulls.",
            ),
        ),
        right=2,
    ),
)

LAB = LabPage(
    "05_kl",
    "KL: the number and the pull",
    minutes=50,
    difficulty=2,
    summary="You can say what each KL estimator measures and pulls on, and when a falling KL metric means nothing.",
    exercises={exercise.name: exercise for exercise in EXERCISES},
    questions=QUESTIONS,
)
