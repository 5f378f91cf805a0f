"""The sections of a config: each setting with its type, its limit, its default and its help text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from grpo_lab.config.fields import AtLeast, Between, OneOf, Settings, build
from grpo_lab.errors import ConfigError
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
    sampler_weights: Annotated[str, OneOf("current", "start")] = "current"
    """Weights that completions are sampled from: the policy's `current` ones, or, a mistake, those of the `start` of
    GRPO, as in an inference engine that no update reaches. The trainer then computes old log-probabilities itself."""
    routing: Annotated[str, OneOf("own", "replay")] = "own"
    """Experts of a mixture of experts while training: the router's `own` choice, or a `replay` of that in sampling."""


@dataclass(frozen=True)
class DataConfig(Settings):
    """Prompts, rewards and the shape of a batch."""

    tasks: str = "addition"
    """A built-in task, as `addition`, `reviews` or `capitals`, or a JSON-lines file with a `prompt` on every line."""
    train_max_samples: Annotated[int, AtLeast(0)] = 0
    """Training problems that are kept of each task; 0 for all. Held-out problems stay."""
    rewards: tuple[str, ...] = ("exact_match",)
    """Reward functions, summed: built-in names or `file.py:name`, with TRL's signature."""
    reward_weights: tuple[float, ...] = ()
    """The weight of each reward function in the sum, in their order; empty for 1 each."""
    tool: str = ""
    """A tool that writes between two turns of the policy: `adding_machine`, or `file.py:name`: (prompt, call,
    **columns) -> text; empty for completions of one turn."""
    call_length: Annotated[int, AtLeast(1)] = 1
    """Tokens of the turn before the tool's output at most."""
    train_on: Annotated[str, OneOf("tokens", "text")] = "tokens"
    """With a tool: the sampled `tokens`, or, a mistake, each turn's `text` and an end token, tokenised again."""
    num_prompts: Annotated[int, AtLeast(1)] = 16
    """Prompts (groups) a step."""
    num_generations: Annotated[int, AtLeast(1)] = 8
    """Completions sampled for each prompt: the size of a group."""
    micro_batch_prompts: Annotated[int, AtLeast(0)] = 0
    """Prompts a forward-backward pass; gradients accumulate over the batch. 0: as many as have 4,096 tokens."""
    allow_single_generation: bool = False
    """Permit groups of one completion, which have nothing to be compared with; for scenarios that show the failure."""

    def __post_init__(self) -> None:
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
class LossConfig(Settings):
    """The GRPO objective (DeepSeekMath, eq. 3), with the places where algorithms and implementations differ."""

    epsilon: Annotated[float, Between(0, 1)] = 0.2
    """The ratio is clipped below at 1 - epsilon."""
    epsilon_high: Annotated[float | None, Between(0)] = None
    """The ratio is clipped above at 1 + epsilon_high; none uses epsilon. TRL's epsilon_high for CISPO is 1 more."""
    beta: Annotated[float, AtLeast(0)] = 0.02
    """Weight of the KL penalty; 0 loads no reference model."""
    kl_estimator: str = "k3"
    """`k1`, `k2`, `k3`, `hinge`, a named wrong formula, or `file.py:name`: (delta) -> penalty, both (b, T)."""
    log_ratio: str = "old"
    """The policy that the current one is compared with: `old` (the one that sampled), a named wrong formula, or
    `file.py:name`: (logprobs, batch) -> log-ratio (b, T)."""
    importance_sampling_level: str = "token"
    """Unit of the ratio: each `token`; the completion, exp of its mean log-ratio (`sequence`: GSPO) or of its sum
    (`sequence_sum`: RLOO); `sequence_token`, the value of `sequence` with the gradient of each token; or
    `file.py:name`: (log_ratio (b, T), mask (b, T)) -> log-weights (b, T)."""
    surrogate: str = "clip"
    """The loss of a token by its ratio: `clip` (PPO), `cispo` (a clipped weight without gradient, times the
    log-probability), `sapo` (a soft gate), `unclipped`, `reinforce` (no ratio), or `file.py:name`:
    (log_weights (b, T), logprobs (b, T), advantages (b,), limits) -> losses (b, T)."""
    sapo_temperature_pos: Annotated[float, Between(0)] = 1.0
    """Of `sapo`: how fast its gate closes around ratio 1 where the advantage is above 0."""
    sapo_temperature_neg: Annotated[float, Between(0)] = 1.05
    """Of `sapo`: the same where the advantage is not above 0."""
    importance_sampling_mode: str = "none"
    """A weight for the gap between sampler and trainer, policy before the updates / sampler, on each token's loss:
    `none`; `token_truncate` or `sequence_truncate`, bounded by the two settings below; `token_mask` or `sequence_mask`,
    0 beyond them; or `file.py:name`: (losses (b, T), batch, clip_min, clip_max) -> losses (b, T)."""
    importance_sampling_clip_max: Annotated[float | None, Between(0)] = 3.0
    """Upper bound of that weight; none for no bound."""
    importance_sampling_clip_min: Annotated[float | None, AtLeast(0)] = None
    """Lower bound of that weight; none for no bound."""
    aggregation: Annotated[str, OneOf("token", "sequence", "constant", "sum", "micro_batch")] = "token"
    """Mean over tokens, mean over completions of their means, the sum divided by the number of completions times
    `sampling.max_completion_length`, or the mean over completions of their sums. A wrong way, `micro_batch`, takes the
    mean over the tokens of each micro-batch, and of those means: 0 / 0 where the mask leaves none."""
    advantage_scale: str = "group"
    """How rewards become advantages: minus the mean of the group, divided by the standard deviation of the `group`, of
    the `batch`, or by nothing (`none`); minus the mean of the group's others (`leave_one_out`); minus the mean of the
    batch, divided by its standard deviation (`global`); as they are (`reward`); a named wrong formula, or
    `file.py:name`: (rewards (P, G), scorable=...) -> advantages (P, G)."""
    credit_assignment: str = "completion"
    """How the advantage of a completion becomes those of its tokens: `completion` (the same for all), `reward_to_go`
    (REINFORCE++), which begins with advantage_scale=reward and compares tokens of the whole batch, or `file.py:name`:
    (batch, gamma) -> batch."""
    gamma: Annotated[float, AtLeast(0, 1)] = 1.0
    """Of `reward_to_go`: the discount of a reward that comes one token later."""
    kl_place: Annotated[str, OneOf("loss", "reward", "subtracted")] = "loss"
    """Where the KL penalty is paid: in the `loss`, by kl_estimator, or in the `reward`: beta times k1 of each token.
    `subtracted` is the wrong sign: the loss is lower by what the penalty would add."""
    dynamic_sampling: Annotated[int, AtLeast(0)] = 0
    """Further draws of prompts, at most, in place of groups whose rewards are all equal (DAPO); 0 trains those too."""
    soft_overlong: Annotated[float, AtLeast(0, 1)] = 0.0
    """The last part of max_completion_length in which the reward falls, by 1 at its end (DAPO); 0 for none."""
    top_entropy_quantile: Annotated[float, Between(0, 1)] = 1.0
    """The share of tokens that are trained, those with the highest entropy when they were sampled; 1 trains all."""
    entropy_coef: Annotated[float, AtLeast(0)] = 0.0
    """Weight of the entropy, a mean over tokens in nats, that is subtracted from the loss; 0 for no bonus."""
    completion_mask: str = "position"
    """The tokens that are trained: `position` (up to the end token), `not_truncated` (the same, but none of a
    completion that was cut off), a named wrong mask, or `file.py:name`: (batch, pad) -> mask (B, T)."""
    accumulation: str = "add"
    """How gradients of micro-batches add up: `add`, a wrong way by name, or `file.py:name`: (loss, optimizer)."""
    combination: str = "separate"
    """How several objectives are combined: `separate` (the sum of their losses), `alternate` (one a step), `pcgrad`
    (no part of a gradient against another's), `sum_then_normalize` or `normalize_then_sum` (of rewards: every objective
    scores all completions; the second is GDPO), or a named wrong way."""
    num_iterations: Annotated[int, AtLeast(1)] = 1
    """Updates on each batch of completions (the mu of the paper)."""
    step: str = ""
    """Your own step, `file.py:name`: (policy, optimizer, batch, rewards (P, G), beta, num_iterations). It makes updates
    with torch's `backward` and `optimizer.step`, in place of the package's loss. Empty for the package's step."""


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
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """Settings of `sampling` that differ for its prompts."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not re.fullmatch(r"[\w-]+", self.name, re.ASCII):
            raise ConfigError(f"name = {self.name!r}: use letters, digits, - and _")
        if taken := METRICS.keys() & {of_objective(metric, self.name) for metric in METRICS}:
            raise ConfigError(f"name = {self.name!r}: {min(taken)} is a metric of the run already; choose another name")
        low, high = self.kl_low, self.kl_high
        if (low, high) != (None, None) and (low is None or high is None or low >= high):
            raise ConfigError(f"kl_low = {low}, kl_high = {high}: give both, the lower one first, or none")
        build(SamplingConfig, self.sampling, "sampling")


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
        super().__post_init__()
        for name in ("target_modules", "modules_to_save", "reference"):
            value = getattr(self, name)
            if value not in ((), "adapters_off") and not self.r:
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
