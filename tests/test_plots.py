"""Figures of any events, however odd, are drawn without a warning and hold the marks that tell the story."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, findSystemFonts, get_font
from matplotlib.patches import Rectangle
from matplotlib.text import Text

from grpo_lab.analysis.run_state import CURVES, describe, fold
from grpo_lab.config.catalog import preset
from grpo_lab.core.hooks import Action, Verdict
from grpo_lab.events import Changed, Ended, Evaluated, LinkNote, Started, Stepped
from grpo_lab.metrics import LINKS
from grpo_lab.runs.crashes import classify_crash
from grpo_lab.ui import plots
from grpo_lab.ui.plots import curves, strip, style
from grpo_lab.ui.plots.style import STATUSES

INF, NAN = math.inf, math.nan
CONFIG = preset("smoke").with_(
    "run.num_steps=20", "guards.skip_spikes.threshold=10", "guards.clip_gradients.max_norm=0.5"
)
START = Started(CONFIG.to_dict(), 10, "cpu")
DONE = Ended("done")
CRASH = Ended("crashed", "it", classify_crash("probability tensor contains either `inf`, `nan` or element < 0"))


def stepped(step, verdict=Verdict.KEEP, broken=(), warned=(), metrics=None, failed=False):
    sizes = {link: 1.0 for link in LINKS} | dict.fromkeys(warned, 1e9) | dict.fromkeys(broken, NAN)
    links = tuple(LinkNote(link, 0, size, float(link in broken), 8) for link, size in sizes.items())
    actions = (
        () if verdict == Verdict.KEEP else (Action("skip_spikes", "guard", "gradients", 0, verdict, "norm 99 > 10"),)
    )
    healthy = {"grad_norm": 1.0 + step % 3, "kl": 0.01 * step, "reward": 0.5, "ratio/max": 1.1}
    return Stepped(step, 1, verdict, healthy if metrics is None else metrics, links, actions, (), failed)


def run(values, end=(DONE,)):
    """A run whose four curves all take these values."""
    steps = [stepped(step, metrics=dict.fromkeys(CURVES, value)) for step, value in enumerate(values)]
    return [START, *steps, *end]


CRASHED = [
    START,
    stepped(0, warned=("ratio",)),
    stepped(1, broken=("gradients", "weights"), metrics=dict.fromkeys(CURVES, NAN)),
    Stepped(2, 0, Verdict.KEEP, {}, (LinkNote("probabilities", 0, NAN, 8, 8),), (), (), True),
    CRASH,
]
GUARDED = [
    START,
    Evaluated(0, 0.3, 8),
    stepped(0),
    stepped(1, Verdict.SKIP_STEP, metrics={"grad_norm": 812.0}),
    Changed(2, ("guards.skip_spikes.threshold=5",)),
    stepped(2, Verdict.ROLL_BACK, broken=("weights",)),
    *(stepped(step, Verdict.CHANGED) for step in range(3, 8)),
    Ended("stopped", "by the user"),
]
ODD = {
    "nothing": [],
    "no step": [START],
    "no settings": [Started({}, 1, "cpu"), stepped(0)],
    "no metrics": [START, stepped(0, metrics={})],
    "crashed before the first step": [START, CRASH],
    "crashed at step 0": [START, stepped(0, broken=("probabilities",), failed=True, metrics={}), CRASH],
    "crashed": CRASHED,
    "guarded": GUARDED,
    "one step": run([1.0]),
    "one NaN": run([NAN]),
    "all NaN": run([NAN] * 5),
    "all infinite": run([INF, -INF, INF]),
    "all zero": run([0.0] * 5),
    "all equal": run([3.0] * 5),
    "equal and large": run([1e50] * 3),
    "negative": run([-1.0, -5e6, -INF]),
    "tiny": run([1e-300, 5e-324, 1e-30]),
    "huge": run([1e308, -1e308, 1.0]),
    "every order": run([10.0**power for power in range(-40, 40)]),
    "mixed": run([NAN, INF, -INF, 0.0, 1e30, -3.0, 1e-30]),
    "long": run([1.0] * 1500, end=()),
    "late": [START, *(stepped(step) for step in range(5000, 5010))],
}


def by_gid(figure: Figure, gid: str) -> list:
    return [artist for artist in figure.findobj() if artist.get_gid() == gid]


@pytest.mark.parametrize("name", ODD)
def test_anything_can_be_drawn(name, tmp_path):
    for figure in (plots.run_figure(ODD[name], name), plots.strip_figure(ODD[name])):
        image = plots.save(figure, tmp_path / "new" / "figure.png").read_bytes()
        assert image.startswith(b"\x89PNG")
        assert all(np.isfinite(axes.get_xlim() + axes.get_ylim()).all() for axes in figure.axes)
    assert describe(fold(ODD[name]))


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 9])
def test_any_number_of_runs_can_be_compared(count, tmp_path):
    runs = {
        f"_run $ {index} 运行 " + "long name " * index: events
        for index, events in zip(range(count), ODD.values(), strict=False)
    }
    figure = plots.comparison_figure(runs, "all $of$ them")
    plots.save(figure, tmp_path / "figure.png")
    assert len(by_gid(figure, "curve grad_norm")) == count
    assert len(by_gid(figure, "cells")) == count


def test_a_crash_is_crossed_outlined_and_named():
    figure = plots.run_figure(CRASHED)
    (cross,) = by_gid(figure, "cross grad_norm")
    assert list(cross.get_xdata()) == [1]
    assert list(cross.get_ydata()) == [cross.axes.get_ylim()[1]]
    (outline,) = by_gid(figure, "first break")
    assert (outline.get_x() + outline.get_width() / 2, outline.get_y() + 0.5) == (1, list(LINKS).index("gradients"))
    assert [line.get_xdata()[0] for line in by_gid(figure, "crash")] == [2] * 4
    texts = {text.get_text() for text in figure.findobj(Text) if isinstance(text, Text)}
    assert {"crashed in torch.multinomial", "first break: step 1", "crash", "torch.multinomial", "NaN or inf"} <= texts
    assert any(text.startswith("First break: gradients at step 1, update 0.") for text in texts)


def test_the_cells_are_the_statuses():
    cells, width = strip.grid(fold(CRASHED), 0, 10)
    words, rows = list(STATUSES), list(strip.ROWS)
    assert (cells.shape, width) == ((len(rows) - 1, 10), 1)
    table = {row: [words[code] for code in cells[index, :4]] for index, row in enumerate(rows[:-1])}
    assert table["ratio"] == ["warning", "healthy", "not reached", "not reached"]
    assert table["gradients"] == ["healthy", "broken", "not reached", "not reached"]
    assert table["probabilities"] == ["healthy", "healthy", "broken later", "not reached"]
    assert table["torch.multinomial"] == ["healthy", "healthy", "broken", "not reached"]
    assert len(by_gid(plots.strip_figure(CRASHED), "broken")[0].get_xdata()) == 4


def test_a_link_that_a_run_does_not_have_is_called_not_used():
    """Clipped gradients without clipping; in the crashed step everything after the crash was not reached."""
    without = [
        Stepped(0, 1, Verdict.KEEP, {}, tuple(n for n in stepped(0).links if n.link != "clipped_gradients"), ()),
        Stepped(1, 0, Verdict.KEEP, {}, (LinkNote("probabilities", 0, NAN, 8, 8),), (), (), True),
    ]
    cells, _ = strip.grid(fold([START, *without, CRASH]), 0, 3)
    row = [list(STATUSES)[code] for code in cells[list(strip.ROWS).index("clipped_gradients")]]
    assert row == ["not used", "not reached", "not reached"]
    sampled = tuple(LinkNote(link, 0, NAN, 8, 8) for link in ("probabilities", "logits"))
    cells, _ = strip.grid(fold([START, Stepped(0, 0, Verdict.KEEP, {}, sampled, (), (), True), CRASH]), 0, 1)
    assert list(STATUSES)[cells[list(strip.ROWS).index("rewards"), 0]] == "not reached", (
        "logits come first, in sampling"
    )
    texts = [text.get_text() for text in plots.strip_figure([START, *without]).findobj(Text)]
    assert "not reached" in texts and "not used" in texts


def rescued(over=True):
    """A guard changes the log-ratio in three steps, another one refuses a step; clipping acts in every step."""

    def acts(step, *names):
        actions = [Action(name, "guard", "loss", 0, Verdict.CHANGED, "x > 1") for name in ("clip_gradients", *names)]
        return Stepped(step, 1, Verdict.CHANGED, dict.fromkeys(CURVES, 1.0), stepped(0).links, tuple(actions))

    steps = [acts(0), acts(1), acts(2, "clamp_log_ratio"), acts(3, "clamp_log_ratio", "mine.py:Mine")]
    return [START, *steps, acts(4, "clamp_log_ratio"), *([DONE] if over else [])]


def test_a_guard_that_saves_a_run_is_marked_and_named_on_the_curves():
    figure = plots.run_figure(rescued())
    assert sorted(line.get_xdata()[0] for line in by_gid(figure, "rescue")) == [2] * 4 + [3] * 4
    assert {each.get_text() for each in by_gid(figure, "rescued by")} == {"clamp_log_ratio ×3", "Mine ×1"}
    going_on = plots.run_figure(rescued(over=False))
    assert {each.get_text() for each in by_gid(going_on, "rescued by")} == {"clamp_log_ratio", "Mine"}
    assert [list(line.get_xdata()) for line in by_gid(figure, "mark by design")] == [[0, 1]]
    assert [list(line.get_xdata()) for line in by_gid(figure, "mark acted")] == [[2, 3, 4]]
    assert not by_gid(plots.run_figure(rescued()[:3]), "rescue")


def test_words_stand_clear_of_the_curves_and_of_each_other():
    """A name lay over a norm that climbs beside its line, and "clipped to" over a curve at its limit."""
    acted = (Action("clamp_kl", "guard", "kl_delta", 0, Verdict.CHANGED, "x > 1"),)
    norms = [1.0, 1.2, 500.0, 900.0, 800.0, 2.0, 1.0, 1.1, 0.9, 0.8]
    steps = [
        Stepped(n, 1, Verdict.CHANGED, {"grad_norm": norm, "reward": 0.9}, (), acted) for n, norm in enumerate(norms)
    ]
    config = preset("smoke").with_("guards.clip_gradients.max_norm=1").to_dict()
    change = Changed(7, ("loss.beta=0.04", "optimizer.learning_rate=0.001"))
    figure = plots.run_figure([Started(config, 9, "cpu"), *steps[:7], change, *steps[7:], Ended("done")])
    for name, axes in zip(CURVES, figure.axes, strict=False):
        words = [text for text in axes.texts if text.get_gid() in curves.ABOVE]
        boxes = [text.get_window_extent() for text in words]
        line = axes.lines[[each.get_gid() for each in axes.lines].index(f"curve {name}")] if name != "kl" else None
        points = axes.transData.transform(line.get_xydata()) if line else []
        assert not [text for text, box in zip(words, boxes, strict=True) if box.count_contains(points)]
        assert not [text for text, box in zip(words, boxes, strict=True) if box.count_overlaps(boxes) > 1]
    named = [text.get_text() for text in by_gid(figure, "changed words")]
    assert named == ["beta=0.04", "learning_rate=0.001"] * 2


def test_one_broken_step_of_thousands_is_seen_in_the_strip():
    events = [START, *(stepped(step, broken=("loss",) if step == 1234 else ()) for step in range(3001))]
    cells, width = strip.grid(fold(events), 0, 3001)
    assert width == 6
    row = cells[list(strip.ROWS).index("loss")]
    assert list(np.flatnonzero(row == list(STATUSES).index("broken"))) == [1234 // 6]


def test_what_guards_did_is_marked():
    figure = plots.run_figure(GUARDED)
    below = len(strip.ROWS) - 1
    skipped = sorted((list(line.get_xdata()), list(line.get_ydata())) for line in by_gid(figure, "mark skipped"))
    assert skipped == [([1], [below]), ([1], [812.0])]
    assert [list(line.get_xdata()) for line in by_gid(figure, "mark rolled back")] == [[2], [2]]
    assert [list(line.get_xdata()) for line in by_gid(figure, "mark acted")] == [[3, 4, 5, 6, 7]]
    assert len(by_gid(figure, "changed")) == 4
    assert list(by_gid(figure, "held out")[0].get_ydata()) == [0.3]
    assert not by_gid(figure, "crash")


def test_limits_follow_the_settings():
    clip, skip = curves.thresholds("grad_norm", fold(GUARDED))
    assert (clip.label, clip.steps, clip.values) == ("clipped to 0.5", [0, 2], [0.5, 0.5])
    assert (skip.label, skip.values) == ("skipped above 5", [10.0, 5.0])
    (ratio,) = curves.thresholds("ratio/max", fold(GUARDED))
    assert ratio.values == [1.2, 1.2]
    (line,) = by_gid(plots.run_figure(GUARDED), "limit skipped above 5")
    assert list(line.get_ydata()) == [10, 10, 5, 5]
    assert list(line.get_xdata())[:3] == [-0.5, 1.5, 1.5]
    assert curves.thresholds("reward", fold(GUARDED)) == []
    default = Started(preset("smoke").with_guards({"clip_gradients": {}}).to_dict(), 1, "cpu")
    assert curves.thresholds("grad_norm", fold([default]))[0].label == "clipped to 1"
    assert curves.thresholds("grad_norm", fold([Started(preset("smoke").to_dict(), 1, "cpu")])) == []


def test_a_run_cut_short_leaves_room_for_what_it_did_not_reach():
    assert strip.span([fold(CRASHED)]) == (0, 10)
    assert strip.span([fold(CRASHED), fold(run([1.0] * 20))]) == (0, 20)
    assert strip.span([fold([])]) == (0, 10)
    assert strip.span([fold(ODD["late"])]) == (5000, 5010)


def test_every_value_is_inside_its_axis():
    for name in ("mixed", "huge", "tiny", "negative", "every order"):
        figure = plots.run_figure(ODD[name])
        for axes, metric in zip(figure.axes, CURVES, strict=False):
            (line,) = by_gid(figure, f"curve {metric}")
            low, high = axes.get_ylim()
            drawn = np.asarray(line.get_ydata())
            assert ((low <= drawn) & (drawn <= high)).all()


def test_the_same_events_give_the_same_bytes(tmp_path):
    first, second = (plots.save(plots.run_figure(CRASHED), tmp_path / name) for name in ("a.png", "b.png"))
    assert first.read_bytes() == second.read_bytes()


# --- objectives -------------------------------------------------------------------------------------------------------

DUAL = Started(preset("dual").with_("run.stages=grpo", "run.num_steps=20").to_dict(), 10, "cpu")


def of_two(kl_of_h=0.12, start=DUAL):
    """A run with the objectives F and H, whose means are far from both."""
    metrics = {"grad_norm": 1.0, "kl": 5.0, "kl/F": 0.03, "kl/H": kl_of_h, "reward": 9.0, "reward/F": 0.6}
    metrics |= {"reward/H": -0.2, "ratio/max": 1.0}
    evaluated = Evaluated(0, 0.1, 8, {"F": 0.5, "H": -0.3})
    return [start, evaluated, *(stepped(step, metrics=metrics) for step in range(20)), DONE]


def test_each_objective_has_a_curve_and_its_band():
    figure = plots.run_figure(of_two())
    for name, heights in (("kl", (0.03, 0.12)), ("reward", (0.6, -0.2))):
        assert not by_gid(figure, f"curve {name}"), "the mean hides one objective behind the other"
        lines = [by_gid(figure, f"curve {name}/{objective}")[0] for objective in "FH"]
        assert tuple(line.get_ydata()[-1] for line in lines) == heights
        assert len({(line.get_color(), line.get_linestyle(), line.get_marker()) for line in lines}) == 2
        legend: Any = lines[0].axes.get_legend()
        assert {"F", "H"} <= {text.get_text() for text in legend.get_texts()}
        assert lines[0].axes.get_ylim()[1] < 2, "the scale has no room for the mean"
    for objective, band in (("F", (0.02, 0.06)), ("H", (0.08, 0.15))):
        (area,) = by_gid(figure, f"band {objective}")
        box = area.get_paths()[0].get_extents()
        assert (box.y0, box.y1) == pytest.approx(band) and (box.x0, box.x1) == (-0.5, 19.5)
    held = [by_gid(figure, f"held out reward/{objective}")[0].get_ydata()[0] for objective in "FH"]
    assert held == [0.5, -0.3] and not by_gid(figure, "held out")


@pytest.mark.parametrize("fonts", [[], ["DejaVuSans"], ["NotoSansCJK-Regular"]])
def test_a_chinese_font_is_one_that_has_the_letters(monkeypatch, fonts):
    files = [path for path in findSystemFonts() if Path(path).stem in fonts]
    monkeypatch.setattr("grpo_lab.ui.plots.style.findSystemFonts", lambda: files)
    found = style.chinese_font.__wrapped__()
    assert bool(found) == any("CJK" in path for path in files)
    if found:
        assert all(get_font(findfont(found)).get_char_index(ord(letter)) for letter in "梯度爆炸，比率")


@pytest.mark.parametrize("link", LINKS)
def test_a_group_shows_the_first_break_of_each_of_its_links(link):
    """Four rows hide no break: its frame is around the group, and the group is broken."""
    screen = fold([START, stepped(0, broken=["loss"]), DONE])
    assert screen.first_break
    row = {**dict.fromkeys(LINKS, "healthy"), link: "broken"}
    broken = dataclasses.replace(screen.first_break, link=link, step=3)
    screen = dataclasses.replace(screen, first_break=broken, statuses={n: {} for n in range(3)} | {3: row})
    axes = style.new_figure(4).add_subplot()
    strip.draw(axes, screen, (0, 8), grouped=True)
    (frame,) = [each for each in axes.patches if isinstance(each, Rectangle) and each.get_gid() == "first break"]
    rows = [n for n, name in enumerate(LINKS) if frame.get_y() < n < frame.get_y() + frame.get_height()]
    assert link in [list(LINKS)[n] for n in rows]
    cells, _ = strip.grid(screen, 0, 8, grouped=True)
    inside = cells[rows[0] : rows[-1] + 1, 3]
    assert (inside == list(STATUSES).index("broken")).all()
    assert (cells[:, 3] == list(STATUSES).index("broken")).sum() == frame.get_height()
