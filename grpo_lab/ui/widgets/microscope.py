"""The token microscope: the completions that explain the numbers of a step, token by token, as a panel shows them."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import ipywidgets
import torch

from grpo_lab.algorithm.surrogates import Limits
from grpo_lab.config.schema import Config
from grpo_lab.core.hooks import Coefficients, Stage
from grpo_lab.events import CompletionNote, Stepped
from grpo_lab.messages import spoken, text
from grpo_lab.metrics import LINKS, METRICS
from grpo_lab.training.guards import GUARDS
from grpo_lab.training.registry import FORMULAS
from grpo_lab.training.token_notes import CHAIN
from grpo_lab.ui import html
from grpo_lab.ui.widgets import parts

NUMBERS = {"log_ratio": LINKS["log_ratio"].label, "ratio": LINKS["ratio"].label}
NUMBERS |= {"gradient": LINKS["log_ratio_gradient"].label, "kl": METRICS["kl"].label}
NUMBERS |= {name: LINKS[name].label for name in ("logprobs", "old_logprobs", "ref_logprobs")}
"""The numbers of a token, with their labels."""
MIGHT_HELP = ("clamp_log_ratio", "dual_clip", "clamp_kl")
"""The guards whose effect on a token is shown."""
STANDS_OUT = {"log_ratio": "log_ratio/max", "kl": "kl"}
"""Numbers of a token that are judged by the upper limit of these metrics."""


def without_victims(event: Stepped) -> Stepped:
    """The step without the completions that the first break made NaN: those of later updates without any number."""
    last = min((note.update for note in event.links if note.broken), default=math.inf)
    kept = tuple(note for note in event.completions if note.update <= last or any(map(math.isfinite, note.logprobs)))
    return event if len(kept) in (0, len(event.completions)) else dataclasses.replace(event, completions=kept)


def stands_out(event: Stepped, note: CompletionNote, token: int) -> bool:
    """Whether the step's norm, or a number of the token, is outside of what is usual."""
    if "nonfinite" in note.why:
        return True
    numbers = {metric: abs(getattr(note, name)[token]) for name, metric in STANDS_OUT.items() if getattr(note, name)}
    numbers["grad_norm"] = event.metrics.get("grad_norm", 0.0)
    return not all(value <= METRICS[metric].high for metric, value in numbers.items())


def explains(curve: str, event: Stepped) -> str:
    """The number that explains a curve. A norm comes from the ratio, or from the KL penalty where that pulls more."""
    if curve != "grad_norm":
        return "kl" if curve == "kl" else "log_ratio"
    notes, beta = event.completions, event.metrics.get("beta", 0.0)
    by_ratio = max((abs(value) for note in notes for value in note.gradient), default=0.0)
    by_penalty = max((beta * note.weight * abs(value) for note in notes for value in note.kl), default=0.0)
    return "kl" if by_penalty > by_ratio else "gradient"


def culprit(notes: Sequence[CompletionNote], number: str) -> tuple[CompletionNote, str, int]:
    """The completion, the number and the token to blame: the first that is not finite, or the largest of a number."""
    why = next(why for why in ("nonfinite", number, *NUMBERS, "usual") if any(why in note.why for note in notes))
    note = next(note for note in notes if why in note.why)
    name = why if why in NUMBERS else number if getattr(note, number) else "log_ratio"
    if why == "nonfinite":
        name = next((each for each in CHAIN[1:] if not all(map(math.isfinite, getattr(note, each)))), "log_ratio")
    sizes = [math.inf if math.isnan(value) else abs(value) for value in getattr(note, name)]
    return note, name, sizes.index(max(sizes))


def guarded(note: CompletionNote, token: int, config: Config, name: str = "") -> dict[str, float]:
    """The numbers of a token after a guard, by the code of the guard and of the loss; none for formulas of a user."""
    loss, guard = config.loss, GUARDS[name](**config.guards.get(name, {})) if name else None

    def passed(stage: Stage, value: Any) -> Any:
        step: Any = None  # these guards read their value alone
        return guard(value, step).value if guard and guard.stage == stage else value

    settings = ("importance_sampling_level", "surrogate", "kl_estimator")
    level, surrogate, estimate = (FORMULAS[each].get(getattr(loss, each)) for each in settings)
    if not (level and surrogate and estimate):
        return {}
    use = passed(Stage.COEFFICIENTS, Coefficients(0.0, loss.beta, loss.epsilon, loss.epsilon_high, 0.0))
    given, logprobs = torch.tensor([note.log_ratio], requires_grad=True), torch.tensor([note.logprobs])
    log_ratio = passed(Stage.LOG_RATIO, given)
    weights = level(log_ratio, torch.ones(given.shape, dtype=torch.bool))
    limits = Limits(use.epsilon, use.epsilon_high, use.delta, loss.sapo_temperature_pos, loss.sapo_temperature_neg)
    losses = surrogate(weights, logprobs, torch.tensor([note.advantage]), limits)
    found = {"log_ratio": log_ratio[0, token], "ratio": weights[0, token].exp()}
    if losses.requires_grad:
        found["gradient"] = torch.autograd.grad(losses.sum() * note.weight, given)[0][0, token]
    if note.ref_logprobs:
        found["kl"] = estimate(passed(Stage.KL_DELTA, torch.tensor([note.ref_logprobs]) - logprobs))[0, token]
    return {each: float(value.detach()) for each, value in found.items()}


