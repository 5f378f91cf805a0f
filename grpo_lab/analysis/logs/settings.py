"""Settings of a run that lie beside its log: YAML, args.json, hydra's, or an own run's config."""

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

OF_TRAINING = frozenset(
    ("learning_rate", "per_device_train_batch_size", "num_generations", "beta", "actor_rollout_ref", "rlhf_type")
)
"""A YAML or JSON file with none of these on top tells of something else."""
OF_A_MODEL = ("dtype", "torch_dtype")
"""Entries of a checkpoint's config.json: the number format of its weights."""
DTYPE = "model.dtype"
"""The setting that these entries become."""
NOT_READ = ("faults", "guards", "run.name")
"""Sections of an own run's config that tell of planted faults: a diagnosis is made without them."""
Reader = Callable[[Path], dict[str, Any]]
LARGEST = 2**20
"""Bytes of a file of settings."""
DEEPEST, MOST = 8, 5000
"""A file of settings that is deeper or longer, as one whose parts hold each other, is read that far."""


def beside(log: Path) -> tuple[dict[str, Any], list[str]]:
    """The settings beside a log, flat, under the framework's own names, and notes on files that were not used.

    A file nearer to the log, and one that the training wrote itself, goes before another.
    """
    folder = log if log.is_dir() else log.parent
    if (folder / "events.jsonl").exists():
        return _merged([(folder / "config.json", _own)])
    found, notes = _merged([*_files(folder), *_files(folder.parent)])
    places = (folder, *folder.glob("checkpoint-*"), folder.parent)
    if not found.keys() - {DTYPE} and any((place / "training_args.bin").exists() for place in places):
        notes.append(
            "training_args.bin is a pickle and is not read; "
            "write trainer.args.to_json_string() to args.json beside the log"
        )
    return found, notes


def _files(folder: Path) -> list[tuple[Path, Reader]]:
    """The files of settings in a folder, the most trustworthy first, each with its reader."""
    written: list[tuple[Path, Reader]] = [
        (folder / "args.json", _json),
        (folder / "config.json", _json),
        (folder / ".hydra" / "config.yaml", _yaml),
    ]
    yamls = sorted({*folder.glob("*.yaml"), *folder.glob("*.yml")})
    # Of several, all of different runs perhaps, none is known to belong to the log.
    given = [path for path in yamls if path.stem == "config"] if len(yamls) > 1 else yamls
    return written + [(path, _yaml) for path in given]


def _merged(files: Iterable[tuple[Path, Reader]]) -> tuple[dict[str, Any], list[str]]:
    found, notes = {}, []
    for path, read in files:
        if not path.is_file():
            continue
        try:
            if path.stat().st_size > LARGEST:
                raise ValueError(f"it has more than {LARGEST:,} bytes")
            found = flat(read(path)) | found
        except (OSError, ValueError, RecursionError) as error:
            notes.append(f"the settings in {path.name} cannot be read: {(str(error) or repr(error)).splitlines()[0]}")
    return found, notes


def _json(path: Path) -> dict[str, Any]:
    tree = json.loads(path.read_text(encoding="utf-8-sig"))
    if not isinstance(tree, dict):
        return {}
    if "model_type" in tree and "architectures" in tree:
        return {DTYPE: next((tree[name] for name in OF_A_MODEL if tree.get(name)), None)}
    return _of_training(tree)


def _yaml(path: Path) -> dict[str, Any]:
    import yaml

    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8-sig"))
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
    return _of_training(tree) if isinstance(tree, dict) else {}


def _of_training(tree: dict[str, Any]) -> dict[str, Any]:
    """The tree if it tells of a training, or else nothing."""
    return tree if not OF_TRAINING.isdisjoint(tree) else {}


def _own(path: Path) -> dict[str, Any]:
    """The settings of a run of grpo_lab, without its faults and guards."""
    tree = json.loads(path.read_text(encoding="utf-8"))
    hidden = tuple(f"{name}." for name in NOT_READ)
    return {name: value for name, value in flat(tree).items() if not f"{name}.".startswith(hidden)}


def flat(tree: Mapping[str, Any]) -> dict[str, Any]:
    """A tree of settings as one dictionary of numbers, texts, and lists of them.

    YAML reads 1e-6 as a text, and config.json may hold "inf": a text that is a number becomes one.

    >>> flat({"lr": "1e-6", "model": {"dtype": "fp16", "args": {}}})
    {'lr': 1e-06, 'model.dtype': 'fp16'}
    """
    known = itertools.islice(_leaves(tree, "", DEEPEST), MOST)
    return {name: value for name, value in known if name}


def _leaves(tree: Mapping[str, Any], before: str, depth: int) -> Iterator[tuple[str, Any]]:
    """The names and plain values in a tree; an empty name for every inner node, so that each one counts."""
    for name, value in tree.items():
        if isinstance(value, Mapping) and depth:
            yield "", None
            yield from _leaves(value, f"{before}{name}.", depth - 1)
        elif isinstance(value, str):
            yield f"{before}{name}", _number(value)
        elif value is None or isinstance(value, bool | int | float):
            yield f"{before}{name}", value
        elif isinstance(value, list | tuple) and all(isinstance(each, str | bool | int | float) for each in value):
            yield f"{before}{name}", list(value)


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
