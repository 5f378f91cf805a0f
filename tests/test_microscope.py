"""The token microscope without a browser: whom it blames, what guards would change, and what a panel shows."""

import math
from dataclasses import replace

import pytest
import torch
from matplotlib.patches import Rectangle

from grpo_lab.algorithm.kl import k3
from grpo_lab.analysis.run_state import CURVES, fold
from grpo_lab.config.schema import Config
from grpo_lab.core.hooks import Verdict
from grpo_lab.core.loss import clipped_surrogate
from grpo_lab.events import CompletionNote, Ended, LinkNote, Started, Stepped
from grpo_lab.training.guards import ClampKL, ClampLogRatio, DualClip
from grpo_lab.ui import html, notebook_mode
from grpo_lab.ui.widgets import Panel
from grpo_lab.ui.widgets.controls import History
from grpo_lab.ui.widgets.microscope import NUMBERS, Microscope, culprit, explains, guarded

USUAL = CompletionNote(
    ("usual",), 3, 0, "1+1=", ("2", "<|endoftext|>"), 1.0, 0.125, (-1.0, 0.0), (-1.0, 0.0), (-1.0, 0.0),
    (0.0, 0.0), (1.0, 1.0), (0.0, 0.0), (False, False), (-0.125, -0.125),
)  # fmt: skip
UNLIKELY = CompletionNote(
    ("log_ratio", "gradient"), 7, 1, "2+<b>=", (" 9", "<|endoftext|>"), -2.0, 0.125, (-1.0, -0.5), (-8.0, -0.5),
    (-13.0, -0.5), (7.0, 0.0), (1096.6, 1.0), (11.0, 0.0), (False, False), (274.16, 0.25),
)  # fmt: skip
FAR = replace(UNLIKELY, why=("kl",), number=9, ref_logprobs=(13.0, -0.5), kl=(1.2026e6, 0.0))


def stepped(step, *notes, **metrics):
    return Stepped(step, 1, Verdict.KEEP, {"grad_norm": 2.0, "kl": 0.1, **metrics}, (), (), completions=notes)


def test_a_curve_blames_the_number_that_explains_it():
    event = stepped(4, USUAL, UNLIKELY, FAR, beta=1e-9)
    assert [explains(curve, event) for curve in ("grad_norm", "kl", "ratio/max", "reward")] == [
        *("gradient", "kl"),
        *("log_ratio", "log_ratio"),
    ]
    assert explains("grad_norm", stepped(4, USUAL, UNLIKELY, FAR, beta=0.05)) == "kl", "the penalty pulls more"
    assert culprit(event.completions, "gradient") == (UNLIKELY, "gradient", 0)
    assert culprit(event.completions, "kl") == (FAR, "kl", 0)
    assert culprit([USUAL], "kl") == (USUAL, "kl", 0)
    broken = replace(USUAL, why=("nonfinite",), ratio=(1.0, math.inf), gradient=(0.0, math.nan))
    assert culprit([UNLIKELY, broken], "kl") == (broken, "ratio", 1), "the first link that is not finite"
    early = replace(USUAL, why=("log_ratio",), gradient=(), ratio=())
    assert culprit([early], "gradient") == (early, "log_ratio", 0), "the step ended before its backward pass"


def test_guards_numbers_are_those_of_the_guards_and_of_the_loss():
    clamp, dual, kl = ClampLogRatio(), DualClip(), ClampKL()
    found = guarded(UNLIKELY, 0, Config(), "clamp_log_ratio")
    assert found["log_ratio"] == clamp.limit == 5 and found["ratio"] == pytest.approx(math.exp(5))
    assert found["gradient"] == 0, "beyond the limit a token gives no gradient"
    without = guarded(UNLIKELY, 0, Config())
    assert without["gradient"] == pytest.approx(UNLIKELY.gradient[0], rel=1e-4), "as the trainer computed it"
    assert without["kl"] == pytest.approx(float(k3(torch.tensor(-12.0))))

    given = torch.tensor([[7.0]], requires_grad=True)
    (clipped_surrogate(given, torch.tensor([-2.0]), 0.2, delta=dual.delta).sum() * 0.125).backward()
    assert guarded(UNLIKELY, 0, Config(), "dual_clip")["gradient"] == 0
    assert given.grad is not None and not given.grad.any()
    wider = Config().with_("guards.dual_clip.delta=2000")
    assert guarded(UNLIKELY, 0, wider, "dual_clip")["gradient"] == without["gradient"], "the settings of the run"
    assert guarded(FAR, 0, Config(), "clamp_kl")["kl"] == pytest.approx(float(k3(torch.tensor(kl.limit))))
    assert guarded(USUAL, 0, Config().with_("loss.kl_estimator=own.py:k9"), "clamp_kl") == {}, "a formula of the user"


