"""One of several processes that train together, as a program: it makes runs of CASES and writes their results.

Arguments: the port of the store, the rank, the number of processes, the file for the results, and the cases to make.
"""

import hashlib
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from grpo_lab.config.catalog import preset
from grpo_lab.config.schema import Config
from grpo_lab.core.hooks import Stage, Verdict
from grpo_lab.errors import GrpoLabError
from grpo_lab.events import Ended, Evaluated, Stepped, encodable
from grpo_lab.models import loading
from grpo_lab.training.distributed import PeerFailed, Processes, SharedTraining, new_store
from grpo_lab.training.faults import FAULTS
from grpo_lab.training.interventions import Intervention, Outcome
from grpo_lab.training.state import Training
from grpo_lab.training.trainer import events

TIMED = {"step_time", "run.memory"}
RANKS = "run.streams=2", "data.micro_batch_prompts=2"
"""One process with these settings that samples in two parts computes what two processes compute."""


def smoke(*overrides: str) -> Config:
    """Three steps of four prompts, with all guards of `stable`."""
    guarded = preset("smoke").with_guards(preset("stable").guards)
    return guarded.with_("run.num_eval=8", "guards.warm_up=off", *RANKS, *overrides)


ALIKE: dict[str, Config] = {
    "healthy": smoke(),
    "four updates": smoke("loss.num_iterations=2", "optimizer.schedule=cosine"),
    "fp16": smoke("model.precision=fp16"),
    "lora": smoke("lora.r=4"),
    "two objectives": Config.from_dict(
        smoke("loss.combination=pcgrad").to_dict()
        | {
            "objectives": [
                {"name": "sums", "num_prompts": 4},
                {"name": "more", "num_prompts": 4, "beta": 0.1},
            ]
        }
    ),
    "nan gradient": smoke("faults.nan_gradient=on"),
}
"""Runs of two processes that one process makes alike, to the bit."""


@dataclass(frozen=True)
class OnTheSecond(Intervention):
    """Harms a value of the second process alone, in step 1."""

    harm = staticmethod(lambda value: (value * float("nan"),))

    def __call__(self, value, step):
        mine = step.index == 1 and torch.distributed.is_initialized() and torch.distributed.get_rank() == 1
        return Outcome(*self.harm(value)) if mine and step.note in ("", "sampling") else Outcome(value)


def _nan(value: torch.Tensor) -> tuple:
    return (value * float("nan"),)


def _raise(value: object) -> object:
    raise ValueError("the second process broke")


HARMS: dict[str, tuple[Stage, Callable]] = {
    "nan_logits": (Stage.LOGITS, _nan),
    "nan_log_ratio": (Stage.LOG_RATIO, _nan),
    "nan_kl": (Stage.KL_DELTA, _nan),
    "refuses": (Stage.LOG_RATIO, lambda value: (value, Verdict.SKIP_STEP, "the second process refused")),
    "breaks": (Stage.LOSS, _raise),
}


def register_harms() -> None:
    """Make the harms faults, in a process that only makes these runs."""
    for name, (stage, harm) in HARMS.items():
        words = {"name": name, "stage": stage, "harm": staticmethod(harm), "__doc__": "A harm."}
        FAULTS[name] = type(name, (OnTheSecond,), words)


ONE_SIDED: dict[str, Config] = {
    name: smoke(f"faults.{name}=on", "guards.clamp_logits=off" if name == "nan_logits" else "run.seed=0")
    for name in HARMS
}
"""Runs of which only the second process has a fault."""
RAGGED = {"ragged": smoke("loss.dynamic_sampling=1", "data.num_generations=2")}
"""Three groups are left of four, which the processes share in another way than micro-batches of two."""
DROPOUT = {"dropout": smoke("faults.dropout_on=on")}
"""Each process draws its own zeros, as each micro-batch does."""
FOUR = {"four": smoke("run.streams=4", "data.micro_batch_prompts=1")}
CASES = ALIKE | ONE_SIDED | DROPOUT | RAGGED


def run(config: Config, processes: Processes | None = None) -> dict:
    """The verdicts, metrics, actions and weights of a run, and the error that ended it."""
    model = policy, _ = loading.load(config.model.name, config.model.precision, "cpu")
    found: dict = {"steps": [], "links": [], "actions": [], "error": "", "end": ""}
    try:
        training = SharedTraining(processes, config, model) if processes else Training(config, model)
        for event in events(training):
            if isinstance(event, Stepped):
                kept = {name: value for name, value in event.metrics.items() if name not in TIMED}
                found["steps"].append({"verdict": event.verdict.name, **kept})
                found["links"].append([(n.link, n.magnitude, n.nonfinite, n.numel, n.where) for n in event.links])
                found["actions"] += [(a.name, Verdict(a.verdict).name, a.reason) for a in event.actions]
            elif isinstance(event, Evaluated):
                found["steps"].append({"reward": event.reward})
            elif isinstance(event, Ended):
                found["end"] = event.status
    except (PeerFailed, GrpoLabError, ValueError, RuntimeError) as error:
        found["error"] = f"{type(error).__name__}: {error}".partition("\n")[0]
    tensors = [p.detach().contiguous().view(-1).view(torch.uint8) for p in policy.parameters()]
    found["weights"] = hashlib.sha256(torch.cat(tensors).numpy().tobytes()).hexdigest()
    return encodable(found)


def main(port: str, rank: str, size: str, file: str, *names: str) -> None:
    """Make the runs, and write their results."""
    torch.set_num_threads(1)
    register_harms()
    processes = Processes(new_store(int(port)), int(rank), int(size), minutes=2.0)
    results = {}
    for name in names:
        config = (CASES | FOUR)[name].with_(f"run.processes={size}", "data.micro_batch_prompts=0")
        results[name] = run(config, processes)
    Path(file).write_text(json.dumps(results), encoding="utf-8")
    processes.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
