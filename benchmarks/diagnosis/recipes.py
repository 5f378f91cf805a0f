"""Runs of TRL's GRPOTrainer that go wrong in known ways, and healthy ones: the logs that `benchmarks.diagnosis` reads.

A recipe draws a run's settings from a seed: every run differs in length, batch, rate, rewards and KL weight, and has
the one mistake of its recipe. The folder of a run holds what Trainer leaves behind, trainer_state.json and the console,
and its arguments in args.json.
"""

from __future__ import annotations

import contextlib
import random
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch

from grpo_lab.models import loading
from grpo_lab.tasks import tasks

Reward = Callable[..., list[float | None]]


@dataclass(frozen=True)
class Spec:
    """One run: arguments of GRPOConfig beyond the usual ones, rewards, and changes to model, tokenizer and data."""

    steps: int
    prompts: int
    arguments: Mapping[str, Any]
    rewards: tuple[Reward, ...]
    change: Callable[[Any, Any], None] = lambda model, tokenizer: None
    refuses_nan: bool = False
    """Whether updates with a gradient that is not finite are left out, as under a loss scaler."""
    rows: Callable[[int, list[dict[str, Any]]], list[dict[str, Any]]] = lambda step, rows: rows
    """The rows of a step in place of the task's."""
    callbacks: Callable[[], Sequence[Any]] = tuple
    optimizer: Callable[[Any], Any] | None = None
    """The optimizer of a model in place of AdamW."""


def named(name: str) -> Callable[[Reward], Reward]:
    """Give a reward function the name under which TRL logs it."""

    def rename(function: Reward) -> Reward:
        function.__name__ = name
        return function

    return rename


def right(completion: str, answer: str) -> bool:
    """Whether a completion is the answer."""
    return completion.strip() == str(answer).strip()


def accuracy(wrong: float = 0.0, best: float = 1.0, name: str = "accuracy") -> Reward:
    """`best` for a right answer, else `wrong`."""

    @named(name)
    def score(completions: Sequence[str], answer: Sequence[str], **columns: Any) -> list[float | None]:
        return [best if right(text, wanted) else wrong for text, wanted in zip(completions, answer, strict=True)]

    return score


@named("closeness")
def closeness(completions: Sequence[str], answer: Sequence[str], **columns: Any) -> list[float | None]:
    """1 for a right number, less for one that is farther away, 0 for no number."""

    def one(text: str, wanted: str) -> float:
        text = text.strip()
        return 1 / (1 + abs(int(text) - int(wanted))) if text.isdecimal() else 0.0

    return [one(text, wanted) for text, wanted in zip(completions, answer, strict=True)]


@named("digits")
def digits(completions: Sequence[str], **columns: Any) -> list[float | None]:
    """A format: 1 for a completion of digits alone."""
    return [float(text.strip().isdecimal()) for text in completions]


def later(function: Reward, change: Callable[[int, list[float | None]], list[float | None]]) -> Reward:
    """The function's rewards, changed by the number of its call, which is counted from 0."""
    calls = iter(range(10**9))

    @named(function.__name__)
    def score(**given: Any) -> list[float | None]:
        return change(next(calls), function(**given))

    return score


def usual(draw: random.Random) -> Spec:
    """A run without a mistake."""
    prompts, size = draw.choice([(16, 8), (8, 8), (16, 4), (12, 6)])
    arguments = {
        "num_generations": size,
        "learning_rate": draw.choice([1e-4, 2e-4, 3e-4]) if prompts * size > 64 else draw.choice([5e-5, 1e-4]),
        "lr_scheduler_type": draw.choice(["constant", "linear", "cosine"]),
        "beta": draw.choice([0.0, 0.0, 0.02, 0.04]),
        "temperature": draw.choice([1.0, 1.0, 0.9]),
        "max_completion_length": draw.choice([8, 12]),
        "logging_steps": draw.choice([1, 1, 1, 2]),
        "disable_dropout": draw.choice([True, False]),  # TRL's default is False, and the tiny model has dropout
    }
    kind = draw.choice([accuracy(), accuracy(), accuracy(-1.0), accuracy(-1.0, 0.0), closeness])
    return Spec(draw.choice([30, 40, 60, 80]), prompts, arguments, (kind,))


