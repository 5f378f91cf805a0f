"""What a run says while it goes: events, one JSON line each, and the metrics in them.

NaN and inf are ordinary data here. JSON has neither, so they are written as the strings "nan", "inf" and "-inf", and
every number that may be one is read back with float().

>>> from_json(to_json(Evaluated(step=0, reward=float("nan"), num_problems=500)))
Evaluated(step=0, reward=nan, num_problems=500)
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from sys import intern
from typing import Any, NamedTuple

from grpo_lab.errors import RunError


class Metric(NamedTuple):
    """How one number of a step is shown and judged."""

    label: str
    unit: str
    low: float
    high: float
    meaning: str


_ANY = math.inf
METRICS: dict[str, Metric] = {
    "reward": Metric("reward", "", -_ANY, _ANY, "mean reward of the completions that could be scored"),
    "reward_std": Metric("reward spread", "", -_ANY, _ANY, "mean over groups of the rewards' standard deviation"),
    "frac_reward_zero_std": Metric("groups without spread", "share", 0, 0.9, "groups that teach nothing"),
    "kl": Metric("KL to reference", "nats", -0.01, 1, "mean KL estimate per token, by the estimator in the loss"),
    "kl/exact": Metric(
        "exact KL", "nats", 0, 1, "mean KL(policy || reference) per token over the whole vocabulary (run.exact_kl)"
    ),
    "entropy": Metric("entropy", "nats", 0.01, _ANY, "mean entropy of the next-token distribution while sampling"),
    "grad_norm": Metric("gradient norm", "", 0, 10, "before clipping; the largest of the step's updates"),
    "loss": Metric("loss", "", -10, 10, "the number that was differentiated; mean over the step's updates"),
    "learning_rate": Metric("learning rate", "", 0, _ANY, "as the optimizer used it"),
    "beta": Metric("beta", "", 0, _ANY, "weight of the KL penalty as used"),
    "ratio/max": Metric("largest ratio", "", 0, 5, "exp of the largest log-ratio of a trained token"),
    "log_ratio/max": Metric("largest log-ratio", "nats", 0, 1.6, "largest magnitude over trained tokens"),
    "clip_ratio/low_mean": Metric("clipped low", "share", 0, 0.5, "tokens whose ratio was below the clip range"),
    "clip_ratio/high_mean": Metric("clipped high", "share", 0, 0.5, "tokens whose ratio was above the clip range"),
    "clip_ratio/region_mean": Metric("clipped", "share", 0, 0.5, "tokens outside the clip range on either side"),
    "completions/mean_length": Metric("completion length", "tokens", 1.01, _ANY, "tokens trained per completion"),
    "completions/clipped_ratio": Metric("cut off", "share", 0, 0.5, "completions that reached the length limit"),
    "num_tokens": Metric("tokens", "tokens", 1, _ANY, "tokens trained in this step"),
    "sampling/sampling_logp_difference/mean": Metric(  # a top_p of 0.85 alone explains log(1 / 0.85) = 0.16
        "sampler mismatch", "nats", 0, 0.2, "mean gap between the sampler's log-probability and the trained one"
    ),
    "sampling/sampling_logp_difference/max": Metric(
        "largest sampler mismatch",
        "nats",
        0,
        1,
        "largest gap between the sampler's log-probability and the trained one",
    ),
    "weights/max_move": Metric("largest move", "", 0, 0.1, "largest change of any single weight since the snapshot"),
    "weights/nonfinite": Metric("broken weights", "weights", 0, 0, "weights that are NaN or inf after the step"),
    "loss_scale": Metric("loss scale", "", 1, _ANY, "GradScaler's factor (precision fp16 only)"),
    "step_time": Metric("step time", "s", 0, _ANY, "wall time of the step"),
}


class Link(NamedTuple):
    """How one link is shown: its label, and the magnitude above which it is a warning."""

    label: str
    warning: float


LINKS: dict[str, Link] = {
    "probabilities": Link("sampling probabilities", 1.01),
    "rewards": Link("rewards", 1e3),
    "advantages": Link("advantages", 10),
    "logits": Link("logits", 1e3),
    "old_logprobs": Link("old logprobs", 30),
    "ref_logprobs": Link("reference logprobs", 30),
    "logprobs": Link("logprobs", 30),
    "log_ratio": Link("log-ratio", 5),
    "ratio": Link("ratio", 150),
    "kl_delta": Link("reference - policy", 10),
    "loss": Link("loss", 10),
    "log_ratio_gradient": Link("gradient at log-ratio", 10),
    "gradients": Link("gradients", 10),
    "clipped_gradients": Link("clipped gradients", 10),
    "moments": Link("optimizer moments", 1e4),
    "weights": Link("weights", 1e4),
}
"""The chain in order; torch.multinomial, its end, shows as a crash."""


@dataclass(frozen=True, slots=True)
class LinkNote:
    """One link of the chain, once: how large, how much of it is not finite, and where its worst element is."""

    link: str
    update: int
    magnitude: float
    nonfinite: float
    numel: int
    where: str = ""
    facts: dict[str, float] = field(default_factory=dict)

    @property
    def broken(self) -> bool:
        return self.nonfinite > 0

    @staticmethod
    def read(tree: dict[str, Any]) -> LinkNote:
        numbers = {"magnitude": float(tree["magnitude"]), "nonfinite": float(tree["nonfinite"])}
        words = {"link": intern(tree["link"]), "where": intern(tree["where"])}
        return LinkNote(**{**tree, **numbers, **words, "facts": _floats(tree["facts"])})


@dataclass(frozen=True, slots=True)
class Action:
    """What one guard or fault did: where, how severe, and its reason with the number and the limit."""

    name: str
    kind: str
    stage: str
    update: int
    verdict: str
    reason: str


@dataclass(frozen=True, slots=True)
class Started:
    """A run begins."""

    config: dict[str, Any]
    num_parameters: int
    device: str


@dataclass(frozen=True, slots=True)
class Changed:
    """Settings of a running model were changed at the top of `step`."""

    step: int
    overrides: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Stepped:
    """One step, whole or cut short: by a guard (`verdict`) or by an error (`failed`)."""

    step: int
    updates: int
    verdict: str
    metrics: dict[str, float]
    links: tuple[LinkNote, ...]
    actions: tuple[Action, ...]
    samples: tuple[tuple[str, str, float], ...] = ()
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Evaluated:
    """Mean reward of held-out problems, sampled once each at temperature 1, before `step`."""

    step: int
    reward: float
    num_problems: int


@dataclass(frozen=True, slots=True)
class Crash:
    """An error that ended a run, classified."""

    kind: str
    operator: str
    text: str
    explanation: str


@dataclass(frozen=True, slots=True)
class Ended:
    """A run is over: `done`, `stopped` (by a guard or the user) or `crashed`."""

    status: str
    message: str = ""
    crash: Crash | None = None


Event = Started | Changed | Stepped | Evaluated | Ended
EVENTS: dict[str, type] = {cls.__name__: cls for cls in (Started, Changed, Stepped, Evaluated, Ended)}


def to_json(event: Event) -> str:
    """The event as one line of valid JSON, in ASCII: whatever a model sampled, U+2028 too, ends no line."""
    tree = {"event": type(event).__name__, **dataclasses.asdict(event)}
    return json.dumps(encodable(tree), allow_nan=False)


def from_json(line: str) -> Event:
    """The event a line holds.

    Raises RunError when it holds none: a half-written line, or the line of a newer version.
    """
    try:
        tree = json.loads(line)
        kind = tree.pop("event")
        return EVENTS[kind](**_READERS.get(kind, dict)(tree))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(f"not an event: {line[:60]!r} ({type(error).__name__}: {error})") from error


def encodable(value: Any) -> Any:
    """The same value with NaN and inf as strings, for JSON."""
    if isinstance(value, dict):
        return {str(k): encodable(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [encodable(v) for v in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


_NONE: dict[str, float] = {}


def _floats(tree: dict[str, Any]) -> dict[str, float]:
    """Numbers by name. A long run holds millions: names are kept once, and so is the table without any."""
    return {intern(name): float(value) for name, value in tree.items()} if tree else _NONE


def _samples(rows: Iterable[Any]) -> tuple[tuple[str, str, float], ...]:
    return tuple((prompt, completion, float(reward)) for prompt, completion, reward in rows)


_READERS = {
    "Changed": lambda t: {**t, "overrides": tuple(t["overrides"])},
    "Stepped": lambda t: {
        **t,
        "metrics": _floats(t["metrics"]),
        "links": tuple(LinkNote.read(note) for note in t["links"]),
        "actions": tuple(Action(**action) for action in t["actions"]),
        "samples": _samples(t["samples"]),
    },
    "Evaluated": lambda t: {**t, "reward": float(t["reward"])},
    "Ended": lambda t: {**t, "crash": Crash(**t["crash"]) if t["crash"] else None},
}
