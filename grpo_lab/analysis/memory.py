"""The memory of a run: exact bytes of all that lasts from step to step, by shape; one measured step tells the rest."""

import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from torch import Tensor

from grpo_lab.config.schema import Config, planned_steps
from grpo_lab.core.hooks import Stage
from grpo_lab.errors import RunError
from grpo_lab.events import Stepped
from grpo_lab.models import adapters, loading
from grpo_lab.runs.child import Child
from grpo_lab.runs.crashes import out_of_memory, prompts_of_a_pass
from grpo_lab.runs.session import Session, View
from grpo_lab.training import snapshots
from grpo_lab.training.interventions import Intervention, Outcome, Step
from grpo_lab.training.objectives import resolve
from grpo_lab.training.registry import combination, needs_reference, validated

MIB = 2**20
COUNT = 4
"""Bytes in which AdamW counts the updates of a tensor, beside its two moments."""
STEPS = 2
"""The first one makes the moments, so that everything is in memory in the second."""
IMPORTS = 410 * MIB
"""Bytes of a process that has imported all that a run needs, before it has a model."""
CONTROL_GROUP = Path("/sys/fs/cgroup")
"""Holds the limit and the usage of memory in a container (control groups, version 2)."""


@dataclass(frozen=True)
class NeverEnd(Intervention):
    """Takes the end tokens out of the distribution that is sampled from, so that completions get as long as they may.

    `measure` names this fault by its file.
    """

    stage = Stage.PROBABILITIES

    end: int = 0
    """The tokenizer's end token; the model names its own."""

    def __call__(self, value: Tensor, step: Step) -> Outcome:
        ids = step.policy.generation_config.eos_token_id
        value = value + 1e-9  # something is left where only an end was likely
        value[:, [self.end, *(ids if isinstance(ids, list) else [self.end if ids is None else ids])]] = 0.0
        return Outcome(value)


def parts(config: Config) -> dict[str, int]:
    """Bytes of each part that lasts from step to step on the device, from the shapes of the model; no weight is read.

    Raises ConfigError and ModelError as a run does.
    """
    objectives, way, grpo = resolve(config), combination(config), "grpo" in config.run.stages
    model, _ = loading.outline(config.model.name, config.model.precision)
    policy = adapters.prepared(model, config.lora, seed=0)
    trained = [parameter for parameter in policy.parameters() if parameter.requires_grad]
    size, numbers = sum(p.nbytes for p in trained), sum(p.numel() for p in trained)
    moments = sum(2 * p.nbytes + COUNT for p in trained)
    at_once = max(len(way.drawn(objectives, step)) for step in range(len(objectives))) if grpo else 1
    refers = grpo and needs_reference(config) and config.lora.reference == "adapters_off"
    interventions = validated(config)[1].values()
    may_roll_back = any(each.may_roll_back for row in interventions for _, each in row)
    every = snapshots.interval(config.run.snapshot_every, numbers, may_roll_back)
    later = every < max(planned_steps(config.to_dict()).values())  # the first one is taken before there are moments
    on_host = loading.device_type(config.run.device) == "cuda" and numbers >= snapshots.SMALL
    return {
        "weights": sum(p.nbytes for p in policy.parameters()),
        "gradients": size * at_once,
        "moments": moments,
        "reference": size if refers else 0,
        "snapshot": size + moments * later if every and not on_host else 0,
    }


def measure(config: Config, found: Mapping[str, int], views: Sequence[View] = ()) -> tuple[int, int]:
    """Bytes of a child process before it has a model (0 on CUDA), and the most that it takes when the steps are over.

    `found` are the parts of the config. Every completion is as long as it may be.
    Raises RunError where no step fits, and the errors of a run.
    """
    _, tokenizer = loading.outline(config.model.name, config.model.precision)
    settings = [f"faults.{__file__}:{NeverEnd.__name__}.end={tokenizer.eos_token_id}"]
    names, planned = {"sft": "sft.num_steps", "grpo": "run.num_steps"}, planned_steps(config.to_dict())
    settings += [f"{names[stage]}={min(STEPS, steps)}" for stage, steps in planned.items()]
    settings += ["run.snapshot_every=1"] if found["snapshot"] > found["moments"] else []
    on_cuda = loading.device_type(config.run.device) == "cuda"
    with closing(Child()) as child, tempfile.TemporaryDirectory() as folder:
        child.ready()
        before = 0 if on_cuda else psutil.Process(child.process.pid).memory_info().rss
        session = Session(config.with_(*settings, "run.max_restarts=0"), Path(folder) / "run", child=child)
        session.views.extend(views)
        session.run()
    told = [event.metrics for event in session.events if isinstance(event, Stepped)]
    peaks = [metrics["run.memory"] for metrics in told if "run.memory" in metrics]
    if session.ended and (out_of_memory(session.ended) or not peaks):
        why = "memory ran out" if out_of_memory(session.ended) else "no step told its memory"
        raise RunError(f"{why}: {session.ended.message}")
    return before, round(peaks[-1] * MIB)


def change_first(config: Config, found: Mapping[str, int], rest: float) -> list[list[str]]:
    """Settings that need less memory, the change of each and its effect; those of the larger share come first.

    `found` are the parts of the config; `rest` are the bytes of activations, logits and cache.
    """
    longest = max(resolve(config), key=lambda objective: objective.sampling.max_completion_length)
    own = any(e.name == longest.name and "max_completion_length" in e.sampling for e in config.objectives)
    length = (f"objectives.{longest.name}." if own else "") + "sampling.max_completion_length"
    halved = [("data.micro_batch_prompts", prompts_of_a_pass(config), 1, "less of activations; the same gradient")]
    if "grpo" in config.run.stages:
        halved += [
            (length, longest.sampling.max_completion_length, 1, "less of activations and cache"),
            ("data.num_generations", config.data.num_generations, 2, "less of activations and cache; smaller groups"),
        ]
    rows = [[name, f"{old} -> {old // 2}", why] for name, old, least, why in halved if old // 2 >= least]
    r = config.lora.r
    trained = [["lora.r", f"{r} -> {r // 2}", "smaller adapters"]] if r > 1 else []
    if not r:
        trained = [["lora.r", "0 -> 8", "gradients, moments, reference and snapshot of adapters alone"]]
    return [*trained, *rows] if sum(found.values()) - found["weights"] > rest else [*rows, *trained]


def free_mib(device: str) -> float | None:
    """MiB that a further process can take on this device, or None where a GPU does not say.

    On a CPU it is the memory available on the machine, or less where a container has a limit. A GPU is asked by a child
    process, so that this one gets no CUDA context; the context of the child is taken off.
    """
    if loading.device_type(device) == "cuda":
        name = "cuda" if device == "auto" else device
        asked = f"import torch; print(torch.cuda.mem_get_info({name!r})[0])"
        done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True)
        return int(done.stdout) / MIB if not done.returncode else None
    free = psutil.virtual_memory().available
    with suppress(OSError, ValueError):  # no container, or no limit ("max")
        limit, usage = (int((CONTROL_GROUP / f"memory.{name}").read_text()) for name in ("max", "current"))
        free = min(free, limit - usage)
    return free / MIB
