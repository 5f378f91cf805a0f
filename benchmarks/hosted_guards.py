"""`python -m benchmarks.hosted_guards`: the cost of guards in TRL's GRPOTrainer, by callback and by `gl.guarded`.

Trainers of TRL on the tiny model that take turns, a few steps each, with the same prompts and seeds. The guards are
those of the preset `stable`, or all that a host can hold. They are silent, so that all trainers reach the same weights;
the ratio is that of neighbouring blocks.
"""

from __future__ import annotations

import json
import queue
import threading
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import torch
import typer

import grpo_lab as gl
from benchmarks import timing
from benchmarks.diagnosis import recipes
from benchmarks.timing import Block, Plan
from grpo_lab.analysis import markdown
from grpo_lab.runs import environment

SILENT = (
    *("rollback", "representable_epsilon", "dual_clip.delta=1e9", "skip_nonfinite", "skip_spikes.threshold=1e9"),
    *("skip_outliers.limit=1e9", "clip_gradients.max_norm=1e9", "check_weights"),
)
"""Guards of the callback that leave a healthy run as it is; warm_up and adaptive_learning_rate change its rate."""
INSIDE = (
    *("sanitize_rewards", "clamp_advantages.limit=1e9", "drop_nonfinite_samples"),
    *("clamp_log_ratio.limit=1e9", "clamp_kl.limit=1e9"),
)
"""The further ones of a guarded trainer; adaptive_beta moves beta in every run."""
STABLE = ("representable_epsilon", "clamp_kl.limit=1e9", "skip_nonfinite")
"""The preset `stable` but for warm_up."""
ARGUMENTS = {
    **{"num_generations": 8, "max_completion_length": 8, "learning_rate": 1e-5, "lr_scheduler_type": "constant"},
    **{"beta": 0.04, "logging_steps": 10**6, "disable_dropout": True},
}


class Contender:
    """A trainer of TRL in a thread of its own, which makes some steps and waits."""

    def __init__(self, folder: Path, steps: int, callbacks: tuple[Any, ...], make: Any) -> None:
        from transformers import TrainerCallback

        self._asked: queue.Queue[int] = queue.Queue()
        self._done: queue.Queue[Any] = queue.Queue()
        outer, left = self, [0]

        class Waits(TrainerCallback):
            def on_step_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
                if not left[0]:
                    outer._done.put(None)
                    left[0] = outer._asked.get()
                left[0] -= 1

        spec = recipes.Spec(steps + 1, 16, ARGUMENTS, (recipes.accuracy(),), callbacks=lambda: (Waits(), *callbacks))
        self.trainer = recipes.trainer(spec, 0, folder, make)
        self.thread = threading.Thread(target=self._train, daemon=True)
        self.thread.start()
        self._wait()
        self._random = torch.get_rng_state()

    def _train(self) -> None:
        try:
            self.trainer.train()
        except Exception as error:  # told to the thread that waits
            self._done.put(error)

    def _wait(self) -> None:
        if (error := self._done.get()) is not None:
            raise error

    def advance(self, steps: int) -> Block:
        """Seconds a step over the next steps; from the begin of the first to the begin of the one after the last."""
        torch.set_rng_state(self._random)  # trainers sample from torch's own generator, which they share
        watch = timing.Stopwatch()
        self._asked.put(steps)
        self._wait()
        block, self._random = watch.stop(steps), torch.get_rng_state()
        return block


def main(
    blocks: Annotated[int, typer.Option(min=2, help="Blocks of each trainer.")] = 24,
    steps: Annotated[int, typer.Option(min=1, help="Steps of a block.")] = 5,
    out: Annotated[Path, typer.Option(envvar="OUT", help="Folder of the results.")] = Path("benchmarks/results"),
) -> None:
    """Measure, and write hosted_guards.{json,md}."""
    timing.use_threads(1)
    plan = Plan(blocks, steps, warm_up=5)
    with TemporaryDirectory() as folder:
        given = Path(folder), plan.total
        contenders = {
            "bare": Contender(*given, (), None),
            "guarded, preset stable": Contender(*given, (), guarded_with(STABLE, None)),
            "callback, all guards": Contender(*given, (gl.GuardCallback(*SILENT),), None),
            "guarded, all guards": Contender(*given, (), guarded_with((*SILENT, *INSIDE), None)),
            "guarded, all guards, with events": Contender(
                *given, (), guarded_with((*SILENT, *INSIDE), given[0] / "events")
            ),
        }
        taken = timing.take_turns({name: each.advance for name, each in contenders.items()}, plan)
        same = [list(each.trainer.model.state_dict().values()) for each in contenders.values()]
    ratios = {name: timing.compare(taken[name], taken["bare"]) for name in taken if name != "bare"}
    tree = {
        "environment": environment.describe(threads=1),
        "milliseconds": {name: timing.milliseconds(each) for name, each in taken.items()},
        "ratios": ratios,
        "same_bits": all(all(map(torch.equal, same[0], other)) for other in same[1:]),
    }
    out.mkdir(parents=True, exist_ok=True)
    (out / "hosted_guards.json").write_text(json.dumps(tree, indent=1) + "\n", encoding="utf-8")
    (out / "hosted_guards.md").write_text(text := page(tree, plan), encoding="utf-8")
    print(text)


def guarded_with(names: tuple[str, ...], events: Path | None) -> Any:
    """What makes a guarded trainer with these guards."""

    def make(**given: Any) -> Any:
        from trl import GRPOTrainer  # pyright: ignore[reportPrivateImportUsage]

        return gl.guarded(GRPOTrainer)(guards=names, events=events, **given)

    return make


def page(tree: dict[str, Any], plan: Plan) -> str:
    """The result in Markdown."""
    rows = []
    for name, each in tree["ratios"].items():
        wall, cpu = each["wall"], each["cpu"]
        rows.append(
            [name, *(f"{clock['median']:.3f} ({clock['low']:.3f} to {clock['high']:.3f})" for clock in (cpu, wall))]
        )
    header = ["TRL with guards / bare TRL", "processor time: median (quartiles)", "wall clock: median (quartiles)"]
    bare = f"{tree['milliseconds']['bare']['cpu']:.0f} ms"
    bits = "to the bit" if tree["same_bits"] else "NOT to the bit"
    return f"""# Guards in TRL

Made by `python -m benchmarks.hosted_guards` on a CPU with one thread, torch {tree["environment"]["packages"]["torch"]}:
{plan.blocks} blocks of {plan.steps} steps of each trainer in turns, tiny model, 16 prompts with 8 completions of up to
8 tokens. A step of bare TRL took {bare} of processor time. *Preset stable* is
without warm_up; *all guards* are those that leave a healthy run as it is, with a snapshot of weights and moments for
`rollback` in each step. Other work was running on the machine. After the last step all weights were equal {bits}.

{markdown.table([header, *rows])}
"""


if __name__ == "__main__":
    typer.run(main)
