"""The live figure without a browser: what is drawn, when and by whom, and that a long run costs little more."""

import io
import itertools
import math
import threading
import time
from typing import Any

import numpy as np
import pytest
from matplotlib.text import Text
from PIL import Image

from grpo_lab.analysis.run_state import CURVES, Fold, fold
from grpo_lab.config.schema import Config
from grpo_lab.core.hooks import Action, Verdict
from grpo_lab.events import Changed, Ended, Evaluated, Forked, LinkNote, Started, Stepped
from grpo_lab.runs.crashes import classify_crash
from grpo_lab.ui import plots
from grpo_lab.ui.plots.style import MARKS, chinese_font
from grpo_lab.ui.widgets import live
from grpo_lab.ui.widgets.controls import History, Timeline
from grpo_lab.ui.widgets.live import LiveFigure, RenderThread
from grpo_lab.ui.widgets.parts import Muted

LINKS = ("probabilities", "loss", "gradients", "weights")


def started(steps=30, *overrides):
    return Started(Config().with_(f"run.num_steps={steps}", *overrides).to_dict(), 1, "cpu")


def stepped(step, verdict=Verdict.KEEP, broken=False, **metrics):
    values = {"grad_norm": 2.0 + math.sin(step), "kl": 0.1, "reward": 0.5, "ratio/max": 1.5, **metrics}
    links = tuple(LinkNote(name, 0, 1.0, float(broken), 8) for name in LINKS)
    actions = (Action("skip_spikes", "guard", "gradients", 0, verdict, "grad norm 812 > 10"),) * (
        verdict != Verdict.KEEP
    )
    return Stepped(step, 1, verdict, values, links, actions)


def line(figure, name, gid) -> Any:
    return figure._lines[name][gid]


def pixels(figure, events, *rest):
    return np.array(figure.draw(fold(events), *(rest or ({},))))


EVENTS = [started(), *(stepped(step) for step in range(12))]
STORY = [
    *EVENTS,
    stepped(12, Verdict.SKIP_STEP, grad_norm=812.0),
    Changed(13, ("guards.clip_gradients.max_norm=0.5",)),
    stepped(13, broken=True, grad_norm=math.nan, kl=math.inf),
    stepped(14, kl=30.0),
    Ended("done"),
]


def test_a_step_moves_pixels_and_no_background():
    figure = LiveFigure()
    pictures = [pixels(figure, EVENTS[:count]) for count in range(8, 13)]
    assert figure.backgrounds == 1
    assert all((one != other).any() for one, other in itertools.pairwise(pictures))
    assert (pixels(figure, EVENTS[:12]) == pictures[-1]).all()


@pytest.mark.slow
def test_what_moved_there_looks_as_if_drawn_anew():
    figure = LiveFigure()
    for count in range(1, len(STORY) + 1):
        moved = pixels(figure, STORY[:count])
        if count in (9, len(STORY)):
            assert (moved == pixels(LiveFigure(), STORY[:count])).all(), count
    assert figure.backgrounds < 10


def test_on_a_dark_page_the_same_pixels_have_other_colours():
    def colours(half):
        return np.asarray(Image.open(io.BytesIO(half)).convert("RGB")).reshape(-1, 3)

    figure = LiveFigure()
    light = colours(figure.halves(fold(STORY))[1])
    figure.dark = True
    dark = colours(figure.halves(fold(STORY))[1])
    assert tuple(light[0]) == (255, 255, 255) and tuple(dark[0]) == (33, 33, 33)  # JupyterLab's dark background
    letters = np.flatnonzero(light.sum(1) == 0)
    assert len(letters) and dark[letters].min() > 200, "black letters become light ones"
    green = np.flatnonzero((light == [0, 158, 115]).all(1))
    assert len(green) and (dark[green] == [0, 158, 115]).all(), "healthy stays green"


def test_two_halves_are_the_whole_figure():
    figure = LiveFigure()
    whole, halves = figure.png(fold(STORY)), figure.halves(fold(STORY))
    pixels = [np.asarray(Image.open(io.BytesIO(each)).convert("RGB")) for each in (whole, *halves)]
    drawn = np.array(figure.draw(fold(STORY)))[..., :3]
    assert np.abs(pixels[0].astype(int) - drawn).mean() < 3, "a palette holds the colours of the figure"
    assert (np.concatenate(pixels[1:], axis=1) == pixels[0]).all()
    assert [each.shape[1::-1] for each in pixels[1:]] == list(figure.sizes)


