"""Checkpoints as folders that are whole or not there: written aside, checked by SHA-256, renamed, then rotated.

No pickle: tensors are in a safetensors file, all other values in a JSON file that points to them.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from grpo_lab.core.batch import Batch
from grpo_lab.errors import RunError
from grpo_lab.events import encodable
from grpo_lab.models.loading import sha256

TENSORS, STATE, MANIFEST = "training.safetensors", "state.json", "manifest.json"
NAME, ASIDE, BROKEN = "checkpoint-{:06d}", ".tmp-", "broken-"
KEPT = 2
"""Checkpoints that stay: the newest, and one to go back to where that one leads to the same crash again."""
TENSOR, NUMBER, BATCH = "<tensor>", "<number>", "<batch>"
"""Keys of the JSON objects that stand for a tensor, a number that JSON does not have, and a batch."""


def write(folder: Path, step: int, state: Mapping[str, Any], also: Callable[[Path], None]) -> int:
    """Write the checkpoint of a step, with the files that `also` puts into its folder; return its bytes.

    A process that is killed leaves the checkpoints that were there, and perhaps one more. Raises OSError.
    """
    aside, place = folder / f"{ASIDE}{step:06d}", folder / NAME.format(step)
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    try:
        also(aside)
        fill(aside, state)
        size = sum(path.stat().st_size for path in aside.rglob("*"))
        os.rename(aside, place)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    _to_disk(folder)
    for old in _newest_first(folder)[KEPT:]:
        _remove(old)
    return size


def fill(folder: Path, state: Mapping[str, Any]) -> None:
    """Write a state into a folder, whose files its manifest vouches for. Raises OSError."""
    tensors: dict[str, Tensor] = {}
    tree = _without_tensors(state, "", tensors)
    held = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    try:
        save_file(held, folder / TENSORS)
    except SafetensorError as error:
        raise OSError(str(error)) from error
    (folder / STATE).write_text(json.dumps(tree, indent=1, allow_nan=False), encoding="utf-8")
    (folder / MANIFEST).write_bytes(_manifest(folder))
    for path in (*folder.rglob("*"), folder):
        _to_disk(path)


def replace(folder: Path, state: Mapping[str, Any]) -> None:
    """Write a state as a folder, in place of one that is there. Raises OSError."""
    aside = folder.with_name(f"{ASIDE}{folder.name}")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    fill(aside, state)
    shutil.rmtree(folder, ignore_errors=True)
    os.rename(aside, folder)


def sweep(folder: Path) -> None:
    """Remove what a killed process left unfinished."""
    for path in folder.glob(f"{ASIDE}*"):
        shutil.rmtree(path, ignore_errors=True)


def exists(folder: Path, step: int) -> bool:
    """Whether there is a checkpoint of this step."""
    return (folder / NAME.format(step)).exists()


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


def read_step(folder: Path, step: int) -> dict[str, Any]:
    """The state before this step, which has a checkpoint. Raises RunError as `read` does."""
    return read(folder / NAME.format(step))


def read(path: Path) -> dict[str, Any]:
    """The state in a checkpoint. Raises RunError for one with a file missing, changed or cut off."""
    try:
        written = (path / MANIFEST).read_bytes()
        names = json.loads(written)["files"]
        if written != _manifest(path, names):
            raise RunError(f"a file differs from {MANIFEST}")
        tree = json.loads((path / STATE).read_text(encoding="utf-8"))
        return _with_tensors(tree, load_file(path / TENSORS))
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise RunError(f"cannot be read ({type(error).__name__}: {error})") from error


def _manifest(folder: Path, names: Mapping[str, Any] | None = None) -> bytes:
    """The text of the manifest of these files, by default of all that are there; it also vouches for itself."""
    there = sorted(names or (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()))
    files = {name: {"sha256": sha256(folder / name), "bytes": (folder / name).stat().st_size} for name in there}
    own = hashlib.sha256(json.dumps(files).encode()).hexdigest()
    return (json.dumps({"files": files, "sha256": own}, indent=1) + "\n").encode()


def _newest_first(folder: Path) -> list[Path]:
    pattern = re.compile(NAME.replace("{:06d}", r"(\d+)"))
    return sorted((path for path in folder.glob("*") if pattern.fullmatch(path.name)), key=_step_of, reverse=True)


def _step_of(path: Path) -> int:
    return int(path.name.rpartition("-")[2])


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


def _with_tensors(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The inverse of `_without_tensors`; a tuple has become a list."""
    if isinstance(value, list):
        return [_with_tensors(each, tensors) for each in value]
    if not isinstance(value, dict):
        return value
    if TENSOR in value:
        return tensors[value[TENSOR]]
    if NUMBER in value:
        return float(value[NUMBER])
    if BATCH in value:
        return Batch(**_with_tensors(value[BATCH], tensors))
    return {name: _with_tensors(each, tensors) for name, each in value.items()}
