"""The sections of a config: each setting with its type, its limit, its default and its help text."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Annotated, Any

from grpo_lab.config.fields import AtLeast, Between, FrozenDict, OneOf, Settings, build, settings_of
from grpo_lab.errors import ConfigError, unknown
from grpo_lab.metrics import METRICS, of_objective

STAGES = ("sft", "grpo")
"""The stages that a run may have."""


@dataclass(frozen=True)
class RunConfig(Settings):
    """Length, device, seed and reproducibility of a run."""

    name: str = "run"
    """Name of the run in its folder and in plots."""
    seed: Annotated[int, AtLeast(0)] = 0
    """Seed of every random draw, together with the step and the purpose of the draw."""
    stages: tuple[str, ...] = ("grpo",)
    """The stages in their order: `sft`, `grpo`, or both. Steps count on, and each stage has an optimizer of its own."""
    num_steps: Annotated[int, AtLeast(1)] = 10
    """Steps of GRPO to attempt: each samples a batch and updates the policy `loss.num_iterations` times."""
    device: str = "auto"
    """`auto`, `cpu`, `cuda` or `cuda:1`."""
    threads: Annotated[int, AtLeast(0)] = 0
    """CPU threads of torch; 0: as many as are fastest when the run begins, or all from ten million parameters on. The
    last bits depend on it; the event `Started` has the number."""
    deterministic: bool = False
    """Use torch's deterministic kernels on the GPU; on the CPU runs are deterministic anyway."""
    num_eval: Annotated[int, AtLeast(0)] = 0
    """Held-out problems sampled once each at temperature 1 before the first step and after the last; 0 for none."""
    exact_kl: bool = False
    """Also compute KL(policy || reference) over the whole vocabulary, as the metric kl/exact; it costs memory."""
    snapshot_every: Annotated[int, AtLeast(0)] = 0
    """Steps between in-memory snapshots for rollback. 0 picks 1 below ten million parameters; above, where a snapshot
    is a large copy of weights and moments, 10 if a guard may roll back, and else none."""
    processes: Annotated[int, AtLeast(1)] = 1
    """Processes that share the prompts of each step and have the same weights; on GPUs one each."""
    streams: Annotated[int, AtLeast(0)] = 0
    """Random streams of sampling, each for an equal share of a step's prompts; 0 for one in each process. Runs with the
    same number sample alike on any number of processes."""
    peer_minutes: Annotated[float, AtLeast(0.01)] = 10.0
    """Minutes that a process waits for the others before the run ends."""
    checkpoint_minutes: Annotated[float | None, AtLeast(0)] = 10.0
    """Minutes between two checkpoints in the run's folder; 0 for one at every step that can have one; `none` for none.
    One is also written when a run is stopped. They never change what is trained."""
    max_restarts: Annotated[int, AtLeast(0)] = 0
    """How often a run that crashed goes on by itself from its last checkpoint."""
    recover: tuple[str, ...] = ()
    """Settings that each such restart changes: guards.check_weights=on, optimizer.learning_rate=*0.5."""
    hang_minutes: Annotated[float | None, Between(0, 10080)] = None
    """Minutes without an event after which a child process counts as crashed; time in a pause does not count. Give more
    than the longest step, evaluation or loading of the model takes. `none` waits for ever."""

    def __post_init__(self) -> None:
        """Raise ConfigError for a stage that does not exist or comes twice, and for no stage at all."""
        super().__post_init__()
        if not self.stages or len(set(self.stages)) < len(self.stages) or not set(self.stages) <= set(STAGES):
            raise ConfigError(f"stages = {','.join(self.stages)}: give {' or '.join(STAGES)}, or each of them once")


@dataclass(frozen=True)
class ModelConfig(Settings):
    """The policy, its precision, and how its forward passes are computed."""

    name: str = "tiny"
    """`tiny`, `smollm2-135m` (once it is fetched), a local folder, or a hub id."""
    precision: Annotated[str, OneOf("fp32", "bf16", "fp16", "bf16_pure", "fp16_pure")] = "fp32"
    """`bf16`/`fp16`: fp32 weights under autocast (fp16 with loss scaling). `*_pure`: the weights themselves."""
    prompt_pass: Annotated[str, OneOf("shared", "plain")] = "shared"
    """`shared` runs a prompt once for several completions in its row; `plain` repeats it for every completion."""


