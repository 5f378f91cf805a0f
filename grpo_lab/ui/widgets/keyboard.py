"""Keys pressed on a widget: handed to Python while anything inside the widget's frame has the focus."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import anywidget
import traitlets

_SCRIPT = """
// JupyterLab's own shortcuts stay out of an element that says data-lm-suppress-shortcuts. Of the keys typed into a
// number box, a menu, a slider or a button, only what it would not use itself is taken.
const typing = "input, textarea, select, [contenteditable=true], [contenteditable=plaintext-only]";
const used = (target, key) =>
  target.matches(typing) ||
  (target.matches("[role=slider]") && key.startsWith("Arrow")) ||
  (target.matches("button") && (key === " " || key === "Enter"));

function render({ model, el }) {
  el.classList.add("grpo-lab-keys");
  el.setAttribute("role", "note");
  for (const [key, what] of model.get("legend")) {
    const pair = el.appendChild(document.createElement("span"));
    pair.appendChild(document.createElement("kbd")).textContent = key;
    pair.append(" " + what);
  }
  const press = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || used(event.target, event.key)) return;
    if (!model.get("wanted").includes(event.key)) return;
    event.preventDefault();
    event.stopPropagation();
    model.send({ key: event.key });
  };
  // Who clicks a button with the mouse goes on with the keys: space must not press it again.
  const release = (event) => { if (event.detail > 0 && event.target.closest("button")) bound.focus(); };
  let bound = null;
  const bind = () => {
    const target = el.closest("." + model.get("frame"));
    if (!target?.isConnected) { waiting = requestAnimationFrame(bind); return; }
    bound = target;
    bound.tabIndex = 0;
    bound.dataset.lmSuppressShortcuts = "true";
    bound.addEventListener("keydown", press);
    bound.addEventListener("click", release);
    bound.focus({ preventScroll: true });
    bound.scrollIntoView({ block: "start" });
  };
  let waiting = requestAnimationFrame(bind);
  return () => {
    cancelAnimationFrame(waiting);
    bound?.removeEventListener("keydown", press);
    bound?.removeEventListener("click", release);
  };
}
export default { render };
"""
_STYLE = """
.grpo-lab-keys { display: flex; flex-wrap: wrap; gap: 0.2em 1.2em; color: var(--jp-ui-font-color1, #222); }
.grpo-lab-keys kbd { border: 1px solid currentColor; border-radius: 3px; padding: 0 0.35em; font-family: inherit; }
"""


class Keys(anywidget.AnyWidget):
    """A line that says which keys there are, and hears them wherever the focus is inside its frame.

    The frame takes the focus when it is shown.

    `actions` maps a key as browsers name it ("1", " ", "ArrowLeft") to what it does; `frame` is the CSS class of the
    widget around it. A number box keeps its digits, a slider its arrows, a focused button its space.
    """

    _esm = _SCRIPT
    _css = _STYLE
    legend = traitlets.List(traitlets.List(traitlets.Unicode())).tag(sync=True)
    """(key as people name it, what it does)."""
    frame = traitlets.Unicode().tag(sync=True)
    wanted = traitlets.List(traitlets.Unicode()).tag(sync=True)

    def __init__(
        self, actions: Mapping[str, Callable[[], object]], legend: Sequence[tuple[str, str]], frame: str
    ) -> None:
        super().__init__(wanted=list(actions), legend=[list(pair) for pair in legend], frame=frame)
        self._actions = dict(actions)
        self.on_msg(self._hear)

    def press(self, key: str) -> None:
        """Do what the key does; a key without an action does nothing."""
        if key in self._actions:
            self._actions[key]()

    def _hear(self, _: Any, content: Any, buffers: Any) -> None:
        self.press(str(content.get("key", "")))