def label(number: str) -> str:
    """A number's name in the user's language."""
    return spoken(NUMBERS[number])


class Microscope:
    """A part of a panel: the tokens of one step, coloured by the number that a menu chooses."""

    def __init__(self, closed: Callable[[], object] = lambda: None) -> None:
        self.event: Stepped | None = None
        self.curve = "grad_norm"
        self._config = Config()
        self._muted = parts.Muted()
        options = [(label(name), name) for name in NUMBERS]
        words = {"description": text("microscope.colour"), "style": {"description_width": "initial"}}
        self.number = ipywidgets.Dropdown(options=options, **words).add_class("grpo-lab-number")
        parts.by_user(self.number, self._muted, lambda _: self._show())
        self._tokens = parts.words("tokens")
        close = parts.button("close", "×", self.close, tooltip=text("microscope.close"))
        self._row = parts.box("row", [self.number, close])
        self.widget = parts.box("microscope", [self._row, self._tokens], ipywidgets.VBox)
        self._closed = closed
        self._show()

    def open(self, event: Stepped, config: Config, curve: str) -> None:
        """Show a step of a run that had this config, for a click on a curve."""
        self.event, self._config, self.curve = without_victims(event), config, curve
        with self._muted:
            if self.event.completions:
                self.number.value = culprit(self.event.completions, explains(curve, self.event))[1]
        self._show()

    def close(self) -> None:
        """Show no step, and how to open one."""
        self.event = None
        self._show()
        self._closed()

    def _show(self) -> None:
        notes = self.event.completions if self.event else ()
        self._row.layout.display = "" if self.event else "none"
        self.number.layout.display = "" if notes else "none"
        if not self.event or not notes:
            words = text("microscope.none", step=self.event.step) if self.event else text("microscope.closed")
            self._tokens.value = html.fill("announced", words)
            return
        number, (blamed, name, token) = str(self.number.value), culprit(notes, explains(self.curve, self.event))
        middle = float(number == "ratio")  # that of all others is 0
        sizes = [abs(value - middle) for note in notes for value in getattr(note, number) if math.isfinite(value)]
        least = 0.1 if number in ("log_ratio", "ratio", "kl") else 0.0  # an error of rounding has no colour
        most = max([*sizes, least]) or 1.0
        odd, lines = stands_out(self.event, blamed, token), []
        for note in sorted(notes, key=lambda note: note is not blamed):
            numbers, values = _texts(note), getattr(note, number) or [middle] * len(note.tokens)
            labelled = [[f"{label(name)} {each}" for each in texts] for name, texts in numbers.items()]
            hints = map(", ".join, zip(*labelled, strict=True))
            framed = [odd and note is blamed and place == token for place in range(len(values))]
            tints = [_tint((value - middle) / most) for value in values]
            chips = [*zip(map(visible, note.tokens), tints, hints, framed, strict=True)]
            why = text("status.comma").join(text(f"microscope.why.{each}") for each in note.why)
            lines.append((why, note.number, note.update, note.prompt, chips, html.shown(note.advantage)))
        tokens, numbers = [visible(each) for each in blamed.tokens], _texts(blamed)
        clipped = ["✓" if each else "" for each in blamed.clipped or [False] * len(tokens)]
        rows = [
            [text("microscope.token"), *map(label, numbers), text("microscope.clipped")],
            *zip(tokens, *numbers.values(), clipped, strict=True),
        ]
        where = {"token": tokens[token], "place": token + 1, "number": blamed.number, "update": blamed.update}
        key = "microscope.culprit" if odd else "microscope.largest"
        said = text(key, **where, name=label(name), value=numbers[name][token])
        ends, heading = map(html.shown, (middle - most, middle + most)), text("microscope.title", step=self.event.step)
        effects = self._effects(blamed, token)
        self._tokens.value = html.fill("microscope", heading, said, lines, [*ends], rows, token, effects)

    def _effects(self, note: CompletionNote, token: int) -> list[list[str]]:
        """A table: the numbers of a token as they were, and as each guard would leave them."""
        columns = [each for each in ("log_ratio", "ratio", "gradient", "kl") if getattr(note, each)]
        if not (without := guarded(note, token, self._config)):
            return []
        rows = [[text("microscope.as_it_was"), *(_texts(note)[name][token] for name in columns)]]
        for name in MIGHT_HELP:
            found = guarded(note, token, self._config, name)
            same = {each for each in columns if repr(found.get(each)) == repr(without.get(each))}  # NaN is not itself
            rows.append([name, *("=" if each in same else html.shown(found[each]) for each in columns)])
        return [[text("microscope.guard"), *map(label, columns)], *rows]


def _texts(note: CompletionNote) -> dict[str, list[str]]:
    """The numbers of each token as text, by name."""
    return {name: [*map(html.shown, getattr(note, name))] for name in NUMBERS if getattr(note, name)}


def visible(token: str) -> str:
    """A token with a mark for each blank and line break.

    >>> visible(" no\\n")
    '␣no↵'
    """
    return token.replace(" ", "␣").replace("\n", "↵").replace("\t", "⇥")


def _tint(share: float) -> tuple[str, int]:
    """The side of the scale, and the strength of its colour in percent; NaN and inf have a side of their own."""
    if not math.isfinite(share):
        return "broken", 70
    return "minus" if share < 0 else "plus", round(70 * min(1.0, abs(share)))
