"""The first break of a run: the first link of the chain that was not finite, read from its events alone."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from grpo_lab.events import Ended, Event, LinkNote, Stage, Stepped, Verdict
from grpo_lab.metrics import LINKS

_FIRST_AFTER_BATCH = list(LINKS).index("logprobs")
_LOGPROBS = ("old_logprobs", "ref_logprobs", "logprobs")
_PLACES = [*list(LINKS)[:_FIRST_AFTER_BATCH], Stage.BATCH, *list(LINKS)[_FIRST_AFTER_BATCH:]]
"""Links, and the stage BATCH between them, in the order of a step."""


@dataclass(frozen=True)
class ChainBreak:
    """The first link that was not finite and was not absorbed by the links after it."""

    link: str
    step: int
    update: int
    operator: str
    explanation: str
    where: str
    share: float
    """Share of the link's elements that were not finite."""
    caught_by: str
    """The guard that kept it out of the loss or refused the step, or ""."""

    def __str__(self) -> str:
        if self.step < 0:
            return f"no broken link was recorded before the crash in {self.operator}: {self.where}\n{self.explanation}"
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
    """If `link` broke and `holds` is true of its note and the notes before it, `operator` broke it."""

    link: str
    holds: Callable[[LinkNote, Notes], bool]
    operator: str
    explanation: str


def _finite(notes: Notes, link: str) -> bool:
    return link in notes and not notes[link].broken


def _too_large_for_fp16(gradients: LinkNote, seen: Notes, *links: str) -> bool:
    """Whether fp16 gradients broke after a finite loss, with these links finite but out of their usual range."""
    is_fp16 = gradients.facts.get("largest_representable", math.inf) < 1e5
    finite = all(_finite(seen, link) for link in ("loss", "log_ratio_gradient", *links))
    return is_fp16 and finite and all(seen[link].magnitude > LINKS[link].warning for link in links)


_RULES = (
    _Rule(
        "log_ratio_gradient",
        lambda note, seen: "ratio" in seen and seen["ratio"].broken and _finite(seen, "loss"),
        "0 * inf in the backward of exp (the ratio)",
        "exp(log_ratio) overflowed to inf; min and clamp chose the other branch, so the loss stayed finite, and the "
        "branch not chosen passed back 0 * inf = NaN. Clamp the log-ratio before exp.",
    ),
    _Rule(
        "ratio",
        lambda note, seen: _finite(seen, "log_ratio"),
        "exp (the ratio)",
        "exp(log_ratio) overflowed, and so did the loss: min leaves that side unbounded where the advantage is "
        "negative. Clamp the log-ratio before exp.",
    ),
    _Rule(
        "loss",
        lambda note, seen: _finite(seen, "kl_delta") and seen["kl_delta"].magnitude > 11,
        "exp (the KL estimate)",
        "exp(ref_logprobs - logprobs) overflowed. Clamp the difference before exp.",
    ),
    _Rule(
        "weights",
        lambda note, seen: (
            _finite(seen, "gradients")
            and "moments" in seen
            and seen["moments"].facts.get("adam_eps_in_weights_dtype", 1.0) == 0.0
        ),
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
        lambda note, seen: _too_large_for_fp16(note, seen, "log_ratio_gradient"),
        "backward overflowed float16 (from the ratio)",
        "The loss was finite, and so was the gradient at the log-ratio. But that is ratio * advantage, with ratio = "
        "exp(log_ratio): one token far from the compared policy makes it so large that on its way to the weights "
        "it passed 65504, the largest number of float16. Clamp the log-ratio before exp.",
    ),
    _Rule(
        "gradients",
        lambda note, seen: _too_large_for_fp16(note, seen, "kl_delta", "loss"),
        "backward overflowed float16 (from the KL estimate)",
        "The loss was large and finite, but the gradient of its KL estimate grows like exp(ref_logprobs - logprobs): "
        "one token that became far less likely than under the reference makes it so large that on its way to the "
        "weights it passed 65504, the largest number of float16. Clamp the difference before exp.",
    ),
    _Rule(
        "gradients",
        lambda note, seen: _finite(seen, "loss") and _finite(seen, "log_ratio_gradient"),
        "the gradient of a weight",
        "Loss and gradient at the log-ratio were finite: NaN or inf came in later in backward, by an overflow inside "
        "the model or by one number that was set so. The recorded values do not decide between the two.",
    ),
    *(
        _Rule(
            link,
            lambda note, seen: "logits" in seen and note.magnitude == math.inf,
            "log of a probability of 0",
            "No logit was NaN, yet a token has log-probability -inf: it was filtered out of the distribution. "
            "In the log-ratio -inf - (-inf) = NaN follows.",
        )
        for link in _LOGPROBS
    ),
    _Rule(
        "advantages",
        lambda note, seen: _finite(seen, "rewards"),
        "the standard deviation of a group",
        "The rewards were finite; the spread of a group was not defined.",
    ),
    _Rule("rewards", lambda note, seen: True, "a reward function", "It returned NaN or inf."),
)
_ELSE = ("the operator before it", "The recorded values do not identify the operator.")


def first_break(events: Iterable[Event]) -> ChainBreak | None:
    """The first broken link of a run with its step and operator, or None if every value was finite.

    An infinite ratio that leaves the loss of its update finite is absorbed; a gradient that it breaks is not.
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
    """Whether a broken ratio left the loss of the same update finite, or broken logits only filtered tokens out."""
    if note.link == "logits":
        return _only_filters(note, links)
    if note.link != "ratio":
        return False
    losses = [other for other in links if other.link == "loss" and other.update == note.update]
    return bool(losses) and not any(loss.broken for loss in losses)


def _only_filters(logits: LinkNote, links: Sequence[LinkNote]) -> bool:
    """Whether the log-probabilities after the logits hold no NaN: a filter sets -inf; NaN and +inf would make NaN."""
    after = links[links.index(logits) + 1 :]
    followed = next((note for note in after if note.link in _LOGPROBS), None)
    return logits.magnitude == math.inf and followed is not None and not math.isnan(followed.magnitude)


def _explain(event: Stepped, note: LinkNote, seen: Notes) -> ChainBreak:
    rules = (rule for rule in _RULES if rule.link == note.link and rule.holds(note, seen))
    rule = next(rules, None)
    operator, explanation = (rule.operator, rule.explanation) if rule else _ELSE
    share = note.nonfinite / max(1, note.numel)
    caught_by = _caught_by(event, note)
    return ChainBreak(note.link, event.step, note.update, operator, explanation, note.where, share, caught_by)


def _caught_by(event: Stepped, note: LinkNote) -> str:
    """The guard that changed the value between the broken link and a finite loss, or that refused the step."""
    guards = [action for action in event.actions if action.kind in ("guard", "trainer")]
    losses = [other.broken for other in event.links if other.link == "loss" and other.update >= note.update]
    after = _PLACES[_PLACES.index(note.link) + 1 : _PLACES.index("loss") + 1] if losses and not any(losses) else []
    mended = [a.name for a in guards if a.stage in after and a.verdict >= Verdict.CHANGED]
    # Each action of the trainer itself leaves something out.
    refused = [a.name for a in guards if a.verdict >= Verdict.SKIP_STEP or a.kind == "trainer"]
    return next(iter(mended + refused), "")


def statuses(events: Iterable[Event]) -> dict[int, dict[str, str]]:
    """The status of each link in each step: `healthy`, `warning` (large, or absorbed) or `broken`; the worst counts."""
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
