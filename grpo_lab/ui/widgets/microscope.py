"""The token microscope: the completions that explain the numbers of a step, token by token, as a panel shows them."""

import math
from collections.abc import Sequence
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

NUMBERS = {
    "log_ratio": "log_ratio",
    "ratio": "ratio",
    "gradient": "log_ratio_gradient",
    "kl": "",
    "logprobs": "logprobs",
}
NUMBERS |= {"old_logprobs": "old_logprobs", "ref_logprobs": "ref_logprobs"}
"""The numbers of a token, each with the link that has its label."""
MIGHT_HELP = ("clamp_log_ratio", "dual_clip", "clamp_kl")
"""The guards whose effect on a token is shown."""


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

    chosen = {each: FORMULAS[each].get(getattr(loss, each)) for each in ("importance_sampling_level", "surrogate")}
    level, surrogate, estimate = (*chosen.values(), FORMULAS["kl_estimator"].get(loss.kl_estimator))
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
    return spoken(LINKS[NUMBERS[number]].label if NUMBERS[number] else METRICS["kl"].label)


class Microscope:
    """A part of a panel: the tokens of one step, coloured by the number that a menu chooses."""

    def __init__(self) -> None:
        self.event: Stepped | None = None
        self.curve = "grad_norm"
        self._config = Config()
        self._muted = parts.Muted()
        options = [(label(name), name) for name in NUMBERS]
        words = {"description": text("microscope.colour"), "style": {"description_width": "initial"}}
        self.number = ipywidgets.Dropdown(options=options, **words).add_class("grpo-lab-number")
        parts.by_user(self.number, self._muted, lambda _: self._show())
        self._tokens = parts.words("tokens")
        self.widget = parts.box("microscope", [self.number, self._tokens], ipywidgets.VBox)
        self.close()

    def open(self, event: Stepped, config: Config, curve: str) -> None:
        """Show a step of a run that had this config, for a click on a curve."""
        self.event, self._config, self.curve = event, config, curve
        with self._muted:
            if event.completions:
                self.number.value = culprit(event.completions, explains(curve, event))[1]
        self._show()

    def close(self) -> None:
        """Show no step, and how to open one."""
        self.event = None
        self._show()

    def _show(self) -> None:
        notes = self.event.completions if self.event else ()
        self.number.layout.display = "" if notes else "none"
        if not self.event or not notes:
            words = text("microscope.none", step=self.event.step) if self.event else text("microscope.closed")
            self._tokens.value = html.fill("announced", words)
            return
        number = str(self.number.value)
        blamed, name, token = culprit(notes, explains(self.curve, self.event))
        values = [value for note in notes for value in getattr(note, number) if math.isfinite(value)]
        # The middle of the scale is 0, of ratios 1.
        middle = float(number == "ratio")
        most = max((abs(value - middle) for value in values), default=0.0) or 1.0
        lines = []
        for note in sorted(notes, key=lambda note: note is not blamed):
            shares = [(value - middle) / most for value in getattr(note, number)] or [0.0] * len(note.tokens)
            chips = [
                (visible(each), _tint(share), self._hint(note, place), note is blamed and place == token)
                for place, (each, share) in enumerate(zip(note.tokens, shares, strict=True))
            ]
            why = text("status.comma").join(text(f"microscope.why.{each}") for each in note.why)
            lines.append((why, note.number, note.update, note.prompt, chips, html.shown(note.advantage)))
        columns = [each for each in NUMBERS if getattr(blamed, each)]
        header = [text("microscope.token"), *map(label, columns), text("microscope.clipped")]
        clipped = blamed.clipped or (False,) * len(blamed.tokens)
        rows = [
            [visible(each), *(html.shown(getattr(blamed, n)[place]) for n in columns), "✓" if clipped[place] else ""]
            for place, each in enumerate(blamed.tokens)
        ]
        where = {"token": visible(blamed.tokens[token]), "place": token + 1, "number": blamed.number}
        value = html.shown(getattr(blamed, name)[token])
        said = text("microscope.culprit", **where, update=blamed.update, name=label(name), value=value)
        scale = (html.shown(middle - most), html.shown(middle), html.shown(middle + most))
        heading = text("microscope.title", step=self.event.step)
        self._tokens.value = html.fill(
            "microscope", heading, said, lines, scale, [header, *rows], token, self._effects(blamed, token)
        )

    def _effects(self, note: CompletionNote, token: int) -> list[list[str]]:
        """A table: the numbers of a token as they were, and as each guard would leave them."""
        columns = [each for each in ("log_ratio", "ratio", "gradient", "kl") if getattr(note, each)]
        rows, without = [], guarded(note, token, self._config)
        for name in MIGHT_HELP if without else ():
            found = guarded(note, token, self._config, name)
            same = {each for each in columns if repr(found.get(each)) == repr(without.get(each))}  # NaN is not itself
            cells = ["=" if each in same else html.shown(found[each]) for each in columns]
            rows.append([name, *cells])
        as_it_was = [text("microscope.as_it_was"), *(html.shown(getattr(note, name)[token]) for name in columns)]
        return [[text("microscope.guard"), *map(label, columns)], as_it_was, *rows] if rows else []

    @staticmethod
    def _hint(note: CompletionNote, place: int) -> str:
        """The numbers of a token in one line."""
        numbers = {each: getattr(note, each) for each in NUMBERS}
        return ", ".join(f"{label(name)} {html.shown(each[place])}" for name, each in numbers.items() if each)


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
