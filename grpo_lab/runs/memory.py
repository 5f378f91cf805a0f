"""The most memory that a run needs, by parts, from its config and the shapes of its model; no weight is read.

Each stage of the run is predicted, and the one that takes most counts. Every sampled completion is taken to be as long
as it may be. A step is at its most at one of three times (TIMES).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from grpo_lab.config.schema import Config
from grpo_lab.core.batch import Batch
from grpo_lab.core.hooks import Stage
from grpo_lab.core.logprobs import CHUNK, PIECE
from grpo_lab.models import loading
from grpo_lab.runs import environment
from grpo_lab.runs.outline import Outline, outline
from grpo_lab.tasks import tasks as task_sets
from grpo_lab.training import demonstrations, evaluation, rollouts, sft, snapshots
from grpo_lab.training.objectives import Objective, resolve
from grpo_lab.training.registry import combination, needs_reference, validated

MIB = 2**20
TIMES = ("sampling", "loss", "update")
"""The last tokens are sampled; the loss of the largest micro-batch is known; its last gradient is computed."""
LOOK = 50
"""Steps whose prompts are read to find the longest ones."""
RETURNED = 2**25
"""Bytes from which on glibc returns a freed block to the system; smaller ones stay in its heap, where gradients, which
are allocated while activations are freed, hardly ever fit into their places (measured: docs/memory.md)."""
WITH_ADAPTERS = 1.75
"""Bytes of heap for each byte of activations in small blocks where some weights are frozen: adapters keep small tensors
between large ones that are freed at once, and the heap fragments (measured on tiny and SmolLM2-135M, r = 8)."""
FIRST_STEP = 20.0
"""MiB that a process takes in its first step for kernels and code, beside tensors."""
WORKSPACE = 32.0
"""MiB that cuBLAS takes on a GPU, as a run's child process sets it (`:4096:8`)."""
FP32 = 4
"""Bytes of a number."""
COPIES = {"weights": 1, "reference": 1, "moments": 2, "snapshot": 3}
"""Everything that may last from step to step; a snapshot is of weights and moments."""


@dataclass(frozen=True)
class Prediction:
    """MiB of each part at each of the TIMES of a step, and the work that they hold for."""

    stage: str
    """The stage of the run that takes most."""
    parts: Mapping[str, tuple[float, float, float]]
    parameters: int
    trained: int
    """Parameters that have a gradient."""
    prompts: tuple[int, int]
    """Prompts of a step, and tokens of the longest."""
    completions: tuple[int, int]
    """Completions of a step, and tokens of each."""
    micro_batch: int
    """Prompts of the largest forward-backward pass."""

    @property
    def sums(self) -> tuple[float, ...]:
        """MiB at each of the TIMES."""
        return tuple(map(sum, zip(*self.parts.values(), strict=True)))

    @property
    def process(self) -> float:
        """MiB of the process before it has a model."""
        return self.parts["process"][0]

    @property
    def peak(self) -> float:
        """MiB at the worst time."""
        return max(self.sums)

    @property
    def when(self) -> str:
        """The worst of the TIMES."""
        return TIMES[self.sums.index(self.peak)]


def predict(config: Config, process: float | None = None) -> Prediction:
    """The memory of a run of this config; `process` replaces `process_before_a_model`.

    Raises ConfigError, ModelError and DataError as a run does.
    """
    here = process_before_a_model(config) if process is None else process
    found = [_of_stage(work(config, outline(config), stage), here) for stage in config.run.stages]
    return max(found, key=lambda each: each.peak)


class Work(NamedTuple):
    """The largest step of a stage."""

    stage: str
    config: Config
    """With the settings of the stage in the places of GRPO's."""
    model: Outline
    batches: list[Batch]

    def sampled(self, batch: Batch) -> int:
        """Completions that are sampled together at most, in a step or of held-out problems."""
        held_out = min(self.config.run.num_eval, evaluation.EVALUATED_AT_ONCE)
        return max(held_out, len(batch.completions) if self.stage == "grpo" else 0)


def work(config: Config, model: Outline, stage: str) -> Work:
    """The largest step of a stage. Raises DataError for demonstrations that SFT cannot use."""
    if stage == "grpo":
        return Work(stage, config, model, longest_batches(config, model.tokenizer))
    shown, size = demonstrations.load(config, model.model, model.tokenizer), config.sft.batch_size
    steps = range(min(LOOK, config.sft.num_steps))
    batches = [shown.batch(config.run.seed, step, size, torch.device("cpu")) for step in steps]
    return Work(stage, sft.in_place_of_grpo(config), model, [max(batches, key=_size)])


def _size(batch: Batch) -> int:
    """Tokens of a batch, padding included."""
    return batch.prompt_ids.numel() + batch.completions.numel()


def _of_stage(work: Work, process: float) -> Prediction:
    """The memory of a stage, whose process takes so many MiB before it has a model."""
    model, batches = work.model, work.batches
    passed = [part for batch in batches for part in batch.split(work.config.data.micro_batch_prompts)]
    largest = max(passed, key=_size)
    found = {name: (size,) * 3 for name, size in lasting(work).items()}
    found |= _of_step(work, largest, accumulates=len(passed) > len(batches))
    in_mib = {name: (a / MIB, b / MIB, c / MIB) for name, (a, b, c) in found.items() if a or b or c}
    prompts = sum(len(batch.prompt_ids) for batch in batches), max(batch.prompt_ids.shape[1] for batch in batches)
    rows = sum(len(batch.completions) for batch in batches), max(batch.completions.shape[1] for batch in batches)
    parts = {"process": (process,) * 3, **in_mib}
    return Prediction(work.stage, parts, model.parameters, model.trained, prompts, rows, len(largest.prompt_ids))


