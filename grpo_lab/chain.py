"""Which link of the chain broke first, read from what a run recorded, never from the name of its scenario."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from grpo_lab.events import Crash, Ended, Event, LinkNote, Stepped
from grpo_lab.interventions import Verdict


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


@dataclass(frozen=True)
class ChainBreak:
    """The first link that was not finite and was not absorbed by what follows it."""

    link: str
    step: int
    update: int
    operator: str
    explanation: str
    where: str
    share: float
    """Share of the link's elements that were not finite."""
    caught_by: str
    """The guard that refused the step, or nothing."""

    def __str__(self) -> str:
        share = f"{self.share:.1%} of its elements" if self.share < 1 else "all of its elements"
        place = f" (first at {self.where})" if self.where else ""
        caught = f" Caught by {self.caught_by}." if self.caught_by else ""
        label = LINKS[self.link].label if self.link in LINKS else self.link
        return (
            f"step {self.step}, update {self.update}: {label} not finite, {share}{place}. "
            f"Operator: {self.operator}. {self.explanation}{caught}"
        )


Notes = dict[str, LinkNote]


class _Rule(NamedTuple):
    """If `link` broke while `holds` (given what was noted before it), then `operator` did it."""

    link: str
    holds: Callable[[LinkNote, Notes], bool]
    operator: str
    explanation: str


def _finite(notes: Notes, link: str) -> bool:
    return link in notes and not notes[link].broken


_RULES = (
    _Rule(
        "log_ratio_gradient",
        lambda note, seen: "ratio" in seen and seen["ratio"].broken and _finite(seen, "loss"),
        "0 * inf in the backward of exp (the ratio)",
        "exp(log_ratio) overflowed to inf; min and clamp chose the other branch, so the loss stayed finite, and the "
        "branch not chosen passed back 0 * inf = NaN. Clamp the log-ratio before exp.",
    ),
    _Rule(
        "loss",
        lambda note, seen: _finite(seen, "log_ratio") and "ratio" in seen and seen["ratio"].broken,
        "exp (the ratio)",
        "exp(log_ratio) overflowed where the advantage is negative: min leaves that side unbounded.",
    ),
    _Rule(
        "loss",
        lambda note, seen: _finite(seen, "kl_delta") and seen["kl_delta"].magnitude > 11,
        "exp (the KL estimate)",
        "exp(ref_logprobs - logprobs) overflowed. Clamp the difference before exp.",
    ),
    _Rule(
        "weights",
        lambda note, seen: _finite(seen, "gradients")
        and "moments" in seen
        and seen["moments"].facts.get("adam_eps_in_weights_dtype", 1.0) == 0.0,
        "0 / 0 in AdamW",
        "The gradients were finite, but adam_eps rounds to 0 in the dtype of the weights and the squares of small "
        "gradients underflow: m / (sqrt(v) + eps) divides by 0.",
    ),
    _Rule(
        "weights",
        lambda note, seen: _finite(seen, "gradients"),
        "AdamW's update",
        "The gradients were finite; the update itself overflowed the dtype of the weights.",
    ),
    _Rule(
        "gradients",
        lambda note, seen: _finite(seen, "loss") and _finite(seen, "log_ratio_gradient"),
        "the gradient of a weight",
        "Loss and gradient at the log-ratio were finite; the NaN came in between them and the weights.",
    ),
    _Rule(
        "log_ratio",
        lambda note, seen: _finite(seen, "logits"),
        "-inf - (-inf) in the log-ratio",
        "A token had probability 0 in both passes: the difference of two -inf is NaN.",
    ),
    _Rule(
        "advantages",
        lambda note, seen: _finite(seen, "rewards"),
        "the standard deviation of a group",
        "The rewards were finite; the spread of a group was not defined.",
    ),
    _Rule("rewards", lambda note, seen: True, "a reward function", "It returned NaN or inf."),
)
_ELSE = ("the operator before it", "No rule tells more from what was recorded.")


def first_break(events: Iterable[Event]) -> ChainBreak | None:
    """The first broken link of a run with its step and operator, or None if every value was finite.

    An infinite ratio that leaves the loss of its update finite is absorbed there; what it does in backward is not.
    """
    for event in events:
        if isinstance(event, Stepped):
            seen: Notes = {}
            for note in event.links:
                if note.broken and not absorbed(note, event.links):
                    return _explain(event, note, seen)
                seen[note.link] = note
        elif isinstance(event, Ended) and event.crash:
            return ChainBreak(
                event.crash.kind, -1, 0, event.crash.operator, event.crash.explanation, event.crash.text, 1.0, ""
            )
    return None


def absorbed(note: LinkNote, links: Sequence[LinkNote]) -> bool:
    """Whether a broken ratio left the loss of the same update finite."""
    if note.link != "ratio":
        return False
    losses = [other for other in links if other.link == "loss" and other.update == note.update]
    return bool(losses) and not any(loss.broken for loss in losses)


