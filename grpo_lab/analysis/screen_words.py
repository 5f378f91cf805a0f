"""The state of a run in words: the alternative text of its figure, and the tone of its status."""

import math

from grpo_lab.analysis.run_state import CURVES, Screen, Series, shown
from grpo_lab.messages import spoken, text
from grpo_lab.metrics import LINKS, METRICS

_REFUSED = {"skipped": "skipped", "rolled_back": "rolled back"}


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
        return text("status.crashed_in", operator=spoken(operator))
    return text("status.comma").join(text(f"status.{part.replace(' ', '_')}") for part in kind.split(", "))


def describe(screen: Screen) -> str:
    """The screen in two sentences with its numbers, as alternative text of its figure; safe inside Markdown."""
    curves = [
        _curve_in_words(_curve_name(name, objective), screen.series[own])
        for name in CURVES
        for own, objective in screen.curves(name).items()
        if own in screen.series
    ]
    bands = {name: spans[-1][1:] for name, spans in screen.objectives.items()}
    kept_in = [
        text("alt.from_to", name=name, start=f"{low:g}", end=f"{high:g}")
        for name, (low, high) in bands.items()
        if not math.isnan(low)
    ]
    if kept_in:
        curves.append(text("alt.bands", said=text("alt.comma").join(kept_in)))
    state = [_progress(screen), text("alt.comma").join(curves)]
    facts = [_first_break(screen)]
    facts += [text("alt.acted", guard=name, step=tally.since) for name, tally in screen.rescues()]
    refused = [text(f"alt.{key}", count=len(steps)) for key, kind in _REFUSED.items() if (steps := screen.marked(kind))]
    if refused:
        facts.append(text("alt.refused", said=text("alt.comma").join(refused)))
    words = text(
        "alt.said", state=text("alt.semicolon").join(filter(None, state)), facts=text("alt.semicolon").join(facts)
    )
    return " ".join(words.translate(str.maketrans("[]", "()")).split())


def _progress(screen: Screen) -> str:
    name, done = screen.name or text("alt.run"), screen.completed
    if screen.num_steps > done:
        steps = text("alt.steps_of", count=done, total=screen.num_steps)
    else:
        steps = text("alt.step" if done == 1 else "alt.steps", count=done)
    return text("alt.progress", name=name, status=status_words(screen.status), steps=steps)


def _curve_name(name: str, objective: str) -> str:
    said = spoken(METRICS[name].label)
    return text("alt.of_objective", label=said, objective=objective) if objective else said


def _first_break(screen: Screen) -> str:
    found = screen.first_break
    if found is None:
        return text("alt.unbroken")
    operator, _ = found.in_words()
    if found.link not in LINKS:
        return text("alt.unrecorded", operator=operator)
    caught = text("panel.caught", guard=found.caught_by) if found.caught_by else text("panel.not_caught")
    link = spoken(LINKS[found.link].label)
    return text("alt.first_break", link=link, step=found.step, operator=operator, caught=caught)


def _curve_in_words(name: str, series: Series) -> str:
    values = series.values
    start, end = shown(values[0]), shown(values[-1])
    words = text("alt.from_to", name=name, start=start, end=end) if len(values) > 1 else f"{name} {start}"
    finite = [(value, step) for step, value in zip(*series, strict=True) if math.isfinite(value)]
    broken = next((step for step, value in zip(*series, strict=True) if not math.isfinite(value)), None)
    peak, at = max(finite, default=(math.nan, 0), key=lambda pair: pair[0])
    extremes = [text("alt.most", value=shown(peak), step=at)] if finite and shown(peak) not in (start, end) else []
    extremes += [text("alt.broken", step=broken)] if broken is not None else []
    return text("alt.extremes", said=words, extremes=text("alt.comma").join(extremes)) if extremes else words