@dataclass(frozen=True)
class DataConfig(Settings):
    """Prompts, rewards and the shape of a batch."""

    tasks: str = "addition"
    """A built-in task, as `addition`, `reviews` or `capitals`, or a JSON-lines file with a `prompt` on every line."""
    rewards: tuple[str, ...] = ("exact_match",)
    """Reward functions, summed: built-in names or `file.py:name`, with TRL's signature."""
    reward_weights: tuple[float, ...] = ()
    """The weight of each reward function in the sum, in their order; empty for 1 each."""
    num_prompts: Annotated[int, AtLeast(1)] = 16
    """Prompts (groups) a step."""
    num_generations: Annotated[int, AtLeast(1)] = 8
    """Completions sampled for each prompt: the size of a group."""
    micro_batch_prompts: Annotated[int, AtLeast(0)] = 0
    """Prompts a forward-backward pass; gradients accumulate over the batch. 0: as many as have 4,096 tokens."""
    allow_single_generation: bool = False
    """Permit groups of one completion, which have nothing to be compared with; for scenarios that show the failure."""

    def __post_init__(self) -> None:
        """Raise ConfigError for a group of one without `allow_single_generation`."""
        super().__post_init__()
        if self.num_generations == 1 and not self.allow_single_generation:
            raise ConfigError(
                "num_generations = 1: a group of one has nothing to be compared with and teaches nothing; "
                "use at least 2 (data.allow_single_generation=true only to watch it fail)"
            )


@dataclass(frozen=True)
class SamplingConfig(Settings):
    """Temperature, filters and penalties with which completions are sampled."""

    temperature: Annotated[float, Between(0)] = 1.0
    """Logits are divided by it, when sampling and in every log-probability alike."""
    top_p: Annotated[float, Between(0, 1)] = 1.0
    """Keep the smallest set of tokens with this much probability; 1 keeps all."""
    top_k: Annotated[int, AtLeast(0)] = 0
    """Keep this many of the likeliest tokens; 0 keeps all."""
    repetition_penalty: Annotated[float, Between(0)] = 1.0
    """Divides positive and multiplies negative logits of tokens already in the text; 1 changes nothing."""
    presence_penalty: float = 0.0
    """Subtracted from the logits of tokens already in the completion."""
    frequency_penalty: float = 0.0
    """Subtracted once for every time a token is already in the completion."""
    max_completion_length: Annotated[int, AtLeast(1)] = 8
    """Tokens a completion may have at most, its end token included."""


@dataclass(frozen=True)
class OptimizerConfig(Settings):
    """AdamW and its schedule."""

    learning_rate: Annotated[float, AtLeast(0)] = 3e-4
    """Peak learning rate."""
    schedule: Annotated[str, OneOf("constant", "cosine")] = "constant"
    """How the learning rate changes over the run."""
    adam_eps: Annotated[float, AtLeast(0)] = 1e-8
    """Added to the root of the second moment."""
    adam_beta1: Annotated[float, AtLeast(0, 0.99999)] = 0.9
    """Decay of the first moment."""
    adam_beta2: Annotated[float, AtLeast(0, 0.99999)] = 0.999
    """Decay of the second moment."""
    weight_decay: Annotated[float, AtLeast(0)] = 0.0
    """Decoupled weight decay."""


@dataclass(frozen=True)
class ObjectiveConfig(Settings):
    """One of several objectives of a run; for a setting that is none the run's own holds."""

    name: str
    """Its name in metrics, as in kl/F: letters, digits, - and _."""
    tasks: str | None = None
    """Its prompts, as `data.tasks` names them."""
    rewards: tuple[str, ...] | None = None
    """Its reward functions, as `data.rewards` names them."""
    reward_weights: tuple[float, ...] | None = None
    """The weights of its reward functions; without any, `data.reward_weights` holds if it has the run's functions."""
    weight: Annotated[float, AtLeast(0)] = 1.0
    """Its weight in the sum of the objectives."""
    num_prompts: Annotated[int | None, AtLeast(0)] = None
    """Its prompts a step; 0 for an objective that only scores the completions of the others."""
    beta: Annotated[float | None, AtLeast(0)] = None
    """Weight of the KL penalty on its prompts."""
    kl_low: Annotated[float | None, Between(0)] = None
    """Lower end of the band in which `adaptive_beta` keeps the KL on its prompts, nats per token."""
    kl_high: Annotated[float | None, Between(0)] = None
    """Upper end of that band."""
    sampling: FrozenDict = field(default_factory=lambda: FrozenDict({}))
    """Settings of `sampling` that differ for its prompts."""

    def __post_init__(self) -> None:
        """Raise ConfigError for a name that no metric could have, half a band, and an unknown setting of sampling."""
        super().__post_init__()
        if not re.fullmatch(r"[\w-]+", self.name, re.ASCII):
            raise ConfigError(f"name = {self.name!r}: use letters, digits, - and _")
        if taken := METRICS.keys() & {of_objective(metric, self.name) for metric in METRICS}:
            raise ConfigError(f"name = {self.name!r}: {min(taken)} is a metric of the run already; choose another name")
        low, high = self.kl_low, self.kl_high
        if (low is None) != (high is None) or (low is not None and high is not None and not low < high):
            raise ConfigError(f"kl_low = {low}, kl_high = {high}: give both, the lower one first, or none")
        for name in self.sampling:
            if name not in settings_of(SamplingConfig):
                raise ConfigError(f"sampling: {unknown('setting', name, settings_of(SamplingConfig))}")
        build(SamplingConfig, self.sampling, "sampling")

    def settings(self) -> dict[str, Any]:
        """The settings that were given, as a table of TOML holds them."""
        values = {name: getattr(self, name) for name in settings_of(ObjectiveConfig)}
        given = {name: value for name, value in values.items() if value is not None}
        return given | {name: list(value) for name, value in given.items() if isinstance(value, tuple)}


