"""The effect of a remedy under the algorithm of a log: what its loss does not use, or has already, is not advised."""

import re
from collections.abc import Iterable
from dataclasses import replace

from grpo_lab.analysis.diagnosis.causes import SETTINGS_OF, Remedy
from grpo_lab.analysis.logs import Log
from grpo_lab.analysis.logs.algorithm import IDLE, formulas_in, settings_that_tell, told_by
from grpo_lab.config.algorithms import PART_OF, unused

TRAINERS = ("here", "trl", "verl")
ELSEWHERE = {
    "delta": ("delta", "actor_rollout_ref.actor.clip_ratio_c"),
    "epsilon": ("epsilon", "actor_rollout_ref.actor.clip_ratio"),
    "kl": ("actor_rollout_ref.actor.kl_loss_type",),
}
"""The settings of other trainers that change a part of the loss."""


def effective(remedies: Iterable[Remedy], log: Log) -> tuple[Remedy, ...]:
    """The remedies that can change the log's run, each with the settings that can; those without settings stay."""
    beta = {"beta": 1} if log.objectives else {}  # each has its own
    parts = unused({"beta": log.settings.get("beta", 1), **formulas_in(log), **beta})
    idle = {name for told in told_by(log).values() for name in told.get(IDLE, ())}
    idle |= {name for part in parts for name in (f"loss.{part}", *ELSEWHERE.get(part, ()))}
    idle |= {f"guards.{name}" for name, part in PART_OF.items() if part in parts}
    settings = settings_that_tell(log)

    def acts(setting: str) -> bool:
        name, _, value = setting.partition("=")
        return idle.isdisjoint(re.findall(r"[\w.]+", setting)) and str(settings.get(name)) != (value.strip("'") or None)

    own = {"grpo_lab": "here", **SETTINGS_OF}.get(log.source)
    found = []
    for remedy in remedies:
        given = {name: text for name in TRAINERS if (text := getattr(remedy, name))}
        kept = {name: ", ".join(filter(acts, text.split(", "))) for name, text in given.items()}
        asked = [own] if own in given else [] if own else list(given)
        changed = replace(remedy, **kept)
        if not asked or (any(kept[name] for name in asked) and changed.fits(log.source)):
            found.append(changed)
    return tuple(found)
