"""The most memory that a run needs, by parts, from its config and the shapes of its model; no weight is read.

Every completion is taken to be as long as it may be. A step is at its most at one of three times (TIMES).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from grpo_lab.algorithm.batch import Batch
from grpo_lab.algorithm.logprobs import CHUNK, PIECE
from grpo_lab.config.schema import Config
from grpo_lab.config.sections import LoraConfig, ModelConfig
from grpo_lab.events import Stage
from grpo_lab.models import adapters, loading
from grpo_lab.models.precision import PRECISIONS
from grpo_lab.runs import environment
from grpo_lab.tasks import tasks as task_sets
from grpo_lab.training import decoding, evaluation, passes, rollouts, snapshots
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
    model = outline(config)
    here = process_before_a_model(config) if process is None else process
    batches = longest_batches(config, model.tokenizer)
    passed = [part for batch in batches for part in batch.split(config.data.micro_batch_prompts)]
    largest = max(passed, key=lambda part: part.prompt_ids.numel() + part.completions.numel())
    found = {name: (size,) * 3 for name, size in lasting(config, model).items()}
    found |= _of_step(config, model, batches, largest, accumulates=len(passed) > len(batches))
    in_mib = {name: (a / MIB, b / MIB, c / MIB) for name, (a, b, c) in found.items() if a or b or c}
    prompts = sum(len(batch.prompt_ids) for batch in batches), max(batch.prompt_ids.shape[1] for batch in batches)
    rows = sum(len(batch.completions) for batch in batches), max(batch.completions.shape[1] for batch in batches)
    parts = {"process": (here, here, here), **in_mib}
    return Prediction(parts, model.parameters, model.trained, prompts, rows, len(largest.prompt_ids))


def process_before_a_model(config: Config) -> float:
    """MiB of a run's process without tensors, taken from this one; on CUDA, the memory that torch takes beside them."""
    if loading.device_type(config.run.device) == "cuda":
        return WORKSPACE
    outline(config)  # it imports, and loads the tokenizer, as a run does
    return environment.process_mib() + FIRST_STEP


