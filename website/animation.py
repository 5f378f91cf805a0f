"""The animation of the front page: one run twice, without a guard, and with one that saves it."""

import io
import tempfile
from collections.abc import Iterator
from pathlib import Path

from PIL import Image

from grpo_lab import messages
from grpo_lab.analysis.run_state import Screen, fold
from grpo_lab.config.catalog import scenario
from grpo_lab.config.schema import Config
from grpo_lab.events import Event, Stepped
from grpo_lab.runs.session import Session
from grpo_lab.ui.widgets.live import LiveFigure

GUARD = "sanitize_rewards"
STEPS, BREAKS_IN = 60, 20
"""Training steps of each run, and the step in which one reward is NaN."""
FRAME, LAST = 120, 4_000
"""Milliseconds of a frame, and of the last one."""
TIMES = 3
"""It plays so often and then rests, because a picture that moves for ever disturbs reading."""
LARGEST = 1_000_000
"""Bytes of the file at most."""
ALT = {
    "en": f"Two runs, step by step. In step {BREAKS_IN} one reward is NaN. Without a guard, norm and reward are "
    f"then NaN and the run crashes. With {GUARD} the second run passes this step under a mark with the guard's name, "
    "and its reward goes on rising.",
    "zh": f"两次运行，一步一步显示。第 {BREAKS_IN} 步有一个奖励是 NaN。没有防护时，"
    f"范数和奖励随之成为 NaN，运行崩溃。打开 {GUARD} 后，第二次运行在标有防护名称的记号之下通过这一步，"
    "奖励继续上升。",
}
"""The text of the animation, by its language."""


def config(guarded: bool) -> Config:
    """The run of the animation, with the guard or without any."""
    base = scenario("nan-reward").config()
    base = base.with_(f"run.num_steps={STEPS}", f"faults.nan_reward.at_step={BREAKS_IN}", "run.num_eval=200")
    return base.with_(f"guards.{GUARD}=on") if guarded else base


def write(folder: Path) -> None:
    """Train both runs and write the animation in every language as saved.<language>.png, an APNG.

    Raises ValueError for a file of more than `LARGEST` bytes.
    """
    with tempfile.TemporaryDirectory() as runs:
        alone, saved = (list(_trained(config(guarded), Path(runs) / str(guarded))) for guarded in (False, True))
    before = messages.language()
    for language in ALT:
        messages.use(language)
        frames = list(_frames(alone, saved))
        times = [FRAME] * (len(frames) - 1) + [LAST]
        path = folder / f"saved.{language}.png"
        frames[0].save(path, save_all=True, append_images=frames[1:], duration=times, loop=TIMES, optimize=True)
        if (size := path.stat().st_size) > LARGEST:
            raise ValueError(
                f"{path} has {size:,} bytes; at most {LARGEST:,} are allowed: draw fewer or smaller frames"
            )
    messages.use(before)


def _trained(config: Config, folder: Path) -> Iterator[Event]:
    yield from Session(config, folder).run().events


def _frames(alone: list[Event], saved: list[Event]) -> Iterator[Image.Image]:
    """The run without a guard up to its end; then the saved one, over it."""
    figure, whole = LiveFigure(), (fold(alone), fold(saved))
    for screen in _screens(alone):
        yield _image(figure.png(screen, whole=whole))
    for screen in _screens(saved):
        yield _image(figure.png(screen, {"no guard": whole[0]}, whole))


def _screens(events: list[Event]) -> Iterator[Screen]:
    """The screen after every second step, and at the end."""
    for place, event in enumerate(events):
        if isinstance(event, Stepped) and event.step % 2 == 0:
            yield fold(events[: place + 1])
    yield fold(events)


def _image(png: bytes) -> Image.Image:
    return Image.open(io.BytesIO(png))
