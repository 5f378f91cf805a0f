"""The IPython extension of the kernel that `grpo-lab labs open` gives JupyterLab; it imports nothing that takes time.

Until a notebook's first cell has made its `Lab`, `%%exercise` says so; IPython alone would not know the magic.
"""

from typing import Any

from grpo_lab.errors import Unanswered

NAME = "exercise"
"""As `MAGIC` of the course, whose import takes seconds."""


def load_ipython_extension(shell: Any) -> None:
    """Register the magic; a `Lab` registers its own in its place."""
    shell.register_magic_function(exercise, "cell", NAME)


def exercise(line: str, cell: str) -> None:
    """Stand in for the magic of a lab. Raises Unanswered."""
    raise Unanswered(f"{line.strip()}: run the first code cell of this notebook, then this one")
