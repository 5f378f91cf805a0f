"""Runs that a command begins or goes on with, shown in the terminal until they end."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from grpo_lab.cli.app import INTERRUPTED

if TYPE_CHECKING:
    from grpo_lab.config.schema import Config
    from grpo_lab.runs.session import Session


def go_on(
    folder: Path,
    recover: Sequence[str],
    as_json: bool,
    child: bool,
    live: bool,
    save_model: bool,
    track: str = "",
    processes: int | None = None,
) -> NoReturn:
    """Go on with the run in a folder, and exit with the code of the result."""
    from grpo_lab.config.schema import resized
    from grpo_lab.errors import DataError, RunError
    from grpo_lab.runs import run_folder
    from grpo_lab.runs.session import Session

    count = _number_of(processes)
    try:
        launched = take_part_unless_first(lambda: resized(run_folder.read(folder)[0], count))
        session = Session.resume(folder, recover, child=child or launched, save_model=save_model, processes=count)
    except RunError as error:
        raise DataError(str(error)) from error
    run_and_exit(session, as_json, live, track)


def shared_by(processes: int | None) -> list[str]:
    """The override for the number of processes: as asked for, or as many as a launcher has started."""
    count = _number_of(processes)
    return [] if count is None else [f"run.processes={count}"]


def _number_of(processes: int | None) -> int | None:
    """The number of processes that was asked for, 0 too, or that a launcher has started; None for neither."""
    from grpo_lab.runs.processes import started_by_torchrun

    return (started_by_torchrun() or None) if processes is None else processes


def take_part_unless_first(config: Callable[[], Config]) -> bool | None:
    """Train and exit as one of the processes that a launcher has started, unless this is the first one of them.

    Return False for the first one, which trains in its own process, and None where no launcher is at work.
    """
    from grpo_lab.runs import processes

    if not processes.started_by_torchrun():
        return None
    if not processes.is_first():
        sys.exit(processes.take_part(found := config(), processes.joined(found)))
    return False


def run_and_exit(session: Session, as_json: bool, live: bool, track: str = "") -> NoReturn:
    """Train, show the run while it goes on, also to these trackers, and exit with the code of the result."""
    from grpo_lab.runs.session import BY_THE_USER
    from grpo_lab.ui import console, trackers

    session.views += trackers.views(track, session)
    console.say_warnings()
    for note in console.notes(session.config):
        console.report(note)
    if as_json:
        session.views.append(console.JsonView())
        with contextlib.redirect_stdout(sys.stderr):  # a reward function may print
            session.run()
    else:
        try:
            with _view(session, live):
                session.run()
        finally:  # also of a run that a signal ended
            if session.ended and session.status != "failed":
                console.say_end(session)
    by_user = session.ended is not None and session.ended.message.startswith(BY_THE_USER)
    sys.exit(0 if session.status == "done" else INTERRUPTED if by_user else 1)


@contextlib.contextmanager
def _view(session: Session, live: bool) -> Iterator[None]:
    """Show the run while it goes on: curves in a terminal if they are wanted, else one line."""
    from grpo_lab.ui import console

    if live and console.out.is_terminal:
        from grpo_lab.ui.live_terminal import LiveView

        with LiveView(console.out) as view:
            session.views.append(view)
            yield
    else:
        with console.progress() as bars:
            session.views.append(console.ProgressView(bars, session.config.run.name))
            yield
