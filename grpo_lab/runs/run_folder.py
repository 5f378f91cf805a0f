"""The folder of a run: config, environment and events; each event is on disk before a view shows it."""

import itertools
import json
import os
import shutil
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from filelock import FileLock, Timeout
from safetensors import SafetensorError

from grpo_lab.config.fields import distinct
from grpo_lab.config.schema import Config
from grpo_lab.errors import GrpoLabError, RunError
from grpo_lab.events import Ended, Event, Started, encodable, from_json, lineage, to_json
from grpo_lab.models import adapters, loading
from grpo_lab.runs import environment
from grpo_lab.runs.crashes import classify_crash
from grpo_lab.training.recorder import count_nonfinite

EVENTS, CONFIG, ENVIRONMENT, TRACEBACK = "events.jsonl", "config.json", "environment.json", "traceback.txt"
MODEL, MERGED, LOCK, FORK = "model", "model-merged", ".lock", "fork.json"


class Fork(NamedTuple):
    """The run of which another one is a fork, the step before which it leaves it, and the changes of settings.

    `changes` has steps with overrides: those of the parent since step `began`, then those of the fork.
    """

    parent: str
    step: int
    began: int
    changes: Sequence[tuple[int, Sequence[str]]]


def next_free(folder: Path) -> Path:
    """The folder, or the first of its numbered siblings that does not exist."""
    numbered = (folder.with_name(f"{folder.name}-{number}") for number in itertools.count(2))
    return next(path for path in itertools.chain([folder], numbered) if not os.path.lexists(path))


def new_folder(wanted: Path) -> Path:
    """Make the folder, or the next free one if another process took it. Raises RunError if it cannot be made."""
    try:
        wanted.parent.mkdir(parents=True, exist_ok=True)
        while True:
            with suppress(FileExistsError):
                (free := next_free(wanted)).mkdir()
                return free
    except OSError as error:
        raise RunError(f"{wanted} cannot be made: {error.strerror}; work in a folder that you may write to") from error


def default_folder(name: str, runs: Path = Path("runs")) -> Path:
    """The folder runs/<time>-<name>, with a number if it exists."""
    return next_free(runs / f"{time.strftime('%Y%m%d-%H%M%S')}-{name}")


def read(folder: Path) -> tuple[Config, list[Event]]:
    """Config and events of a folder, whose run is finished, crashed, or cut off in the middle of a line.

    Raises RunError when it holds no run or one that cannot be read.
    """
    try:
        text = (folder / CONFIG).read_text(encoding="utf-8")
        config = Config.from_dict(json.loads(text, object_pairs_hook=distinct))
        return config, lineage(whole_events(folder))
    except FileNotFoundError as error:
        raise RunError(f"{folder} holds no run: {Path(error.filename).name} is missing") from error
    except OSError as error:
        raise RunError(f"{folder} cannot be read: {error.strerror}; give the folder of a run") from error
    except RunError:
        raise
    except (ValueError, GrpoLabError) as error:
        why = f"{CONFIG} or {EVENTS} is damaged: {error}"
        raise RunError(f"{folder} cannot be read: {why}; or another version of grpo_lab wrote it") from error


def whole_events(folder: Path, name: str = EVENTS) -> list[Event]:
    """The events of a run, without a last line that was cut off. Raises RunError for a damaged line."""
    events = []
    for number, line in enumerate((folder / name).read_text(encoding="utf-8").split("\n")[:-1], start=1):
        try:
            events.append(from_json(line))
        except RunError as error:
            raise RunError(
                f"{folder / name}:{number}: {error}; delete that line to read the rest, "
                "or take the version of grpo_lab that wrote it"
            ) from error
    return events


