"""What lies beside a log: the settings of its run (YAML, args.json, hydra's, an own config), and its crash."""

import itertools
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from grpo_lab.analysis.logs.table import Fact, fact, number_in
from grpo_lab.analysis.logs.text import last_exception, patterns, tables

_FILES, LIMITS = tables("files")["beside"], tables("limits")["beside"]
DTYPE = "model.dtype"
"""The setting that the number format in a checkpoint's config.json becomes."""


def settings_beside(log: Path) -> tuple[dict[str, Any], list[Fact]]:
    """The settings beside a log, flat, under the framework's own names, and notes on files that were not used.

    A file nearer to the log, and one that the training wrote itself, goes before another.
    """
    folder = log if log.is_dir() else log.parent
    own = (folder / "events.jsonl").exists()
    files = [folder / "config.json"] if own else [*_files(folder), *_files(folder.parent)]
    found: dict[str, Any] = {}
    notes: list[Fact] = []
    for path in filter(Path.is_file, files):
        try:
            found = flat(_tree(path, own)) | found
        except (OSError, ValueError, RecursionError) as error:
            notes.append(fact("bad_settings", file=path.name, why=(str(error) or repr(error)).splitlines()[0]))
    if own:
        left_out = tuple(_FILES["not_read"])
        return {name: value for name, value in found.items() if not f"{name}.".startswith(left_out)}, notes
    places = (folder, *folder.glob("checkpoint-*"), folder.parent)
    if not found.keys() - {DTYPE} and any((place / "training_args.bin").exists() for place in places):
        notes.append(fact("pickle"))
    return found, notes


def _files(folder: Path) -> list[Path]:
    """The files of settings in a folder, the most trustworthy first."""
    yamls = sorted({*folder.glob("*.yaml"), *folder.glob("*.yml")})
    # Of several, all of different runs perhaps, none is known to belong to the log.
    given = [path for path in yamls if path.stem == "config"] if len(yamls) > 1 else yamls
    return [folder / "args.json", folder / "config.json", folder / ".hydra" / "config.yaml", *given]


def _tree(path: Path, own: bool) -> dict[str, Any]:
    """The settings in a file; none in one that tells nothing of a training. Raises ValueError for a damaged file."""
    if path.stat().st_size > LIMITS["largest"]:
        raise ValueError(f"it has more than {LIMITS['largest']:,} bytes")
    text = path.read_text(encoding="utf-8-sig")
    if path.suffix == ".json":
        tree = json.loads(text)
    else:
        import yaml

        try:
            tree = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ValueError(str(error)) from error
    if not isinstance(tree, dict):
        return {}
    if "model_type" in tree and "architectures" in tree:  # a checkpoint's
        return {DTYPE: tree.get("dtype") or tree.get("torch_dtype")}
    return tree if own or any(name in tree for name in _FILES["of_training"]) else {}


def flat(tree: Mapping[str, Any]) -> dict[str, Any]:
    """A tree of settings as one dictionary of numbers, texts, and lists of them.

    YAML reads 1e-6 as a text, and config.json may hold "inf": a text that is a number becomes one.

    >>> flat({"lr": "1e-6", "model": {"dtype": "fp16", "args": {}}})
    {'lr': 1e-06, 'model.dtype': 'fp16'}
    """
    found: dict[str, Any] = {}
    for name, value in itertools.islice(leaves(tree, "."), LIMITS["most"]):
        if isinstance(value, str):
            number = number_in(value)
            found[name] = value if number is None else number
        elif value is None or isinstance(value, bool | int | float):
            found[name] = value
        elif isinstance(value, list | tuple) and all(isinstance(each, str | bool | int | float) for each in value):
            found[name] = list(value)
    return {name: value for name, value in found.items() if name}


def leaves(
    tree: Mapping[str, Any], join: str, before: str = "", depth: int = LIMITS["deepest"]
) -> Iterator[tuple[str, Any]]:
    """The values in a tree, each with all its names joined; an empty name for every inner node, so that each counts."""
    for name, value in tree.items():
        if isinstance(value, Mapping) and depth:
            yield "", None
            yield from leaves(value, join, f"{before}{name}{join}", depth - 1)
        else:
            yield f"{before}{name}", value


def crash_beside(log: Path) -> str:
    """The exception at the end of the newest console text beside a log or its checkpoint; empty if there is none.

    A newer console with metrics and without a traceback tells of a later run that went on.
    """
    folders = [log.parent, log.parent.parent] if log.parent.name.startswith("checkpoint-") else [log.parent]
    files = [path for folder in folders for pattern in _FILES["consoles"] for path in folder.glob(pattern)]
    went_on = -math.inf
    for path in sorted({*filter(Path.is_file, files)}, key=lambda path: (-path.stat().st_mtime, path.name)):
        changed = path.stat().st_mtime
        if changed < went_on - LIMITS["together"]:
            return ""
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - LIMITS["largest"]))
            text = file.read().decode("utf-8", errors="replace").replace("\r", "\n")
        *_, after_metrics = patterns("console")["inner_dictionary"].split(text)
        if crash := last_exception(after_metrics):
            return crash
        if after_metrics != text:
            went_on = max(went_on, changed)
    return ""
