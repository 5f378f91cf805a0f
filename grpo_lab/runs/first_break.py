"""The first break of a run: the first link of the chain that was not finite, read from its events alone."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from grpo_lab.core.hooks import Stage, Verdict
from grpo_lab.events import Ended, Event, LinkNote, Stepped
from grpo_lab.messages import spoken, text
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

    def __str__(self) -> str:
        operator, why = self.in_words()
        if self.step < 0:
            return text("break.unrecorded", operator=operator, where=self.where, why=why)
        share = text("break.share", share=f"{self.share:.1%}") if self.share < 1 else text("break.whole")
        place = text("break.place", where=self.where) if self.where else ""
        caught = text("break.caught", guard=self.caught_by) if self.caught_by else ""
        link = spoken(LINKS[self.link].label) if self.link in LINKS else self.link
        at = {"step": self.step, "update": self.update, "link": link, "share": share, "place": place}
        return text("break.said", **at, operator=operator, why=why, caught=caught)

    def in_words(self) -> tuple[str, str]:
        """Operator and explanation in the user's language."""
        return spoken(self.operator), spoken(self.explanation)


Notes = dict[str, LinkNote]


class _Named(NamedTuple):
    operator: str
    explanation: str


_TEXTS = rows(_Named, data_tables("first_breaks"))


def _cause(note: LinkNote, seen: Notes) -> str:
    """The key in data/first_breaks.toml of what broke a link, by its note and the notes before it."""
    link, key = note.link, "unknown"
    if link == "log_ratio_gradient" and "ratio" in seen and seen["ratio"].broken and _finite(seen, "loss"):
        key = "backward-of-ratio"
    elif link == "ratio" and _finite(seen, "log_ratio"):
        key = "ratio"
    elif link == "loss" and _finite(seen, "kl_delta") and seen["kl_delta"].magnitude > 11:
        key = "kl-estimate"
    elif link == "loss" and math.isnan(note.magnitude) and _finite(seen, "advantages", "log_ratio", "ratio"):
        key = "mean-of-nothing"
    elif link == "weights" and _finite(seen, "gradients"):
        facts = seen["moments"].facts if "moments" in seen else {}
        key = "adamw" if facts.get("adam_eps_in_weights_dtype", 1.0) else "adamw-zero-over-zero"
    elif link == "gradients" and _finite(seen, "loss", "log_ratio_gradient"):
        key = _cause_of_gradients(note, seen)
    elif link in _LOGPROBS and "logits" in seen and note.magnitude == math.inf:
        key = "filtered-token"
    elif link == "advantages" and _finite(seen, "rewards"):
        key = "deviation-of-group"
    elif link == "rewards":
        key = "reward-function"
    return key


def _cause_of_gradients(note: LinkNote, seen: Notes) -> str:
    """The same for gradients after a finite loss: fp16 overflows where finite links are out of their usual range."""
    is_fp16 = note.facts.get("largest_representable", math.inf) < 1e5
    for key, links in (("float16-from-ratio", ["log_ratio_gradient"]), ("float16-from-kl", ["kl_delta", "loss"])):
        if is_fp16 and _finite(seen, *links) and all(seen[each].magnitude > LINKS[each].warning for each in links):
            return key
    return "gradient"


def _finite(notes: Notes, *links: str) -> bool:
    return all(link in notes and not notes[link].broken for link in links)


def first_break(events: Iterable[Event]) -> ChainBreak | None:
    """The first broken link of a run with its step and operator, or None if every value was finite.

    An infinite ratio that leaves the loss of its update finite is absorbed; a gradient that it breaks is not.
    """
    for event in events:
        if isinstance(event, Stepped):
            seen: Notes = {}
            for note in event.links:
                if note.broken and not absorbed(note, event.links):
                    named, share = _TEXTS[_cause(note, seen)], note.nonfinite / max(1, note.numel)
                    caught = _caught_by(event, note)
                    return ChainBreak(note.link, event.step, note.update, *named, note.where, share, caught)
                seen[note.link] = note
        elif isinstance(event, Ended) and (crash := event.crash):
            return ChainBreak(crash.kind, -1, 0, crash.operator, crash.explanation, crash.text, 1.0, "")
    return None


def absorbed(note: LinkNote, links: Sequence[LinkNote]) -> bool:
    """Whether a broken ratio left the loss of the same update finite, or broken logits only filtered tokens out.

    A filter sets -inf; NaN and +inf in the logits would make NaN in the log-probabilities after them.
    """
    if note.link == "logits":
        after = links[links.index(note) + 1 :]
        followed = next((other for other in after if other.link in _LOGPROBS), None)
        return note.magnitude == math.inf and followed is not None and not math.isnan(followed.magnitude)
    if note.link != "ratio":
        return False
    losses = [other for other in links if other.link == "loss" and other.update == note.update]
    return bool(losses) and not any(loss.broken for loss in losses)


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
    table: dict[int, dict[str, str]] = {}
    for event in events:
        if isinstance(event, Stepped):
            row = table.setdefault(event.step, {})
            for each in by_update(event).values():
                for link, status in each.items():
                    row[link] = worse(row.get(link, "healthy"), status)
    return table


def by_update(event: Stepped) -> dict[int, dict[str, str]]:
    """The statuses of the links of a step, by update; before the first update they are those of update 0."""
    table: dict[int, dict[str, str]] = {}
    for note in event.links:
        row = table.setdefault(note.update, {})
        row[note.link] = worse(row.get(note.link, "healthy"), _status(note, event.links))
    return table


def worse(one: str, other: str) -> str:
    """The worse of two statuses."""
    return max(one, other, key=("healthy", "warning", "broken").index)


def _status(note: LinkNote, links: Sequence[LinkNote]) -> str:
    if note.broken and not absorbed(note, links):
        return "broken"
    return "warning" if note.broken or note.magnitude > LINKS[note.link].warning else "healthy"