class Outline:
    """A model as shapes: torch's fake tensors have the types, sizes and kernels of the CPU's, and no memory."""

    def __init__(self, config: ModelConfig, lora: LoraConfig) -> None:
        from torch._subclasses.fake_tensor import FakeTensorMode  # here, because it imports sympy

        self._fake, self._autocast = FakeTensorMode(), PRECISIONS[config.precision].autocast
        self._shared = config.prompt_pass == "shared"
        model, self.tokenizer = loading.outline(config.name, config.precision)
        model = adapters.prepared(model, lora, seed=0)  # peft cannot put them into fake tensors
        with self._fake:
            _on_the_cpu(model)
        self._model: Any = model
        everything = list(model.parameters())
        trained = [parameter for parameter in everything if parameter.requires_grad]
        self.parameters, self.trained = (sum(p.numel() for p in each) for each in (everything, trained))
        self.weights, self.gradients = (sum(p.nbytes for p in each) for each in (everything, trained))
        head: Any = self._model.get_output_embeddings().weight
        self.vocabulary, self.width = head.shape
        self.logit = (self._autocast or head.dtype).itemsize
        """Bytes of a logit."""
        self.head = head.nbytes if head.requires_grad else 0
        """Bytes of the gradient of the head's weight."""
        self.tied = head is self._model.get_input_embeddings().weight

    @functools.cached_property
    def cached(self) -> list[int]:
        """Bytes of one token of one completion in each tensor of the cache: keys and values of each layer."""
        with self._passing(), torch.no_grad():
            token = torch.ones(1, 1, dtype=torch.long)
            layers = decoding.prompt_pass(self._model, token, token)[1].layers
            return [tensor.nbytes for layer in layers for tensor in (layer.keys, layer.values)]

    @functools.cached_property
    def casts(self) -> int:
        """Bytes of the weights of products that autocast keeps in its own type while tokens are sampled."""
        modules = [module for module in self._model.modules() if not isinstance(module, torch.nn.Embedding)]
        weights = [getattr(module, "weight", None) for module in modules] if self._autocast else []
        return sum(w.numel() * self.logit for w in weights if w is not None and w.ndim == 2 and w.requires_grad)

    def activations(self, batch: Batch) -> list[int]:
        """Bytes of each tensor that a forward pass over this micro-batch keeps for its backward, without logits."""
        rows, length = len(batch.completions), batch.prompt_ids.shape[1] + batch.completions.shape[1]
        if self._shared:
            rows, length = passes.pack(batch, self.width).tokens.shape
        weights = {parameter.untyped_storage()._cdata for parameter in self._model.parameters()}
        kept: dict[int, Tensor] = {}

        def keep(tensor: Tensor) -> Tensor:
            return kept.setdefault(tensor.untyped_storage()._cdata, tensor)

        with self._passing(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            ids, mask = torch.zeros(rows, length).long(), torch.ones(rows, 1, length, length).bool()
            self._model.base_model(input_ids=ids, attention_mask=mask, position_ids=ids, use_cache=False)
        found = [tensor.untyped_storage().nbytes() for key, tensor in kept.items() if key not in weights]
        # The states before the tokens: as a tensor of the completions, without its padding, and their gradient.
        return found + [batch.completions.numel() * self.width * self.logit] * 3

    @contextmanager
    def _passing(self) -> Iterator[None]:
        """Passes under the run's mixed precision, with fake tensors."""
        with self._fake, torch.autocast("cpu", dtype=self._autocast, enabled=self._autocast is not None):
            yield


def _on_the_cpu(model: torch.nn.Module) -> None:
    """Replace tensors on the device `meta` by tensors of the CPU, which are fake where that mode is on."""
    made: dict[int, Any] = {}  # by the tensor replaced, because a head may be the embedding too
    for module in model.modules():
        for tensors in (module._parameters, module._buffers):
            for name, old in [(name, tensor) for name, tensor in tensors.items() if tensor is not None]:
                new: Any = torch.empty(old.shape, dtype=old.dtype)
                new = torch.nn.Parameter(new, old.requires_grad) if isinstance(old, torch.nn.Parameter) else new
                tensors[name] = made.setdefault(id(old), new)


def outline(config: Config) -> Outline:
    """The outline of a config's model, made once."""
    return _outline(config.model, config.lora)


@functools.lru_cache(maxsize=4)
def _outline(config: ModelConfig, lora: LoraConfig) -> Outline:
    return Outline(config, lora)


def longest_batches(config: Config, tokenizer: Any) -> list[Batch]:
    """The batches of the objectives of one step, of each the one with the most tokens of prompts among the first steps.

    Completions are of full length. Where objectives take turns, the batch is that of the largest one.
    """
    objectives, way = resolve(config), combination(config)
    found = {objective.name: _longest_batch(config, objective, tokenizer) for objective in objectives}
    steps = [[found[each.name] for each in way.drawn(objectives, step)] for step in range(len(objectives))]
    return max(steps, key=lambda row: sum(batch.prompt_ids.numel() + batch.completions.numel() for batch in row))


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


def lasting(config: Config, model: Outline) -> dict[str, int]:
    """Bytes of all that lasts from step to step, by part."""
    every = snapshot_interval(config, model)
    later = 0 < every < config.run.num_steps  # the first snapshot has no moments yet
    copies = {
        "reference": COPIES["reference"] if needs_reference(config) and config.lora.reference == "adapters_off" else 0,
        "moments": COPIES["moments"],
        "snapshot": COPIES["snapshot"] if later else min(1, every),
    }
    return {"weights": model.weights} | {name: count * model.gradients for name, count in copies.items()}


def at_most(parameters: int) -> int:
    """Bytes of training all these parameters in fp32 with everything that lasts, without activations and logits.

    >>> at_most(834_560) // 2**20
    435
    """
    return environment.IMPORTS + FP32 * parameters * (sum(COPIES.values()) + 1)


def _of_step(
    config: Config, model: Outline, batches: list[Batch], largest: Batch, accumulates: bool
) -> dict[str, tuple[int, int, int]]:
    """Bytes of the parts that come and go in a step, at each of the TIMES.

    Each batch has gradients of its own, and those of its earlier micro-batches are there when it `accumulates`.
    """
    caches = []
    for batch in batches:
        rows = max(len(batch.completions), min(config.run.num_eval, evaluation.EVALUATED_AT_ONCE))
        # The prompts' cache is there until it has been copied into one with room for the completions.
        tokens = rows * (2 * batch.prompt_ids.shape[1] + batch.completions.shape[1])
        caches.append([tokens * each for each in model.cached])
    cache, activations = max(caches, key=sum), model.activations(largest)
    of_cache, of_activations = (sum(block for block in blocks if block < RETURNED) for blocks in (cache, activations))
    heap = of_cache + round(of_activations * (WITH_ADAPTERS if model.trained < model.parameters else 1))
    on_cpu = loading.device_type(config.run.device) == "cpu"
    others = (len(batches) - 1) * model.gradients
    before = others + accumulates * model.gradients
    return {
        "KV cache": (sum(cache), 0, 0),
        "casts": (model.casts, 0, 0),
        "gradients": (0, before + model.head, others + model.gradients + model.tied * model.head),
        "activations": (0, sum(activations), 0),
        "heap": (0, 0, on_cpu * heap),
        "logits": _logits(config, model, batches, largest),
    }


def _logits(config: Config, model: Outline, batches: list[Batch], largest: Batch) -> tuple[int, int, int]:
    """Bytes of logits, and of tensors of their size, at each of the TIMES."""
    of_step, of_pass = (sum(b.completions.numel() for b in each) * model.vocabulary for each in (batches, [largest]))
    _, interventions = validated(config)
    wanted, plain = bool(interventions.get(Stage.LOGITS)), config.model.prompt_pass == "plain"
    if plain or wanted or of_pass <= CHUNK:  # whole, and their gradient; the plain pass copies them
        logits = (2 + plain + wanted) * of_pass * model.logit
    else:
        logits = CHUNK * model.logit
    on_cpu = loading.device_type(config.run.device) == "cpu"
    worked_on = 3 * FP32 * min(of_pass, PIECE if on_cpu else CHUNK)
    kept = of_step * model.logit if config.run.exact_kl else 0
    rows = max(len(batch.completions) for batch in batches)
    sampled = 4 * FP32 * rows * model.vocabulary  # logits, probabilities, and torch.multinomial's
    return sampled, logits + worked_on + kept, kept
