"""`python -m benchmarks.record_lecture`: train the runs of the lecture again and write them, without weights.

It prints the rows of the table in data/recordings/README.md.
"""

import math
import shutil
import tempfile
import warnings
from pathlib import Path
from typing import Annotated

import typer

from grpo_lab.events import Stepped
from grpo_lab.runs import run_folder
from grpo_lab.runs.outcome import outcome
from grpo_lab.runs.session import Session
from grpo_lab.ui.widgets.lecture import HEALTHY, SCENARIOS, recording, training


def main(
    only: Annotated[list[str] | None, typer.Option(help="One scenario, or `healthy`; may be given again.")] = None,
    out: Annotated[Path, typer.Option(envvar="OUT", help="Folder of the recordings.")] = Path("data/recordings"),
) -> None:
    """Train A and B of every scenario, and the healthy run; recordings of the same names are replaced."""
    warnings.simplefilter("ignore", UserWarning)  # a model with NaN weights is not saved, as expected here
    for name in only or (HEALTHY, *SCENARIOS):
        for healed in (False, True) if name != HEALTHY else (False,):
            folder = out / recording(name, healed)
            with tempfile.TemporaryDirectory() as scratch:
                session = Session(training(name, healed), Path(scratch) / "run").run()
                shutil.rmtree(folder, ignore_errors=True)
                dropped = shutil.ignore_patterns(run_folder.MODEL, run_folder.TRACEBACK, run_folder.LOCK)
                shutil.copytree(session.directory, folder, ignore=dropped)
            print(row(folder.name, session), flush=True)


def row(name: str, session: Session) -> str:
    """The recording's row: largest norm and end, link and step of the first break, held-out rewards."""
    steps = [event for event in session.events if isinstance(event, Stepped)]
    norms = {event.step: event.metrics.get("grad_norm", math.nan) for event in steps}
    finite = {step: norm for step, norm in norms.items() if math.isfinite(norm)}
    step = max(finite, key=lambda each: finite[each], default=0)
    course = f"norm {finite[step]:.4g} in step {step}" if finite else "no finite norm"
    course += f", crashes in {session.crash.operator} in step {steps[-1].step}" if session.crash else ""
    found, broken = outcome(session.events), session.first_break()
    rewards = "" if math.isnan(found.after) else f"{found.before:.3f} to {found.after:.3f}"
    return f"| `{name}` | {course} | {f'{broken.link}, step {broken.step}' if broken else 'none'} | {rewards} |"


if __name__ == "__main__":
    typer.run(main)
