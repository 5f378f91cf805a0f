"""Frames as PNG with a fixed palette: one byte a pixel takes half the bytes of RGB and a quarter of its time.

A dark theme gets the same pixels with another palette.
"""

import functools
import io
from collections.abc import Mapping

import numpy as np
from matplotlib.colors import to_rgb
from PIL import Image

from grpo_lab.ui.plots import style

_INKS = (
    *(style.BLACK, style.ORANGE, style.SKY, style.GREEN, style.YELLOW),
    *(style.BLUE, style.VERMILLION, style.PURPLE, style.GREY),
)
_DARK_INKS = {style.BLACK: "#E4E4E4", style.BLUE: "#4DA6E0", style.GREY: "#A5A5A5", style.VERMILLION: "#F07A2A"}
"""Inks that a dark page needs lighter."""
_DARK = {"#FFFFFF": "#212121", "#DDDDDD": "#3C3C3C", "#DCDCDC": "#474747", "#333333": "#D0D0D0", "#FFCCA0": "#9C5A30"}
"""White becomes the background of JupyterLab's dark theme; other plain colours with it."""
_SHADES = 16
"""Steps from an ink to white, for the edges of lines and letters.

With 20 or more, Pillow's colour cache maps white to the nearest tint, and the background turns pink.
"""


def png(rgba: np.ndarray, dark: bool = False) -> bytes:
    """The pixels, (height, width, 4) of uint8, as an indexed PNG; every colour becomes a near one of the palette."""
    height, width = rgba.shape[:2]
    palette, darkened = _palettes()
    image = Image.frombytes("RGB", (width, height), rgba, "raw", "RGBX")
    image = image.quantize(palette=palette, dither=Image.Dither.NONE)
    if dark:
        image.putpalette(darkened)
    buffer = io.BytesIO()
    image.save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


@functools.cache
def _palettes() -> tuple[Image.Image, bytes]:
    """Inks in all shades, and every colour of lines and cells as it is; white first, so that it wins a tie.

    The second palette has the colour for a dark page at each place.
    """
    looks = (*style.RUNS, *style.MARKS.values())
    plain = [*style.STATUSES.values(), *(look.colour for look in looks), "#DDDDDD", "#333333", "#FFFFFF"]
    shades = np.linspace(0, 1, _SHADES)[:, None]

    def table(inks: Mapping[str, str], others: Mapping[str, str]) -> np.ndarray:
        paper = np.array(to_rgb(others.get("#FFFFFF", "#FFFFFF")))
        shaded = [shades * paper + (1 - shades) * np.array(to_rgb(inks.get(ink, ink))) for ink in _INKS]
        whole = [[to_rgb(others.get(name) or inks.get(name, name))] for name in plain]
        return np.round(255 * np.concatenate([*shaded, *whole])).astype(np.uint8)

    light, places = np.unique(table({}, {}), axis=0, return_index=True)
    image = Image.new("P", (1, 1))
    image.putpalette(light[::-1].tobytes())
    return image, table(_DARK_INKS, _DARK)[places[::-1]].tobytes()