@dataclass(frozen=True)
class JudgeConfig(Settings):
    """How slow or remote reward functions are called."""

    workers: Annotated[int, AtLeast(0)] = 0
    """Calls of reward functions that run at once, one completion each; 0 calls a function with the whole list.
    Built-in functions that answer at once are never put into the pool."""
    timeout_s: Annotated[float, Between(0)] = 30.0
    """Seconds after which a call in the pool has failed."""
    retries: Annotated[int, AtLeast(0)] = 2
    """Times that a failed call is made again."""
    backoff: Annotated[float, AtLeast(0)] = 0.5
    """Seconds before the first retry, doubled before each further one; a server's Retry-After may make it longer."""
    max_failed: Annotated[float, AtLeast(0, 1)] = 0.5
    """Largest share of a step's calls that may fail; above it the step is refused."""


@dataclass(frozen=True)
class LoraConfig(Settings):
    """LoRA (https://arxiv.org/abs/2106.09685): small matrices beside frozen weights are trained in their place."""

    r: Annotated[int, AtLeast(0)] = 0
    """Rank of the adapters; 0 trains all weights."""
    alpha: Annotated[float, Between(0)] = 16.0
    """The product of an adapter's matrices is multiplied by alpha / r."""
    dropout: Annotated[float, AtLeast(0, 0.99)] = 0.0
    """Dropout before the adapters. Every pass of GRPO is made without dropout: there it changes nothing."""
    target_modules: tuple[str, ...] = ()
    """Names of the linear layers that get adapters, as `c_attn` or `h.0.attn.c_attn`; empty: all but the head."""
    modules_to_save: tuple[str, ...] = ()
    """Names of norms that are trained too, and saved with the adapters, as `ln_1` or `h.0.ln_1`."""
    reference: Annotated[str, OneOf("adapters_off", "adapters_on")] = "adapters_off"
    """The reference model: adapters as they were before training, which is without any effect if they are new. With
    `adapters_on`, a mistake, the reference is the policy itself."""
    save_merged: bool = False
    """Where the final model is saved, also save it with the adapters added to its weights, in `model-merged`."""

    def __post_init__(self) -> None:
        """Raise ConfigError for what needs adapters where there are none."""
        super().__post_init__()
        for name, value in (
            ("target_modules", self.target_modules),
            ("modules_to_save", self.modules_to_save),
            ("reference", self.reference.replace("adapters_off", "")),
        ):
            if value and not self.r:
                raise ConfigError(f"{name} = {value!r} needs adapters: set lora.r to 1 or more")


@dataclass(frozen=True)
class SftConfig(Settings):
    """Supervised fine-tuning on completions that are given: the stage `sft` of `run.stages`."""

    data: str = ""
    """A JSON-lines file with a `prompt` and a `completion` on every line, or the built-in `dual` or
    `reviews_and_capitals`; needed where `run.stages` has `sft`."""
    num_steps: Annotated[int, AtLeast(1)] = 100
    """Steps of SFT to attempt, with one update each."""
    learning_rate: Annotated[float, AtLeast(0)] = 1e-4
    """Peak learning rate of SFT; the schedule and all else of AdamW are those of `optimizer`."""
    batch_size: Annotated[int, AtLeast(1)] = 32
    """Rows of the file a step."""
    max_length: Annotated[int, AtLeast(2)] = 512
    """Tokens that a row may have at most, prompt, completion and end token; a longer one is an error, never cut."""
