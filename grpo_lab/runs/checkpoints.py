"""Checkpoints as folders that are whole or not there: written aside, checked by SHA-256, renamed, then rotated.

No pickle: tensors are in a safetensors file, all other values in a JSON file that points to them.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from grpo_lab.core.batch import Batch
from grpo_lab.errors import RunError
from grpo_lab.events import encodable
from grpo_lab.models.loading import sha256
from grpo_lab.training.routing import RoutedBatch

FOLDER = "checkpoints"
"""The folder of a run's checkpoints."""
TENSORS, STATE, MANIFEST = "training.safetensors", "state.json", "manifest.json"
NAME, ASIDE, BROKEN = "checkpoint-", ".tmp-", "broken-"
KEPT = 2
"""Checkpoints that stay: the newest, and one to go back to where that one leads to the same crash again."""
TENSOR, NUMBER, BATCH = "<tensor>", "<number>", "<batch>"
"""Keys of the JSON objects that stand for a tensor, a number that JSON does not have, and a batch."""


def place(folder: Path, step: int) -> Path:
    """The checkpoint of the state before a step."""
    return folder / f"{NAME}{step:06d}"


def write(place: Path, state: Mapping[str, Any], also: Callable[[Path], None] = lambda folder: None) -> int:
    """Write a state as a folder, with the files that `also` puts into it; return its bytes.

    A process that is killed leaves the whole folder, or none. Raises OSError.
    """
    aside = place.with_name(ASIDE + place.name)
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    try:
        also(aside)
        tensors: dict[str, Tensor] = {}
        tree = _without_tensors(state, "", tensors)
        save_file({name: each.detach().cpu().contiguous().clone() for name, each in tensors.items()}, aside / TENSORS)
        (aside / STATE).write_text(json.dumps(tree, indent=1, allow_nan=False), encoding="utf-8")
        (aside / MANIFEST).write_bytes(_manifest(aside))
        for path in (*aside.rglob("*"), aside):
            _to_disk(path)
        size = sum(path.stat().st_size for path in aside.rglob("*"))
        shutil.rmtree(place, ignore_errors=True)
        aside.rename(place)
    except SafetensorError as error:
        raise OSError(str(error)) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    _to_disk(place.parent)
    return size


def rotate(folder: Path) -> None:
    """Remove all checkpoints but the newest."""
    for old in _newest_first(folder)[KEPT:]:
        _remove(old)


def sweep(folder: Path) -> None:
    """Remove what a killed process left unfinished."""
    for path in folder.glob(f"{ASIDE}*"):
        shutil.rmtree(path, ignore_errors=True)


def remove_after(folder: Path, step: int) -> None:
    """Remove the checkpoints of later steps, which a run that goes on from `step` replaces."""
    for path in _newest_first(folder):
        if _step_of(path) > step:
            _remove(path)


def newest_whole(
    folder: Path, below: int | None = None, check: Callable[[dict[str, Any]], None] = lambda state: None
) -> tuple[dict[str, Any] | None, list[str]]:
    """The state of the newest whole checkpoint, of a step below `below`; and why newer ones were put aside.

    A broken one, or one for which `check` raises RunError, is renamed, so that it is not tried again. Raises RunError
    where all that were there are broken.
    """
    problems = []
    for path in _newest_first(folder):
        if below is not None and _step_of(path) >= below:
            continue
        try:
            check(state := read(path))
            return state, problems
        except RunError as error:
            problems.append(f"{path.name}: {error}")
            path.rename(path.with_name(BROKEN + path.name))
    if problems:
        raise RunError(f"no checkpoint in {folder} is whole: {'; '.join(problems)}; train again into another folder")
    return None, []


def copied(old: Path, new: Path, before: int) -> dict[str, Any] | None:
    """Copy the newest whole checkpoint before step `before`, or an earlier one, into a folder; return its state.

    None where there is no such checkpoint.
    """
    for path in _newest_first(old):
        if _step_of(path) <= before:
            with suppress(RunError):
                state = read(path)
                shutil.copytree(path, new / path.name)
                return state
    return None


def read(path: Path) -> dict[str, Any]:
    """The state in a checkpoint. Raises RunError for one with a file missing, changed or cut off."""
    try:
        written = (path / MANIFEST).read_bytes()
        names = json.loads(written)["files"]
        if written != _manifest(path, names):
            raise RunError(f"a file differs from {MANIFEST}")
        decoded = partial(_decoded, load_file(path / TENSORS))
        return json.loads((path / STATE).read_text(encoding="utf-8"), object_hook=decoded)
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise RunError(f"cannot be read ({type(error).__name__}: {error})") from error


def _manifest(folder: Path, names: Mapping[str, Any] | None = None) -> bytes:
    """The text of the manifest of these files, by default of all that are there; it also vouches for itself."""
    there = sorted(names or (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()))
    files = {name: {"sha256": sha256(folder / name), "bytes": (folder / name).stat().st_size} for name in there}
    own = hashlib.sha256(json.dumps(files).encode()).hexdigest()
    return (json.dumps({"files": files, "sha256": own}, indent=1) + "\n").encode()


def _newest_first(folder: Path) -> list[Path]:
    found = (path for path in folder.glob(f"{NAME}*") if path.name.removeprefix(NAME).isdecimal())
    return sorted(found, key=_step_of, reverse=True)


def _step_of(path: Path) -> int:
    return int(path.name.removeprefix(NAME))


def _remove(path: Path) -> None:
    """Remove a checkpoint so that a kill in the middle leaves no half of it under its name."""
    aside = path.with_name(ASIDE + path.name)
    path.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)


def _to_disk(path: Path) -> None:
    """Wait until a file, or a folder's list of files, is on the disk."""
    if os.name == "nt" and path.is_dir():
        return  # Windows opens no folders
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _without_tensors(value: Any, key: str, tensors: dict[str, Tensor]) -> Any:
    """The value for JSON; tensors go into `tensors`. Raises OSError for a value of another type."""
    if isinstance(value, Tensor):
        tensors[key] = value
        return {TENSOR: key}
    if isinstance(value, Batch):
        there = {field.name: each for field in fields(value) if (each := getattr(value, field.name)) is not None}
        return {BATCH: _without_tensors(there, key, tensors)}
    if isinstance(value, Mapping):
        if strange := [name for name in value if not isinstance(name, str)]:
            raise OSError(f"{key} has the key {strange[0]!r}: only texts are stored")
        return {name: _without_tensors(each, f"{key}/{name}".lstrip("/"), tensors) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_without_tensors(each, f"{key}/{place}", tensors) for place, each in enumerate(value)]
    if value is None or isinstance(value, str | int | float):
        text = encodable(value)
        return {NUMBER: text} if isinstance(text, str) and not isinstance(value, str) else value
    raise OSError(
        f"{key} is a {type(value).__name__}: a guard or fault keeps numbers, texts, lists, dictionaries, tensors"
    )


def _decoded(tensors: Mapping[str, Tensor], tree: dict[str, Any]) -> Any:
    """The tensor, number or batch for which an object stands, or the object."""
    if TENSOR in tree:
        return tensors[tree[TENSOR]]
    if NUMBER in tree:
        return float(tree[NUMBER])
    return RoutedBatch(**tree[BATCH]) if BATCH in tree else tree