def test_a_point_of_a_half_has_a_metric_a_step_and_a_value():
    figure = LiveFigure()
    assert figure.place("curves", 0.2, 0.2) is None, "nothing is drawn yet"
    figure.draw(fold(STORY))
    (cut, high), (rest, _) = figure.sizes
    for name, at in (("reward", (9, 0.5)), ("grad_norm", (12, 812.0)), ("strip", (3, 0))):
        x, y = figure._axes[name].transData.transform(at)
        half, x = ("chain", (x - cut) / rest) if name == "strip" else ("curves", x / cut)
        found = figure.place(half, x, 1 - y / high)
        assert found and (found[0], *map(lambda value: float(f"{value:.5g}"), found[1:])) == (name, *at)
    assert figure.place("curves", 0.5, 0.5) is None, "between the axes"


@pytest.mark.parametrize("language", ["en", "zh"])
def test_no_words_of_a_curve_lie_over_each_other(monkeypatch, language):
    """Titles and legends share a line; in English the legend once lay over the title."""
    monkeypatch.setenv("GRPO_LAB_LANG", language)
    figure = LiveFigure()
    limits = ("guards.clip_gradients.max_norm=1", "guards.skip_spikes.threshold=10")
    steps = [stepped(step, grad_norm=math.nan, kl=math.inf, reward=math.nan) for step in range(3)]
    infinite = stepped(3, Verdict.KEEP, False, **{"ratio/max": math.inf})
    clip = (Action("clip_gradients", "guard", "gradients", 0, Verdict.CHANGED, "2 > 1"),)
    every_mark = [
        Stepped(4, 1, Verdict.CHANGED, {}, (), clip),
        *(stepped(5 + step, verdict) for step, verdict in enumerate(list(Verdict)[1:])),
        Changed(9, ("loss.beta=0.1",)),
        Forked(5, 13, "a fork", parent="other", at=10),
        Ended("crashed", "it", classify_crash("?")),
    ]
    screen = fold([started(30, *limits), Evaluated(0, 0.3, 8), *steps, infinite, *every_mark])
    assert screen.kinds() == set(MARKS)
    figure.draw(screen, {})
    renderer = figure._canvas.get_renderer()
    cut = figure.sizes[0][0]
    for name in CURVES:
        axes = figure._axes[name]
        legend = axes.get_legend()
        assert legend is not None, name
        title = axes.title if axes.get_title() else axes._left_title  # type: ignore[attr-defined]
        boxes = [title.get_window_extent(renderer), legend.get_window_extent(renderer)]
        assert not boxes[0].overlaps(boxes[1]), name
        assert boxes[1].x1 <= cut and boxes[1].y1 <= figure.sizes[0][1], f"{name}: the legend is cut off"
    strip_legend = figure._figure.legends[-1].get_window_extent(renderer)
    assert strip_legend.x0 >= cut and strip_legend.y1 <= figure.sizes[0][1], "the legend of the chain is cut off"


def test_overlays_are_named_and_their_curves_and_held_out_rewards_stay():
    kept_steps = [stepped(step, reward=0.9) for step in range(20)]
    kept = {"unguarded": fold([started(), Evaluated(0, 0.25, 8), *kept_steps, Evaluated(20, 0.45, 8)])}
    figure, now = LiveFigure(), [started(), Evaluated(0, 0.3, 8), *EVENTS[1:]]
    pixels(figure, now[:6], kept)
    pixels(figure, now[:7], kept)
    assert figure.backgrounds == 1
    (legend, *_) = figure._figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["this run", "unguarded"]
    old, new = [each for each in figure._axes["reward"].lines if each.get_gid() == "curve reward"]
    assert [np.size(each.get_xdata()) for each in (old, new)] == [20, 5]
    assert (old.get_color(), old.get_linestyle()) != (new.get_color(), new.get_linestyle())
    old, new = [each for each in figure._axes["reward"].lines if each.get_gid() == "held out"]
    assert [np.array(each.get_ydata()).tolist() for each in (old, new)] == [[0.25, 0.45], [0.3]]
    assert old.get_alpha() is not None and new.get_alpha() is None, "the other run's are faded"


