"""Small pieces that the widgets of a panel share."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import ipywidgets


class Muted:
    """True inside its `with` block, where the program itself changes inputs, so that their callbacks ignore that.

    A callback in another thread waits for the end of the block, so that no change by a user is lost.

    >>> muted = Muted()
    >>> with muted:
    ...     print(bool(muted))
    True
    >>> bool(muted)
    False
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._depth = 0

    def __enter__(self) -> None:
        self._lock.acquire()
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        self._lock.release()

    def __bool__(self) -> bool:
        with self._lock:
            return self._depth > 0


def by_user(widget: Any, muted: Muted, action: Callable[[Any], object]) -> None:
    """Call the action with each value that a user gives the widget."""
    widget.observe(lambda change: muted or action(change["new"]), "value")


def button(name: str, description: str, action: Callable[[], object], **options: Any) -> ipywidgets.Button:
    """A button of the CSS class grpo-lab-<name>."""
    made = ipywidgets.Button(description=description, **{"layout": {"width": "auto"}, **options})
    made.on_click(lambda _: action())
    return made.add_class(f"grpo-lab-{name}")


def box(name: str, children: Sequence[Any], kind: Any = ipywidgets.HBox) -> Any:
    """A row, or another `kind` of box, of the CSS class grpo-lab-<name>."""
    return kind(children).add_class(f"grpo-lab-{name}")


def words(name: str, value: str = "") -> ipywidgets.HTML:
    """A text of the CSS class grpo-lab-<name>."""
    return ipywidgets.HTML(value).add_class(f"grpo-lab-{name}")
