"""Guards by a text: the one way in which commands name them."""

from typing import Any

from grpo_lab.config.catalog import preset, preset_names
from grpo_lab.config.schema import Switches
from grpo_lab.errors import ConfigError


def guards_named(text: str) -> Switches:
    """The guards that a text names: names, presets and `file.py:Mine` with commas between them, or `none`.

    A guard has the settings that preset `stable` gives it, and one of a preset those of the preset. Raises ConfigError
    for a text without a name, such as that of an empty variable of a shell: `none` asks for a run without guards.

    >>> list(guards_named("original, warm_up")), guards_named("none")
    (['clip_gradients', 'warm_up'], {})
    """
    if not text.replace(",", "").strip():
        raise ConfigError(f"guards {text!r}: no name; give names of guards or presets, or none")
    stable, found = preset("stable").guards, dict[str, Any]()
    for name in (part.strip() for part in text.split(",")):
        if name in preset_names() or name.endswith(".toml"):
            found |= preset(name).guards
        elif name not in ("", "none"):
            found[name] = dict(stable.get(name, {}))
    return found