def set_arguments(**arguments: Any) -> Callable[[random.Random], Spec]:
    """A run with other arguments; a list is drawn from."""

    def make(draw: random.Random) -> Spec:
        spec = usual(draw)
        drawn = {name: draw.choice(value) if isinstance(value, list) else value for name, value in arguments.items()}
        factor = drawn.pop("rate_factor", 1)
        steps = drawn.pop("steps", spec.steps)
        rate = drawn.pop("learning_rate", spec.arguments["learning_rate"]) * factor
        return replace(spec, steps=steps, arguments={**spec.arguments, "learning_rate": rate, **drawn})

    return make


def set_rewards(make_rewards: Callable[[random.Random, Spec], Sequence[Reward]], **arguments: Any) -> Any:
    """A run with other rewards."""

    def make(draw: random.Random) -> Spec:
        spec = set_arguments(**arguments)(draw)
        return replace(spec, rewards=tuple(make_rewards(draw, spec)))

    return make


def in_half(model: Any, tokenizer: Any) -> None:
    """Weights in fp16, which AdamW then updates in fp16."""
    model.half()


def without_terminator(model: Any, tokenizer: Any) -> None:
    """Another end token than the one that the model learnt: it never ends."""
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    tokenizer.eos_token = next(t for t in tokenizer.get_vocab() if t in ("%", "#", "@", "&", "~", "Z", "z"))
    model.generation_config.eos_token_id = tokenizer.eos_token_id


def with_dropout(model: Any, tokenizer: Any) -> None:
    """Dropout of 0.2 in every module that has one."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.2


def with_broken_backward(model: Any, tokenizer: Any) -> None:
    """A gradient of one weight is NaN in each backward pass."""
    weight = next(model.parameters())
    weight.register_hook(lambda gradient: gradient * float("nan"))


def fp16(draw: random.Random) -> Spec:
    """fp16 weights with AdamW's usual eps; the rate is moderate."""
    return replace(set_arguments(learning_rate=[3e-5, 1e-4, 3e-4])(draw), change=in_half)


