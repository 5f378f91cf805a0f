"""The status of one step in words: healthy, spiking, refused, or with broken weights."""

from grpo_lab.analysis.series import shown
from grpo_lab.core.hooks import Action, Verdict
from grpo_lab.events import Stepped
from grpo_lab.messages import Sentence
from grpo_lab.metrics import metric, of_run

_WATCHED = ("grad_norm", "kl", "loss", "ratio/max")
_DOING = {Verdict.SKIP_STEP: "skipping", Verdict.ROLL_BACK: "rolling back", Verdict.STOP: "stopping"}


def worst_action(event: Stepped) -> Action | None:
    """The last of the most severe actions of a step, without those of faults."""
    actions = [action for action in event.actions if action.kind != "fault"]
    return max(reversed(actions), key=lambda action: action.verdict, default=None)


def status_of(last: Stepped) -> tuple[str, str]:
    """The status of a run with finite weights, by its last step, and the reason."""
    worst = worst_action(last)
    if last.verdict in _DOING:
        return _DOING[last.verdict], Sentence("{}: {}", worst.name, worst.reason) if worst else ""
    watched = [(name, value) for name, value in last.metrics.items() if of_run(name) in _WATCHED]
    for name, value in sorted(watched, key=lambda pair: _WATCHED.index(of_run(pair[0]))):
        usual = metric(name)
        if not usual.low <= value <= usual.high:
            if value < usual.low:
                return "spiking", Sentence("{} {}, usual at least {:g}", usual.label, shown(value), usual.low)
            return "spiking", Sentence("{} {}, usual up to {:g}", usual.label, shown(value), usual.high)
    return "healthy", ""
