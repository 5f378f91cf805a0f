"""Frames as PNG: one byte a pixel, because a figure has few colours and a palette costs a third of RGB to pack."""

from __future__ import annotations

import functools
import struct
import zlib

import numpy as np
from matplotlib.colors import to_rgb

from grpo_lab.ui.plots.style import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    MARKS,
    ORANGE,
    PURPLE,
    RUNS,
    SKY,
    STATUSES,
    VERMILLION,
    YELLOW,
)

_INKS = (BLACK, ORANGE, SKY, GREEN, YELLOW, BLUE, VERMILLION, PURPLE, GREY)
_SHADES = 24
"""Steps from an ink to white: what the edge of a line or a letter looks like."""


def png(rgba: np.ndarray) -> bytes:
    """The pixels, (height, width, 4) of uint8, as an indexed PNG; every colour becomes the nearest of the palette."""
    height, width = rgba.shape[:2]
    palette, nearest = _palette()
    pixels = np.ascontiguousarray(rgba).view("<u4")[..., 0]  # alpha, blue, green, red, from the highest byte
    index = ((pixels >> 3) & 0x1F) | ((pixels >> 6) & 0x3E0) | ((pixels >> 9) & 0x7C00)
    rows = np.zeros((height, 1 + width), np.uint8)  # each begins with its filter: none
    rows[:, 1:] = np.take(nearest, index)
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    parts = {b"IHDR": header, b"PLTE": palette.tobytes(), b"IDAT": zlib.compress(rows.data, 1), b"IEND": b""}
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, data) for name, data in parts.items())


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


@functools.cache
def _palette() -> tuple[np.ndarray, np.ndarray]:
    """Inks and greys in all shades, (n, 3); and for each 15-bit colour the nearest of them."""
    shades = np.linspace(0, 1, _SHADES)[:, None]
    colours = np.concatenate([shades + (1 - shades) * np.array(to_rgb(ink)) for ink in _INKS] + [_plain()])
    palette = np.unique(np.round(255 * colours).astype(np.uint8), axis=0)
    levels = np.arange(32, dtype=np.float32) * 255 / 31
    cube = np.stack(np.meshgrid(levels, levels, levels, indexing="ij")[::-1], -1).reshape(-1, 3)  # red in the low bits
    own = palette.astype(np.float32)
    distance = (own**2).sum(1) - 2 * cube @ own.T
    return palette, distance.argmin(1).astype(np.uint8)


def _plain() -> np.ndarray:
    """Every colour that lines and cells are drawn in, as it is."""
    names = [*STATUSES.values(), *(look.colour for look in (*RUNS, *MARKS.values())), "#DDDDDD", "#333333", "white"]
    return np.array([to_rgb(name) for name in names])
