"""The first break of a run: the first link of the chain that was not finite, read from its events alone."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from grpo_lab.core.hooks import Stage, Verdict
from grpo_lab.events import Ended, Event, LinkNote, Stepped
from grpo_lab.messages import label, text, translated
from grpo_lab.metrics import LINKS
from grpo_lab.paths import data_tables, rows

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
    rule: str = ""
    """The key of operator and explanation in data/first_breaks.toml, or "" for a crash without a broken link."""

    def __str__(self) -> str:
        operator, why = self.in_words()
        if self.step < 0:
            return text("break.unrecorded", operator=operator, where=self.where, why=why)
        share = text("break.share", share=f"{self.share:.1%}") if self.share < 1 else text("break.whole")
        place = text("break.place", where=self.where) if self.where else ""
        caught = text("break.caught", guard=self.caught_by) if self.caught_by else ""
        link = label(LINKS[self.link].label) if self.link in LINKS else self.link
        at = {"step": self.step, "update": self.update, "link": link, "share": share, "place": place}
        return text("break.said", **at, operator=operator, why=why, caught=caught)

    def in_words(self) -> tuple[str, str]:
        """Operator and explanation in the user's language."""
        if not self.rule:
            return self.operator, translated(f"crash.{self.link}", self.explanation)
        named = f"break.{self.rule}"
        return translated(f"{named}.operator", self.operator), translated(f"{named}.explanation", self.explanation)


Notes = dict[str, LinkNote]


class _Named(NamedTuple):
    operator: str
    explanation: str


_TEXTS = rows(_Named, data_tables("first_breaks"))


class _Rule(NamedTuple):
    """If `link` broke and `holds` is true of its note and the notes before it, the operator of `key` broke it."""

    key: str
    link: str
    holds: Callable[[LinkNote, Notes], bool]


def _finite(notes: Notes, link: str) -> bool:
    return link in notes and not notes[link].broken


def _rounds_to_zero(seen: Notes) -> bool:
    """Whether adam_eps is 0 in the dtype of the weights."""
    return "moments" in seen and seen["moments"].facts.get("adam_eps_in_weights_dtype", 1.0) == 0.0


def _too_large_for_fp16(gradients: LinkNote, seen: Notes, *links: str) -> bool:
    """Whether fp16 gradients broke after a finite loss, with these links finite but out of their usual range."""
    is_fp16 = gradients.facts.get("largest_representable", math.inf) < 1e5
    finite = all(_finite(seen, link) for link in ("loss", "log_ratio_gradient", *links))
    return is_fp16 and finite and all(seen[link].magnitude > LINKS[link].warning for link in links)


_RULES = (
    _Rule(
        "backward-of-ratio",
        "log_ratio_gradient",
        lambda note, seen: "ratio" in seen and seen["ratio"].broken and _finite(seen, "loss"),
    ),
    _Rule("ratio", "ratio", lambda note, seen: _finite(seen, "log_ratio")),
    _Rule("kl-estimate", "loss", lambda note, seen: _finite(seen, "kl_delta") and seen["kl_delta"].magnitude > 11),
    _Rule("adamw-zero-over-zero", "weights", lambda note, seen: _finite(seen, "gradients") and _rounds_to_zero(seen)),
    _Rule("adamw", "weights", lambda note, seen: _finite(seen, "gradients")),
    _Rule(
        "float16-from-ratio",
        "gradients",
        lambda note, seen: _too_large_for_fp16(note, seen, "log_ratio_gradient"),
    ),
    _Rule("float16-from-kl", "gradients", lambda note, seen: _too_large_for_fp16(note, seen, "kl_delta", "loss")),
    _Rule(
        "gradient",
        "gradients",
        lambda note, seen: _finite(seen, "loss") and _finite(seen, "log_ratio_gradient"),
    ),
    *(
        _Rule("filtered-token", link, lambda note, seen: "logits" in seen and note.magnitude == math.inf)
        for link in _LOGPROBS
    ),
    _Rule("deviation-of-group", "advantages", lambda note, seen: _finite(seen, "rewards")),
    _Rule("reward-function", "rewards", lambda note, seen: True),
)
"""The first rule that holds counts; without one, the key is `unknown`."""


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
    key = next((rule.key for rule in _RULES if rule.link == note.link and rule.holds(note, seen)), "unknown")
    share = note.nonfinite / max(1, note.numel)
    return ChainBreak(
        note.link, event.step, note.update, *_TEXTS[key], note.where, share, _caught_by(event, note), rule=key
    )


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
