"""Frames as PNG with a fixed palette: one byte a pixel takes half the bytes of RGB and a quarter of its time."""

import functools
import io

import numpy as np
from matplotlib.colors import to_rgb
from PIL import Image

from grpo_lab.ui.plots import style

_INKS = (
    *(style.BLACK, style.ORANGE, style.SKY, style.GREEN, style.YELLOW),
    *(style.BLUE, style.VERMILLION, style.PURPLE, style.GREY),
)
_SHADES = 16
"""Steps from an ink to white, for the edges of lines and letters.

With 20 or more, Pillow's colour cache maps white to the nearest tint, and the background turns pink.
"""


def png(rgba: np.ndarray) -> bytes:
    """The pixels, (height, width, 4) of uint8, as an indexed PNG; every colour becomes a near one of the palette."""
    height, width = rgba.shape[:2]
    image = Image.frombytes("RGB", (width, height), rgba, "raw", "RGBX")
    buffer = io.BytesIO()
    image.quantize(palette=_palette(), dither=Image.Dither.NONE).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


@functools.cache
def _palette() -> Image.Image:
    """Inks in all shades, and every colour of lines and cells as it is; white first, so that it wins a tie."""
    looks = (*style.RUNS, *style.MARKS.values())
    plain = [*style.STATUSES.values(), *(look.colour for look in looks), "#DDDDDD", "#333333", "white"]
    shades = np.linspace(0, 1, _SHADES)[:, None]
    colours = [shades + (1 - shades) * np.array(to_rgb(ink)) for ink in _INKS] + [[to_rgb(name)] for name in plain]
    image = Image.new("P", (1, 1))
    image.putpalette(np.unique(np.round(255 * np.concatenate(colours)).astype(np.uint8), axis=0)[::-1].tobytes())
    return image
