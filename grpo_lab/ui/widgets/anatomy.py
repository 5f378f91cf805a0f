"""The anatomy of a value as HTML: its numbers, their histogram, and the lines that computed it."""

import math

from grpo_lab.analysis.anatomy import Anatomy
from grpo_lab.messages import spoken
from grpo_lab.ui import html

_HIGH = 64
"""Pixels of the highest bar."""


class AnatomyView:
    """What a cell of the chain shows in a notebook, as text where there is no HTML."""

    def __init__(self, anatomy: Anatomy) -> None:
        self.anatomy = anatomy

    def __repr__(self) -> str:
        return str(self.anatomy)

    def _repr_html_(self) -> str:
        found, bars = self.anatomy, self.anatomy.bars()
        most = math.log1p(max((count for _, count in bars), default=0)) or 1.0
        heights = [(name, count, round(_HIGH * math.log1p(count) / most)) for name, count in bars]
        total = sum(count for _, count in bars)
        return html.fill("anatomy", found.title, found.rows(), spoken(found.explanation), heights, total, found.sources)