def _explain(event: Stepped, note: LinkNote, seen: Notes) -> ChainBreak:
    rules = (rule for rule in _RULES if rule.link == note.link and rule.holds(note, seen))
    rule = next(rules, None)
    operator, explanation = (rule.operator, rule.explanation) if rule else _ELSE
    refused = [a.name for a in event.actions if a.kind == "guard" and Verdict[a.verdict] >= Verdict.SKIP_STEP]
    caught_by = refused[0] if refused else ""
    share = note.nonfinite / max(1, note.numel)
    return ChainBreak(note.link, event.step, note.update, operator, explanation, note.where, share, caught_by)


def statuses(events: Iterable[Event]) -> dict[int, dict[str, str]]:
    """For each step and link: `healthy`, `warning` (large, or absorbed) or `broken`; the worst of the step's notes."""
    order = {"healthy": 0, "warning": 1, "broken": 2}
    table: dict[int, dict[str, str]] = {}
    for event in events:
        if not isinstance(event, Stepped):
            continue
        row = table.setdefault(event.step, {})
        for note in event.links:
            status = _status(note, event.links)
            if order[status] >= order[row.get(note.link, "healthy")]:
                row[note.link] = status
    return table


def _status(note: LinkNote, links: Sequence[LinkNote]) -> str:
    if note.broken:
        return "warning" if absorbed(note, links) else "broken"
    return "warning" if note.magnitude > LINKS[note.link].warning else "healthy"


def summary(events: Sequence[Event]) -> str:
    """The strip in words: what warned first, what broke first, and how the run ended."""
    lines = []
    for step, row in statuses(events).items():
        warned = [LINKS[link].label for link, status in row.items() if status == "warning"]
        if warned:
            lines.append(f"first warning: step {step}, {', '.join(warned)} out of the usual range")
            break
    found = first_break(events)
    lines.append(f"first break: {found}" if found else "first break: none; every value of every link was finite")
    ended = next((event for event in reversed(events) if isinstance(event, Ended)), None)
    if ended is None:
        lines.append("end: none recorded; the run is going on, or was cut off")
    else:
        lines.append(f"end: {ended.status}" + (f", {ended.message}" if ended.message else ""))
        if ended.crash:
            lines.append(f"crash: {ended.crash.operator}: {ended.crash.text}\n{ended.crash.explanation}")
    return "\n".join(lines)


_MULTINOMIAL = "torch.multinomial"
_NOT_FINITE = (
    "torch.multinomial checks that every probability is finite and not negative. The one-element result of that check "
    "is what is asserted"
)
_CRASHES: tuple[tuple[str, str, str, str], ...] = (
    (
        r"Assertion `probability tensor contains either",
        "multinomial-cuda-linux",
        _MULTINOMIAL,
        f"{_NOT_FINITE}, on CUDA under Linux with this text. The process has lost its CUDA context.",
    ),
    (
        r"TensorCompare\.cu.*|Assertion `?input\[0\] != 0`? failed",
        "multinomial-cuda-windows",
        _MULTINOMIAL,
        f"{_NOT_FINITE} as `input[0] != 0`, which does not mean that the first probability must not be 0. "
        "The process has lost its CUDA context.",
    ),
    (
        r"probability tensor contains either",
        "multinomial-cpu",
        _MULTINOMIAL,
        f"{_NOT_FINITE}; on the CPU it raises.",
    ),
    (
        r"invalid multinomial distribution",
        "multinomial-zero-sum",
        _MULTINOMIAL,
        "A row of probabilities sums to 0. softmax never makes one: something set probabilities to 0 after it.",
    ),
    (
        r"device-side assert triggered",
        "cuda-assert",
        "an unknown CUDA kernel",
        "A kernel's assertion failed; the process has lost its CUDA context. CUDA_LAUNCH_BLOCKING=1 names the call.",
    ),
    (r"out of memory|OutOfMemory|MemoryError", "out-of-memory", "an allocation", "Fewer prompts or a smaller model."),
)


def classify_crash(text: str) -> Crash:
    """What a crash text means: the CPU's, CUDA's on Linux and on Windows, and a few others.

    >>> classify_crash("TensorCompare.cu:110: block: [0,0,0] Assertion `input[0] != 0` failed.").operator
    'torch.multinomial'
    >>> classify_crash("probability tensor contains either `inf`, `nan` or element < 0").kind
    'multinomial-cpu'
    """
    for pattern, kind, operator, explanation in _CRASHES:
        if re.search(pattern, text):
            line = next((line for line in text.splitlines() if re.search(pattern, line)), text)
            return Crash(kind, operator, line.strip(), explanation)
    last = text.strip().splitlines()[-1] if text.strip() else "no text"
    return Crash("unknown", "unknown", last, "Not a crash known here; the whole text is in the run folder.")