def process_before_a_model(config: Config) -> float:
    """MiB of a run's process without tensors, taken from this one; on CUDA, the memory that torch takes beside them."""
    if loading.device_type(config.run.device) == "cuda":
        return WORKSPACE
    outline(config)  # it imports, and loads the tokenizer, as a run does
    return environment.process_mib() + FIRST_STEP


def longest_batches(config: Config, tokenizer: Any) -> list[Batch]:
    """The batches of the objectives of one step, of each the one with the most tokens of prompts among the first steps.

    Completions are of full length. Where objectives take turns, the batch is that of the largest one.
    """
    objectives, way = resolve(config), combination(config)
    found = {objective.name: _longest_batch(config, objective, tokenizer) for objective in objectives}
    steps = [[found[each.name] for each in way.drawn(objectives, step)] for step in range(len(objectives))]
    return max(steps, key=lambda row: sum(map(_size, row)))


def _longest_batch(config: Config, objective: Objective, tokenizer: Any) -> Batch:
    tasks, size = task_sets.load(objective.tasks), max(1, objective.num_prompts)
    rows = [tasks.batch(config.run.seed, step, size) for step in range(min(LOOK, config.run.num_steps))]
    encoded = [rollouts.encode(tokenizer, [problem.prompt for problem in row], torch.device("cpu")) for row in rows]
    ids, mask = max(encoded, key=lambda pair: pair[0].numel())
    group = torch.arange(len(ids)).repeat_interleave(config.data.num_generations)
    shape = len(group), objective.sampling.max_completion_length
    tokens, blank = torch.zeros(shape, dtype=torch.long), torch.zeros(shape)
    return Batch(ids, mask, group, tokens, tokens == 0, blank, blank)


def snapshot_interval(config: Config, model: Outline) -> int:
    """Steps between the snapshots of a run, 0 for none."""
    _, interventions = validated(config)
    may_roll_back = any(i.may_roll_back for row in interventions.values() for _, i in row)
    return snapshots.interval(config.run.snapshot_every, model.trained, may_roll_back)


def lasting(work: Work) -> dict[str, int]:
    """Bytes of all that lasts from step to step, by part."""
    config, model = work.config, work.model
    every = snapshot_interval(config, model)
    later = 0 < every < config.run.num_steps  # the first snapshot has no moments yet
    refers = work.stage == "grpo" and needs_reference(config) and config.lora.reference == "adapters_off"
    copies = {
        "reference": COPIES["reference"] if refers else 0,
        "moments": COPIES["moments"],
        "snapshot": COPIES["snapshot"] if later else min(1, every),
    }
    return {"weights": model.weights} | {name: count * model.gradients for name, count in copies.items()}


def _of_step(work: Work, largest: Batch, accumulates: bool) -> dict[str, tuple[int, int, int]]:
    """Bytes of the parts that come and go in a step, at each of the TIMES.

    Each batch has gradients of its own, and those of its earlier micro-batches are there when it `accumulates`.
    """
    config, model, batches = work.config, work.model, work.batches
    caches = []
    for batch in batches:
        # The prompts' cache is there until it has been copied into one with room for the completions.
        tokens = work.sampled(batch) * (2 * batch.prompt_ids.shape[1] + batch.completions.shape[1])
        caches.append([tokens * each for each in model.cached])
    cache, activations = max(caches, key=sum), model.activations(largest, model.sequences(largest))
    of_cache, of_activations = (sum(block for block in blocks if block < RETURNED) for blocks in (cache, activations))
    heap = of_cache + round(of_activations * (WITH_ADAPTERS if model.trained < model.parameters else 1))
    on_cpu = loading.device_type(config.run.device) == "cpu"
    gradients = model.gradients
    others = (len(batches) - 1) * gradients
    before = others + accumulates * gradients
    return {
        "KV cache": (sum(cache), 0, 0),
        "casts": (model.casts, 0, 0),
        "gradients": (0, before + model.head, others + gradients + model.tied * model.head),
        "activations": (0, sum(activations), 0),
        "heap": (0, 0, on_cpu * heap),
        "logits": _logits(work, largest),
    }


def _logits(work: Work, largest: Batch) -> tuple[int, int, int]:
    """Bytes of logits, and of tensors of their size, at each of the TIMES."""
    config, model, batches = work.config, work.model, work.batches
    of_step, of_pass = (sum(b.completions.numel() for b in each) * model.vocabulary for each in (batches, [largest]))
    _, interventions = validated(config)
    wanted, plain = bool(interventions.get(Stage.LOGITS)), config.model.prompt_pass == "plain"
    if plain or wanted or of_pass <= CHUNK:  # whole, and their gradient; the plain pass copies them
        logits = (2 + plain + wanted) * of_pass * model.logit
    else:
        logits = CHUNK * model.logit
    on_cpu = loading.device_type(config.run.device) == "cpu"
    worked_on = 3 * FP32 * min(of_pass, PIECE if on_cpu else CHUNK)
    kept = of_step * model.logit if config.run.exact_kl and work.stage == "grpo" else 0
    rows = max(map(work.sampled, batches))
    sampled = 4 * FP32 * rows * model.vocabulary  # logits, probabilities, and torch.multinomial's
    return sampled, logits + worked_on + kept, kept
