"""Objectives in the panels of curves: which curves there are, their looks, and the bands of the KL."""

import math
from collections.abc import Iterable, Mapping

from matplotlib.axes import Axes

from grpo_lab.analysis.run_state import Screen, Series, decimate
from grpo_lab.ui.plots import style


def rows_of(name: str, screen: Screen) -> list[Series]:
    """The decimated curves of one panel: of each objective, or of the run."""
    return [decimate(screen.series.get(own, Series())) for own in screen.curves(name)]


def looks_of(name: str, screen: Screen, run: style.Look | None, alone: style.Look) -> dict[str, style.Look]:
    """The look of each curve of a screen: objectives keep the colour and symbol of their `run` if there are several."""
    drawn = screen.curves(name)
    if not any(drawn.values()):
        return {name: alone}
    of_each = dict(zip(drawn, style.looks(drawn), strict=True))
    return {own: run._replace(line=look.line) if run else look for own, look in of_each.items()}


def draw_objectives(axes: Axes, name: str, screens: Mapping[str, Screen], end: int) -> bool:
    """Draw the KL bands of objectives and name their lines; whether there are any."""
    names = dict.fromkeys(each for screen in screens.values() for each in screen.curves(name).values() if each)
    for objective, look in zip(names, style.looks(names), strict=True):
        colour = look.colour if len(screens) == 1 else style.GREY
        marker = look.marker if len(screens) == 1 else "none"
        axes.plot([], [], color=colour, ls=look.line, marker=marker, ms=4.5, label=objective)
        spans = {screen.objectives.get(objective, ()) for screen in screens.values()} if name == "kl" else ()
        for bands in filter(None, spans):
            for (start, low, high), stop in zip(bands, [*(band.step for band in bands[1:]), end], strict=True):
                place = {"alpha": 0.16, "lw": 0, "zorder": 0.5, "gid": f"band {objective}"}
                axes.fill_between([start - 0.5, stop - 0.5], low, high, color=colour, **place)
            if not math.isnan(bands[-1].low):
                at = {"xycoords": axes.get_yaxis_transform(), "va": "center", "color": colour, "gid": "band words"}
                middle = (bands[-1].low + bands[-1].high) / 2
                style.annotate(axes, objective, (0.0, middle), right=True, gap=3, **at)
    return bool(names)


def held_out(screen: Screen) -> dict[str, Series]:
    """The held-out rewards beside each curve of the reward that has some."""
    found = {own: screen.evaluations_of.get(each, Series()) for own, each in screen.curves("reward").items() if each}
    return {own: held for own, held in (found or {"reward": screen.evaluations}).items() if held.steps}


def edges(name: str, screens: Iterable[Screen]) -> list[float]:
    """The numbers that the bands of the KL end at."""
    bands = [band for screen in screens for each in screen.objectives.values() for band in each if name == "kl"]
    return [edge for _, *ends in bands for edge in ends if not math.isnan(edge)]