def begin(folder: Path, config: Config) -> None:
    """Make the folder and write the config. Raises RunError if it holds a run already."""
    if (folder / EVENTS).exists():
        raise occupied(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_config(folder, config)


def occupied(folder: Path) -> RunError:
    """The error of a folder that holds another run."""
    return RunError(f"{folder} already holds a run; choose another folder, or show it with `grpo-lab replay`")


def write_config(folder: Path, config: Config) -> None:
    """Write the config with which the run in the folder begins or goes on."""
    _write_json(folder / CONFIG, encodable(config.to_dict()))


def write_fork(folder: Path, fork: Fork, events: Iterable[Event]) -> None:
    """Write the origin of a fork, and the events of its parent that are its own too."""
    _write_json(folder / FORK, fork._asdict())
    (folder / EVENTS).write_text("".join(to_json(event) + "\n" for event in events), encoding="utf-8")


def read_fork(folder: Path) -> Fork | None:
    """The origin of the run in a folder; None where it is no fork."""
    path = folder / FORK
    return Fork(**json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None


def unwritable(folder: Path, steps: int, error: OSError) -> RunError:
    """The error of a run after so many steps whose folder cannot be written."""
    return RunError(
        f"{folder} cannot be written after {steps} steps: {error.strerror or error}; earlier events are intact. "
        "Choose a folder with room and permission (--out)"
    )


@contextmanager
def writer(folder: Path, config: Config, by_process: bool = False) -> Iterator[Callable[[Event], None]]:
    """A function that appends an event to the file, flushed line by line, after the events that are there.

    Raises RunError while another process, or without `by_process` another run of this one, writes the folder.
    """
    with held(folder, by_process):
        write_environment(folder, config)
        cut_half_line(folder / EVENTS)
        with (folder / EVENTS).open("a", encoding="utf-8") as file:

            def append(event: Event) -> None:
                if isinstance(event, Started):
                    write_environment(folder, config, event.threads)
                file.write(to_json(event) + "\n")
                file.flush()

            yield append


def write_environment(folder: Path, config: Config, threads: int = 0) -> None:
    """Write the versions and the machine of a run, and the process that writes its folder."""
    about = environment.describe(threads or config.run.threads, config.run.device)
    _write_json(folder / ENVIRONMENT, about | {"pid": os.getpid()})


@contextmanager
def held(folder: Path, by_process: bool = False) -> Iterator[None]:
    """Hold the folder for this run, or for all of this process; the hold dies with the process.

    Raises RunError if another one holds it.
    """
    try:
        with FileLock(folder / LOCK, timeout=0, is_singleton=by_process):
            yield
    except Timeout as error:
        by = "another process"
        with suppress(OSError, ValueError):
            by = f"process {json.loads((folder / ENVIRONMENT).read_text(encoding='utf-8')).get('pid')}"
        raise RunError(f"{folder} is written by {by}; wait for its end, or stop it") from error


def num_lines(folder: Path) -> int:
    """The number of whole lines in the file of events; 0 where there is no such file."""
    return (folder / EVENTS).read_bytes().count(b"\n") if (folder / EVENTS).exists() else 0


def cut_half_line(path: Path) -> None:
    """Remove a last line that a killed process left half-written."""
    with path.open("a+b") as file:
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)


def reopen(folder: Path) -> None:
    """Make a folder ready for the run in it to go on.

    Raises RunError while another process writes the run, and where no run began.
    """
    if not (folder / CONFIG).exists():
        raise RunError(f"{folder} holds no run: {CONFIG} is missing; give the folder of a run that began")
    with held(folder):
        cut_half_line(folder / EVENTS)


def write_last(folder: Path, event: Event) -> None:
    """Append an event for a dead process, in place of a half-written last line."""
    cut_half_line(folder / EVENTS)
    with (folder / EVENTS).open("ab") as file:
        file.write(to_json(event).encode() + b"\n")


def write_crash(folder: Path, error: BaseException) -> Ended:
    """Write the traceback of an error, and return the end of the run that it broke."""
    text = "".join(traceback.format_exception(error))
    (folder / TRACEBACK).write_text(text, encoding="utf-8")
    first = str(error).strip().partition("\n")[0]
    return Ended("crashed", type(error).__name__ + (f": {first}" if first else ""), classify_crash(text))


def save_model(folder: Path, policy: Any, tokenizer: Any, merge: bool = False) -> None:
    """Write policy and tokenizer; of a policy with adapters only these, and with `merge` also the merged weights.

    Weights that are not finite are never saved. Raises RunError if saving fails.
    """
    broken = count_nonfinite([p.detach() for p in policy.parameters()])
    if broken:
        warnings.warn(f"the model was not saved: {broken:,} of its weights are not finite", stacklevel=2)
        return
    _save(folder / MODEL, policy, tokenizer)
    if merge:
        _save(folder / MERGED, adapters.merged(policy), tokenizer)


def _save(folder: Path, policy: Any, tokenizer: Any) -> None:
    part = folder.with_name(f"{folder.name}.part")  # a half-written model must not look complete
    try:
        loading.save(part, policy, tokenizer)
        shutil.rmtree(folder, ignore_errors=True)  # of the same run before it went on
        part.rename(folder)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(part, ignore_errors=True)
        raise RunError(f"the model cannot be saved to {folder.parent}: {error}; free some space") from error


def _write_json(path: Path, tree: Any) -> None:
    """Write a file so that a killed process leaves it whole, or as it was."""
    aside = path.with_name(f".{path.name}")
    aside.write_text(json.dumps(tree, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    aside.replace(path)
