"""Samples a second against TRL's GRPOTrainer on the same work: same model, prompts, batch, lengths and rewards.

TRL owns its loop: after each of its blocks a callback lets our contenders take their turns in the same thread. TRL's
time of a block is everything from the return of the callback to the end of the block's last step: data loading,
sampling, rewards, update, scheduler and logging. Our time is everything around `next`.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Mapping
from typing import Any, cast

from benchmarks.timing import Block, Plan, Run, Stopwatch, compare, milliseconds, settle, use_threads
from grpo_lab.config.catalog import preset
from grpo_lab.config.schema import Config
from grpo_lab.models import loading
from grpo_lab.tasks import rewards as reward_functions
from grpo_lab.tasks import tasks


def measure(threads: int, plan: Plan) -> dict[str, Any]:
    """Step times of TRL, of our trainer, and of our trainer with the guards of preset `stable` at their own limits."""
    use_threads(threads)
    config = settle().with_(f"run.num_steps={plan.total}")
    return race(config, {"ours": Run(config), "ours, guarded": Run(config.with_guards(preset("stable").guards))}, plan)


def race(config: Config, ours: Mapping[str, Run], plan: Plan) -> dict[str, Any]:
    """TRL against each of our contenders on the work that the config describes, on the config's device."""
    # Each of TRL's blocks is followed by one of ours, which starts and ends the measured time.
    blocks, trl = _take_turns(config, ours, plan)
    samples = config.data.num_prompts * config.data.num_generations
    times = {name: milliseconds(row) for name, row in blocks.items()}
    lengths = {name: run.mean("completions/mean_length", plan.warm_up) for name, run in ours.items()}
    lengths["trl"] = statistics.fmean(trl["completions/mean_length"][plan.warm_up :])
    rewards = {name: run.mean("reward", plan.warm_up) for name, run in ours.items()}
    rewards["trl"] = statistics.fmean(trl["reward"][plan.warm_up :])
    return {
        **{f"TRL / {name}": compare(blocks["trl"], blocks[name]) for name in ours},
        "step ms": times,
        "samples per s": {name: round(1000 * samples / time["wall"], 1) for name, time in times.items()},
        "mean length": {name: round(value, 3) for name, value in lengths.items()},
        "tokens a step": {name: round(value * samples, 1) for name, value in lengths.items()},
        "mean reward": {name: round(value, 3) for name, value in rewards.items()},
    }


def _take_turns(config: Config, ours: Mapping[str, Run], plan: Plan) -> tuple[dict[str, list[Block]], dict[str, Any]]:
    """The blocks of every contender, and TRL's own metrics, one number a step."""
    from transformers import PrinterCallback, TrainerCallback

    blocks: dict[str, list[Block]] = {"trl": [], **{name: [] for name in ours}}
    noted: dict[str, list[float]] = {}

    class Turns(TrainerCallback):
        """Stops the watch at the end of TRL's block, advances our contenders, and starts the watch again."""

        watch: Stopwatch

        def on_step_end(self, args: Any, state: Any, control: Any, **keywords: Any) -> None:
            turn, left = divmod(state.global_step - plan.warm_up, plan.steps)
            if turn < 0 or left:
                return
            if turn:
                blocks["trl"].append(self.watch.stop(plan.steps))
            for name in list(ours)[:: 1 if turn % 2 else -1]:
                block = ours[name].advance(plan.steps if turn else plan.warm_up)
                blocks[name] += [block] if turn else []
            noted.update({name: list(values) for name, values in trainer._metrics["train"].items()})
            self.watch = Stopwatch()

    with tempfile.TemporaryDirectory() as directory, loading.quiet():
        trainer = trl_trainer(config, directory)
        trainer.remove_callback(PrinterCallback)
        trainer.add_callback(Turns())
        trainer.train()
    return blocks, noted


def trl_trainer(config: Config, directory: str) -> Any:
    """TRL's trainer with the settings of the config, and everything else turned off."""
    import datasets
    from trl import GRPOConfig, GRPOTrainer  # pyright: ignore[reportPrivateImportUsage]

    datasets.disable_progress_bars()
    data, optimizer = config.data, config.optimizer
    device = loading.resolve_device(config.run.device)
    model, tokenizer = loading.load(config.model.name, "fp32", str(device))
    task, rewards = tasks.load(data.tasks), [reward_functions.load(name) for name in data.rewards]
    batches = (task.batch(config.run.seed, step, data.num_prompts) for step in range(config.run.num_steps))
    rows = [{"prompt": problem.prompt, **problem.columns} for batch in batches for problem in batch]
    arguments = GRPOConfig(
        output_dir=directory,
        max_steps=config.run.num_steps,
        per_device_train_batch_size=data.num_prompts * data.num_generations,
        gradient_accumulation_steps=1,
        num_generations=data.num_generations,
        num_iterations=config.loss.num_iterations,
        max_completion_length=config.sampling.max_completion_length,
        temperature=config.sampling.temperature,
        beta=config.loss.beta,
        epsilon=config.loss.epsilon,
        learning_rate=optimizer.learning_rate,
        lr_scheduler_type="constant",
        weight_decay=optimizer.weight_decay,
        seed=config.run.seed,
        shuffle_dataset=False,
        bf16=config.model.precision == "bf16",
        use_cpu=device.type == "cpu",
        # Off, because our trainer has none of it, and it would only make TRL slower.
        disable_dropout=True,
        gradient_checkpointing=False,
        report_to="none",
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
    return GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=cast(Any, rewards),  # the same signature, which TRL's type names more widely
        args=arguments,
        train_dataset=datasets.Dataset.from_list(rows),
    )
