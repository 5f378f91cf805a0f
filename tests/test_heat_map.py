"""The heat map has a row for each scenario and a column for each set of guards, and says in marks what colours say."""

import itertools
import math

import numpy as np
import pytest
from matplotlib.text import Text

from grpo_lab.analysis.matrix import HEALTHY, Fate, Findings, Measurement, columns
from grpo_lab.config.catalog import scenario_names
from grpo_lab.ui import plots
from grpo_lab.ui.plots import LETTERS, mark


def result(scenario, column, seed=0, fate="stopped", refused=0):
    numbers = {"finished": 30, "refused": refused, "changed": 0, "updates": 30, "grad_norm": 1.0, "seconds": 0.1}
    ends = {"status": "done", "crash": "", "message": "", "survived": True, "shown": False}
    links = {"first_break": "", "caught_by": "", "before": 0.3, "after": 0.4, "asked": 30}
    names = {"key": f"{scenario} {column} {seed}", "guards": column}
    return Measurement(scenario=scenario, column=column, seed=seed, fate=fate, **names, **ends, **links, **numbers)


def table(scenario, **fates):
    return [
        result(scenario, column, seed, fate)
        for column, words in fates.items()
        for seed, fate in enumerate(words.split())
    ]


SMALL = [
    *(result(HEALTHY, column, seed) for column in ("none", "warm_up", "stable") for seed in range(3)),
    *(result(HEALTHY, "skip_spikes", seed, refused=seed) for seed in range(3)),
    *table(
        "a",
        none="crashed crashed crashed",
        warm_up="crashed crashed shown",
        skip_spikes="stopped refused refused",
        stable="stopped stopped stopped",
    ),
    *table(
        "b",
        none="stopped stopped stopped",
        warm_up="stopped halted halted",
        skip_spikes="stopped stopped stopped",
        stable="idle idle idle",
    ),
]


def cells(figure, gid):
    """The numbers that the colours of a part of the figure stand for, or None without it."""
    found = [artist for artist in figure.findobj() if artist.get_gid() == gid]
    return found[0].get_array().filled(math.nan) if found else None


def texts(figure):
    return [text.get_text() for text in figure.findobj(Text)]


def test_rows_are_scenarios_and_columns_are_guards():
    figure = plots.heat_map_figure(Findings(SMALL))
    main = next(axes for axes in figure.axes if len(axes.get_yticks()) == 2)
    assert [label.get_text() for label in main.get_yticklabels()] == ["a", "b"]
    upper = next(axes for axes in figure.axes if axes is not main)
    assert [label.get_text() for label in upper.get_yticklabels()] == ["healthy: false alarms"]
    assert [label.get_text() for label in upper.get_xticklabels()] == ["none", "warm_up", "stable", "skip_spikes"]


def test_colours_are_the_share_of_seeds_in_which_it_was_stopped():
    shares = cells(plots.heat_map_figure(Findings(SMALL)), "cells")
    assert shares is not None
    np.testing.assert_allclose(shares, [[0, 0, 1, 1 / 3], [math.nan, 0, 0, math.nan]])


def test_each_cell_says_it_without_colour_too():
    found = Findings(SMALL)
    marks = [[mark(found, name, column) for column in found.columns] for name in found.scenarios]
    assert marks == [["x", "x", "3", "1"], ["–", "h", "i", "–"]]
    said = texts(plots.heat_map_figure(found))
    assert all(said.count(letter) >= 1 for letter in ("x", "h", "i", "3", "1", "–"))
    assert any(all(f"{letter} {fate}" in text for fate, letter in LETTERS.items()) for text in said)
    assert set(LETTERS) == set(Fate) - {Fate.STOPPED}


def test_false_alarms_have_a_row_of_their_own():
    figure = plots.heat_map_figure(Findings(SMALL))
    alarms = cells(figure, "alarms")
    assert alarms is not None and alarms.tolist() == [[0, 0, 0, 1]]
    assert texts(figure).count("3") == 2, "three refused steps, and three seeds stopped"
    assert cells(plots.heat_map_figure(Findings(table("a", none="crashed"))), "alarms") is None


def test_the_whole_matrix_is_legible(tmp_path):
    """Every scenario and every column there is: no text over another."""
    names = [HEALTHY, *scenario_names()]
    found = Findings([result(name, column, seed) for name in names for column in columns() for seed in range(3)])
    figure = plots.heat_map_figure(found)
    assert plots.save(figure, tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    width, height = figure.canvas.get_width_height()  # type: ignore[attr-defined]
    for axes in figure.axes:
        for labels in (axes.get_yticklabels(), axes.get_xticklabels()):
            boxes = [label.get_window_extent() for label in labels if label.get_text()]
            assert all(box.x0 >= 0 and box.x1 <= width and box.y0 >= 0 and box.y1 <= height for box in boxes)
            assert not any(one.overlaps(other) for one, other in itertools.pairwise(boxes))


@pytest.mark.parametrize("results", [[], SMALL[:12], table("a", none="crashed"), table("a $ 运行 " * 9, none="shown")])
def test_anything_can_be_drawn(tmp_path, results):
    found = Findings(results)
    assert plots.save(plots.heat_map_figure(found), tmp_path / "a.png").exists()
