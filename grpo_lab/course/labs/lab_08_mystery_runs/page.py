"""Lab 8: eight anonymous runs, a broken trainer, and a configuration of one's own."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from grpo_lab.config.catalog import preset
from grpo_lab.config.schema import Config
from grpo_lab.course import judges, mysteries, trials
from grpo_lab.course.compare import shown
from grpo_lab.course.exercises import Exercise, Finding, Function, LabPage, Question, Values
from grpo_lab.course.labs.lab_08_mystery_runs import cases as repairs
from grpo_lab.course.labs.lab_08_mystery_runs import first_break_cases as chains
from grpo_lab.events import Stepped

NAMES = tuple(sorted((*mysteries.CAUSES, *mysteries.DECOYS)))


def by_hand(values: Mapping[str, Any], seed: int) -> Iterator[Finding]:
    """Any eight of the names will do: what counts is that they were written down before the tool was asked."""
    yield _well_formed(values["answer"])


def verdicts(values: Mapping[str, Any], seed: int) -> Iterator[Finding]:
    """One finding a run, against the key of those that were asked about."""
    answer, key = values["answer"], mysteries.key_in_force()
    form = _well_formed(answer)
    if not form.right or key is None:
        yield form if key else form._replace(what="the form of your list; whoever gave you these runs has their key")
        return
    for number, cause in key.items():
        why = _WHY.get((cause, answer[number])) or _LOOK[cause]
        right = answer[number] == cause
        yield Finding(right, mysteries.name(number), answer[number], "the cause", "" if right else why)


def _well_formed(answer: Any) -> Finding:
    what, expected = "your list", "eight lines, 1 to 8, each with one of the names"
    if not isinstance(answer, dict) or sorted(answer, key=str) != list(range(1, 9)):
        return Finding(False, what, shown(answer), expected, "Each of the runs 1 to 8 gets one line.")
    strangers = [name for name in answer.values() if name not in NAMES]
    why = f"Not among the names: {shown(strangers)}. They are: {', '.join(NAMES)}." if strangers else ""
    return Finding(not strangers, what, f"{8 - len(strangers)} of 8 filled in", expected, why)


_LOOK = {
    "healthy": "Name the curve that leaves its usual range, and the step. Is there one?",
    "explosion": "Follow norm, KL and largest ratio from step to step: do they belong together, and do they grow?",
    "optimizer-overflow": "What was the norm of the last step that was finished, and what of the weights after it?",
    "nan-logprob": "Ask the chain which link broke first: open the run and print its first_break().",
    "bad-batch": "How many steps does it last, and what does the reward do meanwhile?",
    "kl-hidden": "Read the completions of the first step and of the last. Can the KL that was reported be true?",
    "sampler-mismatch": "One metric compares what the sampler said of a token with what the trainer says. Find it.",
    "lost-unscale": "Look at the very first step: the norm, and then KL and ratio. What grows after it?",
}
_WHY = {
    ("lost-unscale", "explosion"): "In an explosion KL or ratio are as loud as the norm. Are they, here?",
    ("kl-hidden", "healthy"): "The KL is low, and so is the reward. One of the two does not tell the whole story.",
    ("optimizer-overflow", "nan-logprob"): "Which link broke first? Everything before it was finite.",
    ("bad-batch", "explosion"): "An explosion does not come back on its own.",
}


HARMS = {
    "a judge returns NaN once": ("faults.nan_reward.at_step=1",),
    "a token 100 nats below the reference": ("faults.shift_kl_delta.nats=100", "faults.shift_kl_delta.at_step=1"),
    "a token 100 nats above the old policy": ("faults.shift_log_ratio.nats=100", "faults.shift_log_ratio.at_step=1"),
    "one NaN among the gradients": ("faults.nan_gradient.at_step=1",),
    "the weights are fp16": ("model.precision=fp16_pure",),
}
"""What happens to the learner's configuration, one thing at a time."""
SECTIONS = ("loss", "optimizer", "sampling")


