"""The state of a run in words: the alternative text of its figure, and the tone of its status."""

import math

from grpo_lab.analysis.run_state import CURVES, Screen, Series, shown
from grpo_lab.messages import label, reworded, text
from grpo_lab.metrics import LINKS, METRICS


def tone(status: str) -> str:
    """How a status is shown: `good`, `calm`, `odd` or `bad`.

    >>> tone("done, learned"), tone("done, reward lost"), tone("spiking")
    ('good', 'bad', 'odd')
    """
    if any(word in status for word in ("crashed", "poisoned", "failed", "lost")):
        return "bad"
    if status in ("healthy", "done", "done, learned"):
        return "good"
    return "calm" if status in ("waiting", "starting", "paused", "stopped", "done, learned nothing") else "odd"


def status_words(status: str) -> str:
    """A status of a run in the user's language.

    >>> status_words("done, poisoned"), status_words("crashed in torch.multinomial")
    ('done, poisoned', 'crashed in torch.multinomial')
    """
    kind, _, operator = status.partition(" in ")
    if operator:
        return text("status.crashed_in", operator=reworded(operator))
    return text("status.comma").join(text(f"status.{part.replace(' ', '_')}") for part in kind.split(", "))


def describe(screen: Screen) -> str:
    """The screen in two sentences with its numbers, as alternative text of its figure; safe inside Markdown.

    It is in the user's language: labels, statuses and operators have a translation, and the sentences around them are
    reworded.
    """
    done = screen.completed
    of = f" of {screen.num_steps}" if screen.num_steps > done else ""
    steps = f"{done}{of} step{'s' if done != 1 or of else ''}"
    drawn = [
        (label(METRICS[name].label) + (f", {objective}" if objective else ""), screen.series.get(own, Series()))
        for name in CURVES
        for own, objective in screen.curves(name).items()
    ]
    curves = [said for name, series in drawn if (said := _curve_in_words(name, series))]
    bands = {name: spans[-1][1:] for name, spans in screen.objectives.items()}
    kept_in = [f"{name} {low:g} to {high:g}" for name, (low, high) in bands.items() if not math.isnan(low)]
    curves += [f"bands of the KL: {', '.join(kept_in)}"] if kept_in else []
    first = (
        f"{screen.name or 'Run'}: {status_words(screen.status)} after {steps}"
        + ("; " if curves else "")
        + ", ".join(curves)
    )
    found = screen.first_break
    refused = [f"{kind}: {n}" for kind in ("skipped", "rolled back") if (n := len(screen.marked(kind)))]
    if found is None:
        second = "No link of the chain broke"
    elif found.link in LINKS:
        caught = f"caught by {found.caught_by}" if found.caught_by else "caught by no guard"
        operator, _ = found.in_words()
        second = f"First break: {label(LINKS[found.link].label)} at step {found.step}, by {operator}, {caught}"
    else:
        second = f"No broken link was recorded before the crash in {found.in_words()[0]}"
    acted = [f"{name} acted from step {tally.since} on" for name, tally in screen.rescues()]
    acted += [f"steps {', '.join(refused)}"] if refused else []
    words = f"{'; '.join([f'{first}. {second}', *acted])}."
    return reworded(" ".join(words.translate(str.maketrans("[]", "()")).split()), "alt")


def _curve_in_words(name: str, series: Series) -> str:
    if not series.values:
        return ""
    values = series.values
    start, end = shown(values[0]), shown(values[-1])
    words = f"{name} {start} to {end}" if len(values) > 1 else f"{name} {start}"
    finite = [(value, step) for step, value in zip(*series, strict=True) if math.isfinite(value)]
    broken = next((step for step, value in zip(*series, strict=True) if not math.isfinite(value)), None)
    peak, at = max(finite, default=(math.nan, 0), key=lambda pair: pair[0])
    extremes = [f"at most {shown(peak)} at step {at}"] if finite and shown(peak) not in (start, end) else []
    extremes += [f"first not finite at step {broken}"] if broken is not None else []
    return f"{words} ({', '.join(extremes)})" if extremes else words
