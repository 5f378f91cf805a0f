"""More runs of TRL's GRPOTrainer: recipes by an engineer who had not read the rules of the diagnosis.

`python -m benchmarks.diagnosis` counts them apart from those of `recipes`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from benchmarks.diagnosis.recipes import (
    Recipe,
    Reward,
    Spec,
    accuracy,
    changed,
    digits,
    from_call,
    later,
    named,
    set_arguments,
    set_rewards,
)

Rows = list[dict[str, Any]]
LONG = {"steps": [40, 50, 60], "lr_scheduler_type": "constant"}
STILL = {"disable_dropout": True}
EASY = 12


def sums(low: int, high: int) -> Callable[[random.Random], Callable[[int, Rows], Rows]]:
    """Prompts that are sums of two numbers from low to high."""

    def make(draw: random.Random) -> Callable[[int, Rows], Rows]:
        seed = draw.randrange(10**6)

        def rows(step: int, given: Rows) -> Rows:
            own = random.Random(seed + step)
            pairs = [(own.randint(low, high), own.randint(low, high)) for _ in given]
            return [
                {**row, "prompt": f"{a}+{b}=", "answer": str(a + b)} for row, (a, b) in zip(given, pairs, strict=True)
            ]

        return rows

    return make


easy, hard = sums(0, EASY), sums(2000, 99999)


def with_rows(make: Callable[[random.Random], Any], **arguments: Any) -> Callable[[random.Random], Spec]:
    """A run with other prompts."""
    return lambda draw: replace(set_arguments(**arguments)(draw), rows=make(draw))


def shifted(draw: random.Random) -> Callable[[int, Rows], Rows]:
    """The answer of the next row in the place of each answer."""
    return lambda step, rows: [
        {**row, "answer": other["answer"]} for row, other in zip(rows, rows[1:] + rows[:1], strict=True)
    ]


def switched(draw: random.Random) -> Callable[[int, Rows], Rows]:
    """Easy sums, and impossible ones from a step on."""
    first, then, at = easy(draw), hard(draw), draw.randrange(20, 30)
    return lambda step, rows: (first if step < at else then)(step, rows)


def eased(draw: random.Random, spec: Spec) -> Spec:
    """The run with easy prompts, on which a rate learns within some tens of steps."""
    return replace(spec, rows=easy(draw))


def on_easy(make: Callable[[random.Random], Spec]) -> Callable[[random.Random], Spec]:
    """A run with easy prompts."""
    return lambda draw: eased(draw, make(draw))


def forgetting(draw: random.Random) -> Spec:
    """The first weights are loaded again in mid-run."""
    from transformers import TrainerCallback

    spec = eased(draw, set_arguments(learning_rate=[3e-4, 4e-4], steps=[50, 60], **STILL)(draw))
    at = draw.randrange(30, 42)

    class Reset(TrainerCallback):
        """Loads the first weights after a step."""

        def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            self.first = {name: weight.clone() for name, weight in given["model"].state_dict().items()}

        def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            if state.global_step == at:
                given["model"].load_state_dict(self.first)

    return replace(spec, prompts=12, callbacks=lambda: [Reset()])


def plain_descent(rate: Sequence[float], momentum: float) -> Callable[[random.Random], Spec]:
    """SGD in the place of AdamW."""

    def make(draw: random.Random) -> Spec:
        chosen = draw.choice(rate)
        spec = set_arguments(learning_rate=chosen, steps=[40, 50])(draw)
        return replace(spec, optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=chosen, momentum=momentum))

    return make


def frozen(model: Any, tokenizer: Any) -> None:
    """One bias is trained."""
    for name, weight in model.named_parameters():
        weight.requires_grad = name == "transformer.h.0.ln_1.bias"


def with_nan(model: Any, tokenizer: Any) -> None:
    """One weight is NaN."""
    with torch.no_grad():
        model.transformer.h[1].mlp.c_fc.weight[3, 5] = float("nan")


def with_new_embedding(model: Any, tokenizer: Any) -> None:
    """The embedding, which is the head too, as it is before any training."""
    with torch.no_grad():
        model.transformer.wte.weight.normal_(0, 0.02)


def judge_silent(draw: random.Random, spec: Spec) -> list[Reward]:
    """No reward from a step on."""
    start = from_call(draw, spec)
    return [later(spec.rewards[0], lambda call, given: [None] * len(given) if call >= start else given)]


def shuffled(draw: random.Random, spec: Spec) -> list[Reward]:
    """The rewards of a batch in another order."""
    own = random.Random(draw.random())
    return [later(accuracy(), lambda call, given: own.sample(given, len(given)))]


def noise_alone(draw: random.Random, spec: Spec) -> list[Reward]:
    """Chance in the last digits of a reward that is 0 else."""
    own, size = random.Random(draw.random()), draw.choice([1e-3, 5e-3])
    return [later(accuracy(), lambda call, given: [float(each or 0) + size * own.random() for each in given])]


def infinite(draw: random.Random, spec: Spec) -> list[Reward]:
    """The logarithm of the reward."""
    return [accuracy(float("-inf"), 0.0)]


def drowned(draw: random.Random, spec: Spec) -> list[Reward]:
    """Brevity beside the answer, with a weight that drowns it."""

    @named("brevity")
    def brevity(completions: Sequence[str], **columns: Any) -> list[float | None]:
        return [1 - len(text) / 4 for text in completions]

    return [accuracy(), brevity]


def never_found(draw: random.Random, spec: Spec) -> list[Reward]:
    """A format that the model never writes."""

    @named("accuracy")
    def marked(completions: Sequence[str], answer: Sequence[str], **columns: Any) -> list[float | None]:
        return [float(f"#### {wanted}" in text) for text, wanted in zip(completions, answer, strict=True)]

    return [marked]


def shaped(draw: random.Random, spec: Spec) -> list[Reward]:
    """A share of the digits."""

    @named("partial")
    def partial(completions: Sequence[str], answer: Sequence[str], **columns: Any) -> list[float | None]:
        pairs = [(text.strip(), str(wanted)) for text, wanted in zip(completions, answer, strict=True)]
        return [sum(a == b for a, b in zip(*pair, strict=False)) / max(1, *map(len, pair)) for pair in pairs]

    return [partial]


def two_functions(draw: random.Random, spec: Spec) -> list[Reward]:
    """Two rewards that agree."""
    return [accuracy(), digits]


BLIND: dict[str, Recipe] = {
    "healthy-easy": Recipe(on_easy(set_arguments(**LONG))),
    "healthy-easy-still": Recipe(on_easy(set_arguments(**LONG, **STILL))),
    "healthy-weighted": Recipe(on_easy(set_rewards(two_functions, reward_weights=[[1.0, 0.2]], **LONG))),
    "healthy-shaped": Recipe(on_easy(set_rewards(shaped, **LONG))),
    "healthy-warm-up": Recipe(on_easy(set_arguments(lr_scheduler_type="cosine", warmup_steps=6, steps=60, **STILL))),
    "healthy-large-rewards": Recipe(
        on_easy(
            set_rewards(
                lambda draw, spec: [accuracy(0.0, draw.choice([10.0, 100.0]))],
                loss_type="dr_grpo",
                scale_rewards="none",
                **LONG,
            )
        )
    ),
    "healthy-noisy": Recipe(on_easy(lambda draw: replace(set_arguments(num_generations=4, **LONG)(draw), prompts=4))),
    "healthy-gspo": Recipe(
        on_easy(
            set_arguments(
                importance_sampling_level="sequence", epsilon=3e-4, epsilon_high=4e-4, num_iterations=2, **LONG, **STILL
            )
        )
    ),
    "rate-of-TRL": Recipe(set_arguments(learning_rate=[1e-6, 2e-6], steps=[50, 60]), ("learning-rate-low",)),
    "warm-up-long": Recipe(
        set_arguments(warmup_steps=[5000, 20000], lr_scheduler_type="constant_with_warmup", steps=[40, 50]),
        ("warm-up-long", "learning-rate-low"),
    ),
    "schedule-over": Recipe(
        set_arguments(
            lr_scheduler_type="warmup_stable_decay",
            lr_scheduler_kwargs=[
                {"num_stable_steps": 3, "num_decay_steps": 5},
                {"num_stable_steps": 2, "num_decay_steps": 3},
            ],
            steps=[40, 50],
        ),
        ("schedule",),
    ),
    "descent-slow": Recipe(plain_descent([1e-4, 3e-4], 0.0), ("small-updates",)),
    "descent-wild": Recipe(plain_descent([1.0, 3.0], 0.95), ("learning-rate",)),
    "adam-epsilon": Recipe(
        set_arguments(adam_epsilon=[1.0, 10.0], steps=[40, 50]), ("adam-epsilon-large", "small-updates")
    ),
    "norm-limit": Recipe(set_arguments(max_grad_norm=[1e-9, 1e-10], steps=[40, 50]), ("norm-limit", "small-updates")),
    "frozen": Recipe(changed(frozen, steps=[40, 50]), ("small-updates",)),
    "weight-decay": Recipe(
        set_arguments(weight_decay=[200.0, 400.0], learning_rate=[2e-4, 3e-4], **LONG), ("weight-decay",)
    ),
    "clip-range": Recipe(
        set_arguments(epsilon=[10.0, 20.0], num_iterations=8, learning_rate=[5e-4, 6e-4], steps=80), ("clip-range",)
    ),
    "temperature-high": Recipe(set_arguments(temperature=[3.5, 5.0]), ("temperature-high",)),
    "top-k": Recipe(set_arguments(top_k=1, **STILL), ("top-k",)),
    "repetition-penalty": Recipe(set_arguments(repetition_penalty=[2.0, 3.0]), ("penalties",)),
    "entropy-bonus": Recipe(set_arguments(entropy_coef=[1.0, 3.0], learning_rate=[3e-4, 4e-4]), ("entropy-bonus",)),
    "masked": Recipe(
        set_arguments(max_completion_length=[1, 2], mask_truncated_completions=True), ("masked", "masked-set")
    ),
    "new-embedding": Recipe(changed(with_new_embedding), ("weights-not-loaded",)),
    "nan-weights": Recipe(changed(with_nan), ("weights",)),
    "dropout-in-the-ratio": Recipe(set_arguments(num_iterations=2, disable_dropout=False, steps=80), ("dropout",)),
    "reward-never-found": Recipe(set_rewards(never_found), ("reward-function",)),
    "reward-infinite": Recipe(set_rewards(infinite), ("reward-nonfinite",)),
    "judge-silent": Recipe(set_rewards(judge_silent), ("judge",)),
    "rewards-shuffled": Recipe(set_rewards(shuffled, learning_rate=[3e-4, 4e-4]), ("reward-random",)),
    "answers-shifted": Recipe(with_rows(shifted), ("reward-function", "reward-random")),
    "brevity-drowns": Recipe(
        set_rewards(drowned, reward_weights=[[1.0, 20.0], [1.0, 50.0]], learning_rate=[3e-4, 5e-4]),
        ("brevity-rewarded", "reward-conflict"),
    ),
    "noise-amplified": Recipe(
        lambda draw: replace(set_rewards(noise_alone, scale_rewards="group")(draw), rows=hard(draw)), ("reward-noise",)
    ),
    "too-hard": Recipe(with_rows(hard), ("prompts-too-hard", "reward-function")),
    "data-switches": Recipe(with_rows(switched, **LONG, **STILL), ("data",)),
    "weights-reset": Recipe(forgetting, ("weights-reset",)),
}