def stable(values: Mapping[str, Any], seed: int) -> Iterator[Finding]:
    """The documents' configuration with the answer over it: does it learn, alone and under harm."""
    guards = trials.guards_of(values["guards"])
    overrides = trials.overrides_of(values["overrides"], SECTIONS)
    config = trials.affordable(preset("original").with_(*overrides).with_guards(guards))
    yield from trials.learns(config, seed)
    yield denominator(config, seed)
    yield trials.leaves_gradient(config, seed)
    for what, harm in HARMS.items():
        harmed = config.with_("data.num_prompts=4", "run.num_steps=6", *harm)
        why = (
            "Which link broke first? Run it with lab.run, print its first_break(), and see which guard sits before it."
        )
        yield trials.survives(harmed, what, seed, why)


def denominator(config: Config, seed: int) -> Finding:
    """Before the first update of a batch the policy is still the one that sampled it, so every ratio is 1."""
    session = trials.run(config.with_("data.num_prompts=4", "run.num_steps=6", "loss.num_iterations=1"), seed)
    steps = [event.metrics for event in session.events if isinstance(event, Stepped)]
    ratios = [metrics.get("ratio/max", math.nan) for metrics in steps]
    fine = all(ratio < 1.05 for ratio in ratios)
    why = "Which policy is in the denominator? Before a batch's first update nothing has moved since it was sampled."
    what = "with one update a batch every ratio is 1"
    return Finding(fine, what, f"largest ratio {max(ratios):.4g}", "1, but for rounding", "" if fine else why)