def from_call(draw: random.Random, spec: Spec) -> int:
    """A step in the middle of the run."""
    return draw.randrange(spec.steps // 3, 2 * spec.steps // 3)


def judge_down(draw: random.Random, spec: Spec) -> list[Reward]:
    """Rewards of exactly 0 from a step on."""
    start = from_call(draw, spec)
    return [later(spec.rewards[0], lambda call, given: [0.0] * len(given) if call >= start else given)]


def outlier(draw: random.Random, spec: Spec) -> list[Reward]:
    """One batch whose rewards are a million times as large."""
    place = from_call(draw, spec)
    return [
        later(spec.rewards[0], lambda call, given: [1e6 * float(r or 0) for r in given] if call == place else given)
    ]


def scaled(draw: random.Random, spec: Spec) -> list[Reward]:
    """Rewards of thousands."""
    factor = draw.choice([300.0, 1e3, 1e4])
    return [later(spec.rewards[0], lambda call, given: [factor * float(r or 0) for r in given])]


def nan_now_and_then(draw: random.Random, spec: Spec) -> list[Reward]:
    """One reward of NaN in every seventh batch."""
    nan = float("nan")
    return [later(spec.rewards[0], lambda call, given: [nan, *given[1:]] if call % 7 == 6 else given)]


def constant(draw: random.Random, spec: Spec) -> list[Reward]:
    """The same reward for everything."""
    value = draw.choice([0.0, 0.0, 1.0, -1.0, 0.1])
    return [later(spec.rewards[0], lambda call, given: [value] * len(given))]


def chance(draw: random.Random, spec: Spec) -> list[Reward]:
    """Rewards by chance."""
    own = random.Random(draw.random())
    return [later(spec.rewards[0], lambda call, given: [float(own.random() < 0.5) for _ in given])]


def by_length(draw: random.Random, spec: Spec) -> list[Reward]:
    """Rewards for length alone, or beside the answer."""

    @named("length")
    def length(completion_ids: Sequence[Sequence[int]], **columns: Any) -> list[float | None]:
        return [len(ids) / spec.arguments["max_completion_length"] for ids in completion_ids]

    return [length] if draw.random() < 0.5 else [accuracy(0.0, 0.2), length]


def by_brevity(draw: random.Random, spec: Spec) -> list[Reward]:
    """Rewards for brevity, which the empty answer takes."""

    @named("brevity")
    def brevity(completion_ids: Sequence[Sequence[int]], **columns: Any) -> list[float | None]:
        return [1 / max(1, len(ids)) for ids in completion_ids]

    return [brevity] if draw.random() < 0.5 else [accuracy(0.0, 0.2), brevity]


def by_format(draw: random.Random, spec: Spec) -> list[Reward]:
    """A format that right answers do not have, rewarded more than they are."""
    first = draw.choice(["89", "78", "56"])

    @named("format")
    def form(completions: Sequence[str], **columns: Any) -> list[float | None]:
        return [4.0 * text.strip().startswith(tuple(first)) for text in completions]

    return [accuracy(), form]


def other_data(draw: random.Random) -> Spec:
    """Answers that cannot be found, from a step on, at a rate that hardly moves the policy."""
    spec = set_arguments(rate_factor=0.02, beta=[0.02, 0.04])(draw)
    start = from_call(draw, spec)
    return replace(spec, rows=lambda step, rows: [{**row, "answer": "-1"} for row in rows] if step >= start else rows)


@dataclass(frozen=True)
class Recipe:
    """A kind of run, and the suspects of which one is its cause; none for a healthy run."""

    make: Callable[[random.Random], Spec]
    truth: tuple[str, ...] = ()
    times: int = 1
    """Runs for each seed."""


def changed(change: Callable[[Any, Any], None], refuses_nan: bool = False, **arguments: Any) -> Any:
    """A run with another model or tokenizer."""
    return lambda draw: replace(set_arguments(**arguments)(draw), change=change, refuses_nan=refuses_nan)


def several(draw: random.Random, spec: Spec) -> list[Reward]:
    """Two rewards that agree."""
    return [accuracy(), digits]


def signed(wrong: float, best: float) -> Callable[[random.Random, Spec], list[Reward]]:
    """Rewards from `wrong` to `best`."""
    return lambda draw, spec: [accuracy(wrong, best)]


def solved(draw: random.Random) -> Spec:
    """A task that the model has nearly solved at the start: digits, and a rate that suits it."""
    return replace(usual(draw), rewards=(digits,))


TOO_HIGH = {"learning_rate": [1e-4, 2e-4, 3e-4], "rate_factor": [10, 30, 100, 300]}
ENOUGH = {"learning_rate": [3e-4, 4e-4]}
"""A rate at which the policy finds out within the run what pays."""


RECIPES: dict[str, Recipe] = {
    "healthy": Recipe(usual, times=2),
    "healthy-plus-minus-1": Recipe(set_rewards(signed(-1.0, 1.0))),
    "healthy-negative": Recipe(set_rewards(signed(-1.0, 0.0))),
    "healthy-solved": Recipe(solved),
    "healthy-short": Recipe(lambda draw: replace(usual(draw), steps=draw.choice([10, 15, 20]))),
    "healthy-no-kl": Recipe(set_arguments(beta=0.0)),
    "healthy-several-rewards": Recipe(set_rewards(several)),
    "healthy-other-loss": Recipe(
        set_arguments(loss_type=["grpo", "dr_grpo", "bnpo"], scale_rewards=["group", "batch", "none"])
    ),
    "healthy-nan-rewards": Recipe(set_rewards(nan_now_and_then)),  # TRL leaves them out of their group
    "healthy-two-passes": Recipe(set_arguments(num_iterations=2, disable_dropout=True)),
    "healthy-logged-every-5": Recipe(set_arguments(logging_steps=[5, 10])),
    "rate-too-high": Recipe(set_arguments(**TOO_HIGH, beta=[0.02, 0.04]), ("learning-rate",), 2),
    "rate-too-high-no-kl": Recipe(set_arguments(**TOO_HIGH, beta=0.0), ("learning-rate",), 2),
    "rate-too-low": Recipe(set_arguments(learning_rate=[1e-9, 1e-8, 1e-7, 1e-6]), ("learning-rate-low",)),
    "fp16-weights": Recipe(fp16, ("number-format", "adam-epsilon")),
    "nan-norm": Recipe(changed(with_broken_backward, refuses_nan=True), ("number-format", "backward")),
    "nan-backward": Recipe(changed(with_broken_backward), ("number-format", "backward")),
    "reward-constant": Recipe(set_rewards(constant), ("reward-function",)),
    "reward-random": Recipe(set_rewards(chance, **ENOUGH), ("reward-random",)),
    "reward-outlier": Recipe(set_rewards(outlier, scale_rewards="none"), ("reward-outlier",)),
    "reward-scale": Recipe(set_rewards(scaled, scale_rewards="none"), ("reward-scale",)),
    "judge-down": Recipe(set_rewards(judge_down), ("judge",)),
    "length-rewarded": Recipe(set_rewards(by_length, **ENOUGH), ("length-rewarded",)),
    "brevity-rewarded": Recipe(set_rewards(by_brevity, **ENOUGH), ("brevity-rewarded",)),
    "format-rewarded": Recipe(set_rewards(by_format, **ENOUGH, steps=[60, 80]), ("reward-conflict",)),
    "temperature-low": Recipe(set_arguments(temperature=[0.05, 0.1]), ("temperature", "temperature-overflow")),
    "beta-high": Recipe(set_arguments(beta=[5.0, 10.0]), ("beta",)),
    "never-ends": Recipe(changed(without_terminator), ("terminator", "length-limit")),
    "too-short": Recipe(set_arguments(max_completion_length=2), ("length-limit", "terminator")),
    "healthy-dropout": Recipe(changed(with_dropout, disable_dropout=False)),
    "data-changes": Recipe(other_data, ("data", "judge")),
}


def train(run: Spec, seed: int, folder: Path) -> Any:
    """Train, leave Trainer's files in the folder, and return TRL's trainer."""
    from transformers import TrainerCallback

    folder.mkdir(parents=True, exist_ok=True)

    class Refusing(TrainerCallback):
        """Leaves out updates whose gradient is not finite."""

        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            model = given["model"]
            if not all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None):
                model.zero_grad()

    with (folder / "console.log").open("w") as console, contextlib.redirect_stdout(console), loading.quiet():
        made = trainer(run, seed, folder)
        if run.refuses_nan:
            made.add_callback(Refusing())
        try:
            made.train()
        except RuntimeError:
            traceback.print_exc(file=console)
        made.state.save_to_json(str(folder / "trainer_state.json"))
        (folder / "args.json").write_text(made.args.to_json_string(), encoding="utf-8")
    return made


