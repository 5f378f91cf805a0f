"""The cost of the live panel: the same run in turn with a panel and headless.

Both are trained by a warm child on the same number of threads. The panel's pictures go nowhere here, but they are
drawn, packed and handed over as in a notebook; what a browser does with them comes on top.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.timing import QUICK, Plan, settle, spread
from grpo_lab.config.schema import Config
from grpo_lab.events import Stepped
from grpo_lab.runs import child as child_pool
from grpo_lab.runs.session import Session
from grpo_lab.ui import notebook_mode
from grpo_lab.ui.widgets.panel import Panel

_FIRST_PLOT = """
import time, json; begin = time.perf_counter()
from unittest import mock; from grpo_lab.runs import child as child_pool
from grpo_lab.ui import notebook_mode
with mock.patch.object(notebook_mode, "headless", lambda: False):
    from grpo_lab.ui.widgets import Panel
    panel = Panel("cuda-001", runs=RUNS); panel._repr_mimebundle_(); panel.frames.settle(60)
    drawn = time.perf_counter() - begin
    panel.start()
    while not any(type(event).__name__ == "Stepped" for event in panel.session.events): time.sleep(0.01)
    panel.frames.settle(60)
    print(json.dumps({"panel drawn": drawn, "first step drawn": time.perf_counter() - begin}))
    panel._runner.over.result(60); child_pool._close_all()
"""


def measure(threads: int, plan: Plan) -> dict[str, Any]:
    """Step times live and headless, frames, Stop, and the time to the first plot."""
    config = settle().with_(f"run.num_steps={20 * plan.steps}", f"run.threads={threads}")
    with tempfile.TemporaryDirectory() as home:
        found = _in_turn(config, plan.blocks, Path(home))
        found["stop"] = _stop(config.with_("run.num_steps=100000"), plan.blocks, Path(home))
        found["first plot, s"] = _first_plot(Path(home))
    if plan == QUICK:
        return found
    path = Path("benchmarks/results/live_panel.json")
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    path.write_text(json.dumps({**known, f"{threads} threads": found}, indent=2) + "\n", encoding="utf-8")
    return found


def _in_turn(config: Config, rounds: int, folder: Path) -> dict[str, Any]:
    """The same run live and headless, in an order that changes every round."""
    rows: dict[str, list[dict[str, float]]] = {"live": [], "headless": []}
    frames: list[dict[str, float]] = []
    with child_pool.warm_child() as child:
        child.ready()
        pid = child.process.pid
    for turn in range(rounds):
        for name in ("live", "headless") if turn % 2 else ("headless", "live"):
            begin, cpu = time.perf_counter(), _processor_time(pid)
            if name == "live":
                session, drawn = _live(config, folder / "live")
                frames.append(drawn)
            else:
                with child_pool.warm_child() as child:
                    session = Session(config, folder / f"headless-{turn}", child=child).run()
            total = time.perf_counter() - begin
            rows[name].append({"total": total, "step": _step(session), "cpu": _processor_time(pid) - cpu})
    found: dict[str, Any] = {
        f"panel live / headless, {what}": {"wall": _ratio(rows, what), "cpu": _ratio(rows, "cpu")}
        for what in ("step", "total")
    }
    found["seconds"] = {
        name: {what: round(statistics.median(row[what] for row in all_of), 4) for what in all_of[0]}
        for name, all_of in rows.items()
    }
    found["frames"] = {key: round(statistics.median(row[key] for row in frames), 2) for key in frames[0]}
    return found


def _processor_time(pid: int) -> float:
    """Seconds of processor time that a process has used so far, from /proc."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _live(config: Config, runs: Path) -> tuple[Session, dict[str, float]]:
    """A run in a panel that is shown, and its frames."""
    with mock.patch.object(notebook_mode, "headless", lambda: False):
        panel = Panel(config, runs=runs)
    times, sizes, stamps = [], [], []
    draw = panel.figure.halves

    def timed(*screens: Any) -> tuple[bytes, bytes]:
        begin = time.perf_counter()
        picture = draw(*screens)
        times.append(time.perf_counter() - begin)
        sizes.append(sum(map(len, picture)))
        stamps.append(begin)
        return picture

    panel.figure.halves = timed  # type: ignore[method-assign]
    panel.start()
    session = panel._runner.over.result()  # type: ignore[union-attr]
    panel.frames.settle()
    backgrounds = panel.figure.backgrounds
    moved = sorted(times)[: max(1, len(times) - backgrounds)]
    return session, {
        "frames": len(times),
        "frames a second": (len(stamps) - 1) / (stamps[-1] - stamps[0]),
        "ms a frame": 1000 * statistics.median(moved),
        "ms a background": 1000 * statistics.median(sorted(times)[-backgrounds:]),
        "backgrounds": backgrounds,
        "bytes a frame": statistics.median(sizes),
    }


def _step(session: Session) -> float:
    """Median seconds of a step, without the first three."""
    return statistics.median(event.metrics["step_time"] for event in session.events[4:] if isinstance(event, Stepped))


def _ratio(rows: dict[str, list[dict[str, float]]], what: str) -> dict[str, float]:
    pairs = list(zip(rows["live"], rows["headless"], strict=True))
    found = spread([live[what] / headless[what] for live, headless in pairs])
    fastest = min(live[what] for live, _ in pairs) / min(headless[what] for _, headless in pairs)
    return {**found, "fastest": round(fastest, 4)}


def _stop(config: Config, rounds: int, folder: Path) -> dict[str, Any]:
    """Steps that end after Stop was pressed, and the seconds until the run is over."""
    after, seconds = [], []
    for _ in range(max(3, rounds // 3)):
        with mock.patch.object(notebook_mode, "headless", lambda: False):
            panel = Panel(config, runs=folder / "stop")
        panel.start()
        session = panel.session
        assert session is not None
        while sum(isinstance(event, Stepped) for event in session.events) < 5:
            time.sleep(0.005)
        begin, done = time.perf_counter(), len(session.events)
        panel.stop()
        panel._runner.over.result()  # type: ignore[union-attr]
        seconds.append(time.perf_counter() - begin)
        after.append(sum(isinstance(event, Stepped) for event in session.events[done:]))
    return {"steps after": after, "seconds": round(statistics.median(seconds), 3)}


def _first_plot(folder: Path) -> dict[str, float]:
    """Seconds from `import grpo_lab` in a new process to the first drawn panel, and to its first drawn step."""
    code = f"RUNS = {str(folder / 'first')!r}\n{_FIRST_PLOT}"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return {name: round(value, 2) for name, value in json.loads(done.stdout.splitlines()[-1]).items()}