EXERCISES = (
    Exercise(
        name="by_hand",
        title="Eight runs, by eye",
        kind="prediction",
        minutes=7,
        difficulty=2,
        points=1,
        hints=(
            "Begin with what is certain: which runs end in a crash, and which one has nothing out of its range?",
            "Ask each run four questions. Was the first step healthy? What left its range first? Did it come back? "
            "Does the reward agree with the KL?",
            "A huge norm beside a quiet KL is a scale; beside a huge KL it is an explosion; for one step it is a "
            "sample. A gap between sampler and trainer has a metric of its own.",
        ),
        check=Values(("answer",), by_hand),
    ),
    Exercise(
        name="first_break",
        title="Which link broke first",
        kind="code",
        minutes=7,
        difficulty=2,
        points=4,
        hints=(
            "Large is not broken: a step may have a norm of 60,000 and every number in it be finite. Which of the "
            "four parts of a note says whether all of it is?",
            "Two loops, steps outside and notes inside, and a `return` at the first note whose share is below 1. "
            "The notes come in the order of the chain, so sort nothing. Then pass over the two exceptions.",
            "Before the inner loop collect the updates whose loss is finite: `{update for link, update, finite, _ "
            "in notes if link == 'loss' and finite == 1}`. A `ratio` in one of these is no break, nor are `logits` "
            "with `largest == math.inf`.",
        ),
        check=Function("first_break", chains.cases, relations=chains.RELATIONS),
    ),
    Exercise(
        name="verdicts",
        title="Eight runs, with every tool",
        kind="choice",
        minutes=5,
        difficulty=2,
        points=4,
        hints=(
            "`gl.diagnose` reads metrics alone. Where it names a cause that is not in the list, it has told you what "
            "it could not see.",
            "Its `findings[0].cause.suspects` and `tell_apart` say what to look at next; the samples are in the panel, "
            "below the time slider.",
            "One run keeps a low KL while its completions turn into something else altogether. A number that stays "
            "calm while the text changes does not measure the change.",
        ),
        check=Values(("answer",), verdicts),
    ),
    Exercise(
        name="objective",
        title="Repair the objective",
        kind="code",
        minutes=6,
        difficulty=3,
        points=3,
        hints=(
            "Two distances: to the policy that sampled (`old_logprobs`), for the ratio; to the reference, for the KL. "
            "`delta` is the second one.",
            "Padding first: `masked_fill(mask == 0, 0.0)` on both differences. Then `clamp(-5, 5)` and "
            "`clamp(-10, 10)`. Only then `exp`.",
            "`per_token = -torch.min(...) + 0.05 * (torch.expm1(delta) - delta)`, and at the end "
            "`(per_token * mask).sum() / mask.sum()`.",
        ),
        check=repairs.OBJECTIVE,
    ),
    Exercise(
        name="gradients",
        title="Repair the accumulation",
        kind="code",
        minutes=3,
        difficulty=1,
        points=2,
        hints=(
            "What is left of the first micro-batch when the second one has been set?",
            "`copy_` replaces what is there; its neighbour in the documents' repair adds to it.",
            "`p.grad = g.clone()` the first time, `p.grad.add_(g)` every other time.",
        ),
        check=repairs.SET_GRADIENTS,
    ),
    Exercise(
        name="update",
        title="Repair the update",
        kind="code",
        minutes=6,
        difficulty=3,
        points=3,
        hints=(
            "Write down what belongs before the loop, into it, and behind it.",
            "Before: `zero_grad`. In it: `(loss() / len(losses)).backward()`, which adds. Behind it: norm and step.",
            "`norm = torch.nn.utils.clip_grad_norm_(parameters, max_norm)` returns the norm before clipping; "
            "`if norm.isfinite(): optimizer.step()`.",
        ),
        check=repairs.UPDATE,
    ),
    Exercise(
        name="stable",
        title="The stable configuration",
        kind="configuration",
        minutes=10,
        difficulty=3,
        points=6,
        hints=(
            "Two questions, apart from each other: why does the documents' configuration learn nothing (formula and "
            "rate), and what may happen to it that no formula prevents (guards)?",
            "Formula: which policy does the ratio compare with? Rate: 1e-5 was meant for a model 150 times larger. "
            "Guards: one that refuses NaN, one for the eps of fp16, and clamps before exp if you want to save the "
            "batch instead of skipping it.",
            "Preset `stable` is one answer: look at `gl.preset('stable')`. Two or three overrides and two to four "
            "guards are enough.",
        ),
        check=Values(("overrides", "guards"), stable),
    ),
    Exercise(
        name="defence",
        title="Defend your configuration",
        kind="text",
        minutes=4,
        difficulty=2,
        points=2,
        hints=(
            "One sentence a part: the denominator, the rate, each guard. Name the failure that comes back without it.",
            "Keep two things apart: what makes it learn, and what lets it survive. A guard that never acted in your "
            "runs is worth a sentence, too.",
            "A full answer names (1) for formula, rate and every guard the failure that it stops, (2) which of "
            "these it takes to learn, and (3) at least one finite and wrong thing that no guard sees, and what would "
            "show it.",
        ),
        check=judges.text(40),
    ),
)
QUESTIONS = (
    Question(
        "gl.diagnose says `healthy`. What do you know?",
        (
            (
                "The run is correct.",
                "Accumulation that overwrites looked healthy in ten steps of its log, and most of the batch was lost.",
            ),
            (
                "Nothing in the curves that were logged is out of order.",
                "That is all a log can say. Once, compare the "
                "gradient of one large batch with that of its micro-batches.",
            ),
            ("The reward will go on rising.", "It looks at what happened, and at nothing that will."),
        ),
        1,
    ),
    Question(
        "Why is `optimizer.zero_grad()` in place of a skipped step not enough?",
        (
            (
                "It is enough: without a gradient nothing moves.",
                "AdamW moves by its first moment, which still holds the steps before; weight decay acts too.",
            ),
            ("zero_grad is slow.", "It costs next to nothing."),
            ("AdamW steps on its moments, and on none of them if it is not called.", "Skip means: do not call step."),
        ),
        2,
    ),
    Question(
        "Every weight is finite and no guard has acted. What does your stable configuration still not protect from?",
        (
            ("From a NaN in a reward.", "That is not finite, and refused where it reaches the gradient at the latest."),
            (
                "From numbers that are finite and wrong: a loss, a mask, a temperature, a rate.",
                "Ten of twenty-three "
                "scenarios are of this kind, and no guard of `stable` sees them. For these there are metrics and eyes.",
            ),
            ("From a crash in multinomial.", "That needs weights that are not finite."),
        ),
        1,
    ),
)
LAB = LabPage(
    name="08_mystery_runs",
    title="Mystery runs",
    minutes=50,
    difficulty=3,
    summary="You can name the cause of a broken run from its record, repair the trainer, and configure one that holds.",
    exercises={exercise.name: exercise for exercise in EXERCISES},
    questions=QUESTIONS,
)