def trainer(run: Spec, seed: int, folder: Path, make: Any = None) -> Any:
    """The trainer of TRL for a run, or what `make` makes in its place."""
    import datasets
    from trl import GRPOConfig, GRPOTrainer  # pyright: ignore[reportPrivateImportUsage]

    datasets.disable_progress_bars()
    model, tokenizer = loading.load("tiny", "fp32", "cpu")
    run.change(model, tokenizer)
    iterations = run.arguments.get("num_iterations", 1)
    task = tasks.load("addition")
    rows = []
    for step in range(-(-run.steps // iterations)):
        batch = task.batch(seed, step, run.prompts)
        rows += run.rows(step, [{"prompt": problem.prompt, **problem.columns} for problem in batch])
    arguments: dict[str, Any] = {
        "per_device_train_batch_size": run.prompts * run.arguments["num_generations"],
        "gradient_accumulation_steps": 1,
        "max_steps": run.steps,
        "seed": seed,
        "shuffle_dataset": False,
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
        **run.arguments,
    }
    return (make or GRPOTrainer)(
        model=model,
        processing_class=tokenizer,
        reward_funcs=cast(Any, list(run.rewards)),
        args=GRPOConfig(output_dir=str(folder), **arguments),
        train_dataset=datasets.Dataset.from_list(rows),
        callbacks=list(run.callbacks()),
        optimizers=(run.optimizer(model) if run.optimizer else None, None),
    )