def test_tokens_are_chips_with_numbers_and_the_culprit_is_framed():
    microscope = Microscope()
    assert "Click a point of a curve" in microscope._tokens.value
    microscope.open(stepped(4, USUAL, UNLIKELY), Config(), "ratio/max")
    shown = microscope._tokens.value
    assert microscope.number.value == "log_ratio"
    assert "Culprit: “␣9”, token 1 of completion 7, update 1: log-ratio 7." in shown
    assert shown.count("grpo-lab-culprit") == 1 and "2+&lt;b&gt;=" in shown and "<b>" not in shown
    first, rest = shown.split("grpo-lab-culprit", 1)[1].split("</span>", 1)
    assert first.startswith('" style="--strength:70%" title="log-ratio 7, ratio 1.1e+03') and first.endswith("␣9")
    assert "&lt;|endoftext|&gt;" in rest and '<tr aria-current="true"><td>␣9</td><td>7</td>' in rest
    assert "<td>clamp_log_ratio</td><td>5</td><td>148</td><td>0</td><td>=</td>" in rest
    microscope.number.value = "kl"
    assert "log-ratio 7." in microscope._tokens.value and microscope._tokens.value != shown
    microscope.open(stepped(5), Config(), "kl")
    assert "This run keeps no tokens of step 5" in microscope._tokens.value
    assert set(NUMBERS) == {value for _, value in microscope.number.options}


def test_what_is_usual_is_no_culprit_and_victims_are_left_out():
    microscope = Microscope()
    microscope.open(stepped(4, USUAL), Config(), "kl")
    assert "Nothing stands out. The largest: “2”" in microscope._tokens.value
    assert "grpo-lab-culprit" not in microscope._tokens.value
    microscope.open(stepped(4, USUAL, grad_norm=math.nan), Config(), "kl")
    assert "Culprit" in microscope._tokens.value, "the norm of the step is not usual"

    # The gradients broke in update 1, so of update 2 every number is NaN.
    dead = replace(
        UNLIKELY, why=("nonfinite",), update=2, number=0, log_ratio=(math.nan,) * 2, logprobs=(math.nan,) * 2
    )
    broken = LinkNote("gradients", 1, math.inf, 5.0, 10)
    event = replace(stepped(0, dead, UNLIKELY, grad_norm=math.nan), links=(broken,))
    microscope.open(event, Config(), "grad_norm")
    assert "Culprit: “␣9”, token 1 of completion 7, update 1" in microscope._tokens.value
    assert "completion 0" not in microscope._tokens.value


def test_the_tokens_are_closed_by_their_button(monkeypatch, tmp_path):
    monkeypatch.setattr(notebook_mode, "headless", lambda: False)
    panel = Panel(runs=tmp_path)
    panel.timeline.load(History([Started(Config().to_dict(), 1, "cpu"), stepped(0, UNLIKELY), Ended("done")]))
    panel.tokens(0)
    microscope = panel._controls.microscope
    assert panel.frames.settle(60) and panel.figure.opened == 0
    _, close = microscope._row.children
    close.click()
    assert panel.frames.settle(60) and panel.figure.opened is None and microscope.event is None


def test_a_click_and_arrow_keys_open_a_step_of_the_panel(monkeypatch, tmp_path):
    monkeypatch.setattr(notebook_mode, "headless", lambda: False)
    panel = Panel(runs=tmp_path)
    events = [Started(Config().to_dict(), 1, "cpu"), stepped(0, USUAL), stepped(1, UNLIKELY), stepped(2), Ended("done")]
    panel.timeline.load(History(events))
    panel.refresh()
    assert panel.frames.settle(60)
    (cut, high), _ = panel.figure.sizes
    x, y = panel.figure._axes["kl"].transData.transform((1.2, 0.1))
    browser, microscope = panel._controls.browser, panel._controls.microscope
    browser.clicked = {"half": "curves", "x": x / cut, "y": 1 - y / high, "n": 1}
    assert microscope.event is events[2] and microscope.curve == "kl"
    assert "completion 7" in microscope._tokens.value
    for by, step in ((1, 2), (1, 2), (-1, 1), (-1, 0), (-1, 0)):
        browser.clicked = {"half": "curves", "by": by, "n": browser.clicked["n"] + 1}
        assert microscope.event is not None and microscope.event.step == step
    browser.clicked = {"half": "curves", "x": 0.5, "y": 0.5, "n": 9}
    assert microscope.event is events[1], "between the axes nothing is opened"
    assert panel.frames.settle(60)
    for name in CURVES:
        (band,) = (patch for patch in panel.figure._axes[name].patches if patch.get_gid() == "opened")
        assert isinstance(band, Rectangle) and band.get_x() < 0 < band.get_x() + band.get_width(), "step 0"
    panel.open("mystery-1")
    assert microscope.event is None, "another run"
    assert panel.frames.settle(60)
    assert not any(patch.get_gid() == "opened" for axes in panel.figure._axes.values() for patch in axes.patches)


def test_text_of_a_model_is_a_line_for_the_first_step_the_step_shown_and_each_kept_run():
    asked = [f"Review: number {step}, which is a sentence of many words.\nAnswer:" for step in range(3)]

    def run(*said):
        events = [replace(stepped(step), samples=((asked[step], text, 0.5),)) for step, text in enumerate(said)]
        return fold([Started(Config().to_dict(), 1, "cpu"), *events])

    healed, exploded = run("good", " good\n", "<b>"), run("good", "\ufffdx")
    shown = html.answers(healed, {"exploded": exploded})
    assert shown.count("<li>") == 3 and "&lt;b&gt;" in shown and "number 2" in shown
    assert "<b>step 1, exploded</b>" in shown and r"\x??x" in shown, "no byte is lost in silence"
    assert html.answers(run("a", "b"), {"B": healed}).count("number 1") == 2, "a kept run answers the same prompt"
    short = fold([Started({}, 1, "cpu"), replace(stepped(0), samples=(("1+1=", "2", 1.0),))])
    assert html.answers(short, {}) == ""
