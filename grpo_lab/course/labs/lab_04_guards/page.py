"""Lab 4: what each guard stops, costs and hides, and the smallest set that is enough."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from grpo_lab.config.catalog import preset
from grpo_lab.course import judges, trials
from grpo_lab.course.compare import shown
from grpo_lab.course.exercises import Exercise, Finding, LabPage, Question, Values
from grpo_lab.course.labs.lab_04_guards import cases
from grpo_lab.errors import ConfigError

ALONE = ("zero-times-infinity", "fp16-adam-epsilon", "nan-reward")
"""Failures that more than one guard is recommended against, and of which each has one that stops it alone."""


def alone(values: Mapping[str, Any], seed: int) -> Iterator[Finding]:
    """One run a scenario, under the one guard that was named for it."""
    answer = values["answer"]
    if not isinstance(answer, dict) or sorted(answer, key=str) != sorted(ALONE):
        raise ConfigError(f"answer = {shown(answer)}: write one line a scenario: {', '.join(ALONE)}")
    for name in ALONE:
        why = "Look at the first link that breaks, and for a guard that sits before it or refuses what comes of it."
        yield trials.stops(name, trials.guards_of((answer[name],)), seed, why, "run.num_steps=6")


MOST = 3
"""Guards of a minimal set. Two are enough."""
SURVIVE = {
    "bad-batch": (
        3,
        ("run.num_steps=7",),
        "Every number is finite in it. What tells the step of the corrupt sample from all others?",
    ),
    "fp16-adam-epsilon": (
        1,
        ("run.num_steps=6",),
        "Every norm is healthy in it. What divides by 0, and who can change that number?",
    ),
    "verl-nan-logprob": (1, ("run.num_steps=12",), "Print its first_break(): who drops, or refuses, what is NaN?"),
}
"""Scenario -> fresh seeds to try, overrides, and why. A guard that stops one corrupt sample need not stop the next."""


def minimal_set(values: Mapping[str, Any], seed: int) -> Iterator[Finding]:
    """Few guards, three failures stopped, a healthy run taught as before."""
    guards = trials.guards_of(values["guards"])
    few = len(guards) <= MOST
    why = "Which of them is needed by none of the three failures? Every guard costs something and hides something."
    yield Finding(few, "a small set", f"{len(guards)} guards", f"at most {MOST}", "" if few else why)
    for name, (seeds, overrides, why) in SURVIVE.items():
        found = [trials.stops(name, guards, seed * seeds + number, why, *overrides) for number in range(seeds)]
        yield next((finding for finding in found if not finding.right), found[-1])
    healthy = preset("plain").with_("optimizer.learning_rate=5e-4").with_guards(guards)
    yield from trials.learns(healthy, seed)
    yield trials.leaves_gradient(healthy, seed)


EXERCISES = (
    Exercise(
        name="reported",
        title="Seven reported guards",
        kind="prediction",
        minutes=2,
        difficulty=1,
        points=1,
        hints=(
            "Any of a, b, c, d: it is kept as it is, and compared with what you see.",
            "Which of the seven looks at the number that breaks first, and what does it do with a NaN?",
            "`float('nan') > 10`: try it in a cell of your own.",
        ),
        check=judges.prediction("abcd"),
    ),
    Exercise(
        name="alone",
        title="One guard for one failure",
        kind="choice",
        minutes=8,
        difficulty=2,
        points=3,
        hints=(
            "Run each scenario without guards and print `run.first_break()`: it names link and operator.",
            "A guard must sit before the broken link (a clamp, a sanitiser), or refuse the update that would follow. "
            "In `fp16-adam-epsilon` the gradient is healthy: no guard of the gradient sees anything.",
            "`clamp_log_ratio` sits before the ratio; `sanitize_rewards` before the advantages; and of AdamW's eps "
            "there is one guard in the list.",
        ),
        check=Values(("answer",), alone),
    ),
    Exercise(
        name="guard",
        title="A guard without a threshold",
        kind="code",
        minutes=9,
        difficulty=3,
        points=3,
        hints=(
            "Three questions in this order: is the norm finite? was any norm accepted before? is this one more than "
            "`self.factor` times the largest of those?",
            "`largest = self.memory.get('largest')` is None in the beginning. Write to the memory where you accept, "
            "and nowhere else.",
            "Accept: `self.memory['largest'] = max(norm, largest or 0.0)` and `return Outcome(value)`. Else: `return "
            "Outcome(value, Verdict.SKIP_STEP, exceeds('grad norm', norm, self.factor * (largest or 1.0)))`.",
        ),
        check=cases.SKIP_JUMPS,
    ),
    Exercise(
        name="skip",
        title="What skipping means",
        kind="code",
        minutes=5,
        difficulty=2,
        points=2,
        hints=(
            "What does AdamW do in `step()` when every gradient is zero, and the steps before were not?",
            "Nothing may be called that moves weights: neither `step()` nor anything in its place.",
            "`if norm <= limit: optimizer.step(); return True`, else `return False`.",
        ),
        check=cases.UPDATE_OR_SKIP,
    ),
    Exercise(
        name="hides",
        title="What a guard hides",
        kind="choice",
        minutes=4,
        difficulty=1,
        points=1,
        hints=(
            "Compare the reward of both runs, not the norm.",
            "A guard changes what is done with a number. Does it change the loss that the number came from?",
            "Look at the last completions: would you ship this model?",
        ),
        check=judges.choice(
            "c",
            {
                "a": "Every weight of the unguarded run is finite too: that was never what failed here.",
                "b": "Look at the reward at the end: is this a model that learns?",
                "d": "The reasons are in the list of guards that acted, step by step.",
            },
        ),
    ),
    Exercise(
        name="minimal_set",
        title="The smallest set that is enough",
        kind="configuration",
        minutes=12,
        difficulty=3,
        points=6,
        hints=(
            "One failure is finite (a corrupt sample), one is NaN (a filtered token), one has a healthy norm and "
            "breaks the weights. Look for guards that cover more than one.",
            "What changes a healthy run by design is out: clipping, another sampling. So is a limit that healthy runs "
            "reach: `clamp_kl` at 2 acts on them, and at 10 it lets some corrupt samples through.",
            "A threshold on the norm, asked the right way round, refuses NaN too. Beside it you need the one guard "
            "that mends AdamW's eps in fp16.",
        ),
        check=Values(("guards",), minimal_set),
    ),
)
QUESTIONS = (
    Question(
        "`if grad_norm > 10: skip` meets a norm that is NaN. It",
        (
            (
                "skips, since NaN is larger than everything.",
                "NaN is larger than nothing: every comparison with it is False.",
            ),
            (
                "steps, since the comparison is False.",
                "And that one step makes every weight NaN. Ask for what is fine, "
                "`norm <= 10`, or for finiteness first.",
            ),
            ("raises an error.", "Comparisons with NaN raise nothing, which is the trouble."),
        ),
        1,
    ),
    Question(
        "A run under twelve guards is alive and its reward does not rise. The guards",
        (
            ("have failed.", "They kept the weights finite, which is all that they are for."),
            (
                "have done their work; the loss, the rate or the reward is wrong.",
                "A guard keeps a run alive. It makes no "
                "wrong loss teach anything: read the reasons and mend the cause.",
            ),
            ("should be stricter.", "A stricter guard refuses more steps, and a refused step teaches nothing."),
        ),
        1,
    ),
    Question(
        "Why does every guard here say a reason with the number and the limit?",
        (
            ("For the plots.", "They show it, but it is written for a person who has to find the cause."),
            (
                "Because a guard that acts in silence hides the cause.",
                "A step that was skipped without a word is a bug report that nobody reads.",
            ),
            ("To slow the run down.", "It costs next to nothing."),
        ),
        1,
    ),
)
LAB = LabPage(
    name="04_guards",
    title="Guards",
    minutes=50,
    difficulty=2,
    summary="You know what each guard stops, costs and hides, can write one, and can choose the few that are enough.",
    exercises={exercise.name: exercise for exercise in EXERCISES},
    questions=QUESTIONS,
)