@pytest.fixture(scope="module")
def long_run():
    """Ten thousand steps, every third one refused, with a spike in one."""
    folded = Fold()
    folded.add(started(10_000))
    for step in range(10_000):
        folded.add(
            stepped(step, Verdict.SKIP_STEP if step % 3 == 0 else Verdict.KEEP, grad_norm=1e9 if step == 7777 else 2.0)
        )
    return folded


def test_a_spike_of_one_step_among_ten_thousand_is_drawn(long_run):
    figure = LiveFigure()
    screen = long_run.screen()
    figure.draw(screen, {})
    for name in CURVES:
        assert len(line(figure, name, f"curve {name}").get_xdata()) <= 600
    x, y = line(figure, "grad_norm", "curve grad_norm").get_data()
    assert max(y) == 1e9
    assert x[np.argmax(y)] == 7777
    assert len(line(figure, "grad_norm", "mark skipped").get_xdata()) <= 600
    cells: Any = figure._axes["strip"].images[0].get_array()
    assert cells.shape[1] <= 600
    assert len(figure.png(screen)) < 200_000


@pytest.mark.parametrize("font", ["", None])
def test_in_chinese_where_there_is_a_font_and_in_english_where_not(monkeypatch, font):
    monkeypatch.setenv("GRPO_LAB_LANG", "zh")
    if font is not None:
        monkeypatch.setattr("grpo_lab.ui.widgets.live.chinese_font", lambda: font)
    figure = LiveFigure()
    figure.draw(fold(STORY), {"原始": fold(STORY)})  # a letter without a font would be a warning, and that an error
    title = figure._axes["grad_norm"].get_title(loc="left")
    english = font == "" or not chinese_font()
    assert (title == "gradient norm") == english
    assert figure._figure.legends[0].get_texts()[1].get_text() == ("??" if english else "原始")


@pytest.fixture
def fast(monkeypatch):
    monkeypatch.setattr(live, "FRAMES_PER_SECOND", 1000.0)


def test_requests_within_a_frame_are_drawn_once_and_the_last_is_drawn(fast):
    seen, begun, gate, value = [], threading.Event(), threading.Event(), [0]

    def render(_):
        seen.append(value[0])
        begun.set()
        return not gate.wait(60)

    each = RenderThread(render)
    each.request()
    assert begun.wait(60)
    for number in range(1, 100):
        value[0] = number
        each.request()
    gate.set()
    assert each.settle()
    assert seen == [0, 99]


def test_time_goes_back_and_is_played(monkeypatch):
    moved, now = [], [0.0]
    monkeypatch.setattr("grpo_lab.ui.widgets.controls.time.monotonic", lambda: now[0])
    timeline = Timeline(Muted(), lambda: moved.append(timeline.position))
    timeline.load(History(STORY))
    assert (timeline.length, timeline.position, timeline.screen().status) == (15, 15, "done, learned nothing")
    timeline.slider.value = 3
    assert moved == [3]
    assert repr(timeline.screen()) == repr(fold(STORY[:4]))
    timeline.play(2)
    now[0] += 2.4
    assert timeline.tick()
    assert (timeline.position, timeline.slider.value) == (7, 7)
    assert repr(timeline.screen()) == repr(fold(STORY[:8]))
    timeline.slider.value = 0
    assert not timeline.playing
    assert repr(timeline.screen()) == repr(fold(STORY[:1]))
    timeline.play(50)
    now[0] += 100
    assert timeline.tick()
    assert (timeline.position, timeline.playing) == (15, False)
    assert not timeline.tick()
    assert timeline.screen().over
    timeline.play(1)  # at the end it begins again
    assert timeline.position == 0


def test_two_threads_never_draw_letters_at_once(monkeypatch, tmp_path):
    """Two threads that open a font at once break FreeType: a panel drew while a cell opened another one."""
    inside, overlaps, draw = set(), [], Text.draw

    def watched(self, renderer):
        inside.add(threading.get_ident())
        time.sleep(0.001)  # let another thread go on
        overlaps.append(len(inside) > 1)
        draw(self, renderer)
        inside.discard(threading.get_ident())

    monkeypatch.setattr(Text, "draw", watched)
    ways = [lambda: LiveFigure().png(fold(STORY)), lambda: plots.save(plots.run_figure(STORY), tmp_path / "a.png")]
    threads = [threading.Thread(target=way) for way in ways]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tmp_path / "a.png").exists()
    assert overlaps
    assert not any(overlaps)
