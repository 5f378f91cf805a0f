"""Models and tokenizers by name, folder or hub id, in one of five precisions; each error message names the way out."""

from __future__ import annotations  # evaluated, they would import every model of transformers

import hashlib
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers  # as a module: each name imported from it loads all models, for a second
from huggingface_hub import snapshot_download
from huggingface_hub.utils import logging as hub_logging
from transformers.utils import logging as transformers_logging

from grpo_lab.errors import ModelError, check_known
from grpo_lab.models import adapters
from grpo_lab.models.precision import PRECISIONS, fuse_gelu, widen_products
from grpo_lab.models.registry import MODELS

SMALL_FILES = ("*.json", "*.jinja", "*.txt", "*.model")
"""What a model of the hub needs beside its weights."""
NEEDED = {
    "config.json": ("config.json",),
    "weights (*.safetensors)": ("*.safetensors",),
    "tokenizer (tokenizer.json)": ("tokenizer.json", "tokenizer.model", "vocab.json"),
}
"""The files that a model's folder needs, each by one of its names; transformers would guess one that is missing."""


def load(
    name: str, precision: str = "fp32", device: str = "cpu"
) -> tuple[transformers.PreTrainedModel, transformers.PreTrainedTokenizerFast]:
    """A model in eval mode and its tokenizer, padding on the left.

    `name` is one of `MODELS`, a local folder or a hub id; only a hub id needs the network. A folder of adapters gives
    the model that they belong to, with them.

    Raises ConfigError for an unknown precision, and ModelError for a model that cannot be found or read, and for
    weights that are missing or not finite.
    """
    check_known("precision", [precision], PRECISIONS)
    if base := adapters.base_of(name):
        model, tokenizer = load(base, precision, device)
        with quiet():
            adapters.load(model, Path(name).expanduser())
        _check_finite(model, name)
        return model, tokenizer
    target = resolve_device(device)
    source = locate(name)
    with quiet():
        # Only safetensors: reading the older .bin format runs code.
        folder = _on_disk(source, ("model*.safetensors", *SMALL_FILES))
        model = _load_model(folder, PRECISIONS[precision].weights)
        tokenizer = _load_tokenizer(folder, model)
    model.name_or_path = str(source)  # adapters name the hub id of their base
    _check_finite(model, source)
    _suit(model, precision, target.type)
    return model.to(target).eval(), tokenizer  # pyright: ignore[reportArgumentType]


def outline(name: str, precision: str) -> tuple[transformers.PreTrainedModel, transformers.PreTrainedTokenizerFast]:
    """The model that `load` gives on a CPU as shapes alone, on the device `meta`, and its tokenizer; no weight is read.

    Raises ModelError as `load` does.
    """
    base = adapters.base_of(name)
    source = locate(base or name)
    with quiet():
        folder = _on_disk(source, SMALL_FILES)
        try:
            shape = transformers.AutoConfig.from_pretrained(folder)
            with torch.device("meta"):
                model = transformers.AutoModelForCausalLM.from_config(shape, dtype=PRECISIONS[precision].weights)
                if base:
                    adapters.add_as_saved(model, Path(name).expanduser())
        except Exception as error:  # of any type, as for the model itself
            raise _unreadable("config", folder, error) from error
        tokenizer = _load_tokenizer(folder, model)
    _suit(model, precision, "cpu")
    return model.eval(), tokenizer


def _suit(model: transformers.PreTrainedModel, precision: str, device_type: str) -> None:
    """Replace the parts of a model that compute otherwise in this precision on this device."""
    if PRECISIONS[precision].weights == torch.float32:
        fuse_gelu(model)
    if device_type == "cpu" and PRECISIONS[precision].weights == torch.float16:
        widen_products(model)


def locate(name: str) -> Path | str:
    """The folder of a model, or `name` itself if it can only be a hub id. Raises ModelError if it is neither."""
    known = MODELS.get(name)
    if known and not known.present:
        raise ModelError(f"model {name!r} is not at {known.path}; get it with `{known.origin}`")
    folder = known.path if known else Path(name).expanduser()
    if folder.is_dir():
        for what, patterns in NEEDED.items():
            if not any(path.is_file() for pattern in patterns for path in folder.glob(pattern)):
                raise ModelError(f"{folder}: has no {what}; {_way_out(folder)}")
        return folder
    # A hub id is "name" or "owner/name" in these characters; any other text was meant as a folder.
    if not re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", name, re.ASCII):
        raise ModelError(f"no folder {name!r}; give a folder, a hub id, or one of: {', '.join(MODELS)}")
    return name


def _on_disk(source: Path | str, files: Sequence[str]) -> Path:
    """The folder of a model, for a hub id that of these files in the hub's cache, which also serves offline.

    transformers, given a hub id, waits for half a minute where there is no network. Raises ModelError.
    """
    if isinstance(source, Path):
        return source
    try:
        return Path(snapshot_download(source, allow_patterns=list(files)))
    except Exception as error:  # of any type: the hub's client passes errors of its transport on
        raise ModelError(
            f"{source}: no folder here, and the hub does not give it ({_cause(error)}); go online, or give a folder, a "
            f"hub id, or one of: {', '.join(MODELS)}"
        ) from error


def _load_model(folder: Path, dtype: torch.dtype) -> transformers.PreTrainedModel:
    """The model. Raises ModelError for a missing weight, which transformers would fill with random numbers."""
    try:
        loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, use_safetensors=True, output_loading_info=True
        )
    except Exception as error:  # of any type: config and safetensors each raise their own
        raise _unreadable("model", folder, error) from error
    model, info = loaded
    if missing := sorted(info["missing_keys"]):
        raise ModelError(
            f"{folder}: {len(missing)} weights are not in the file, first {missing[0]}; save the model again"
        )
    return model


def _load_tokenizer(folder: Path, model: transformers.PreTrainedModel) -> transformers.PreTrainedTokenizerFast:
    """The tokenizer, set to pad prompts on the left.

    Raises ModelError without an end token, with one in prompts, and for more tokens than the model has embeddings.
    """
    embeddings: Any = model.get_input_embeddings()
    rows = len(embeddings.weight)
    try:
        tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder, padding_side="left")
        if len(tokenizer) > rows:
            # transformers adds the special tokens of a family, as Qwen2's, to a tokenizer of one's own; this adds none.
            tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder, padding_side="left")
    except Exception as error:  # the tokenizers library raises plain Exception
        raise _unreadable("tokenizer", folder, error) from error
    if len(tokenizer) > rows:  # an id without an embedding would destroy a CUDA context
        raise ModelError(
            f"{folder}: the tokenizer has {len(tokenizer)} tokens, the model {rows}; use its own tokenizer"
        )
    if tokenizer.eos_token is None:
        raise ModelError(f"{folder}: the tokenizer has no eos_token, so no completion could end; set one and save it")
    if tokenizer("a").input_ids[-1:] == [tokenizer.eos_token_id]:
        raise ModelError(
            f"{folder}: the tokenizer puts its end token {tokenizer.eos_token!r} behind every text, so every prompt "
            "would end before its answer; save it with add_eos_token=False, or without that post-processor"
        )
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token  # harmless: masks are made from positions, never from token ids
    return tokenizer


def _unreadable(what: str, folder: Path, error: Exception) -> ModelError:
    """The error for a model or tokenizer that could not be loaded, with its cause in one line."""
    return ModelError(f"{folder}: cannot load the {what} ({_cause(error)}); {_way_out(folder)}")


def _cause(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).strip() or 'no message').splitlines()[0]}"


def _way_out(folder: Path) -> str:
    """The last part of an error message: how to get the model again."""
    for known in MODELS.values():
        if folder == known.path:
            return f"get it again with `{known.origin}`"
    return "save model and tokenizer there with save_pretrained"


def _check_finite(model: transformers.PreTrainedModel, source: Path | str) -> None:
    """Raise ModelError for NaN or inf in the loaded precision: a large fp32 weight may be inf in fp16."""
    for name, weight in model.named_parameters():
        if count := int((~weight.isfinite()).sum()):
            raise ModelError(
                f"{source}: {count} of {weight.numel()} values of {name} are not finite in "
                f"{str(weight.dtype).removeprefix('torch.')}; take an earlier checkpoint or another precision"
            )


def resolve_device(name: str) -> torch.device:
    """The device of that name; "auto" is CUDA if there is one, else the CPU.

    >>> resolve_device("cpu")
    device(type='cpu')

    Raises ModelError for a device that cannot be used here.
    """
    try:
        device = torch.device(device_type(name) if name == "auto" else name)
        torch.empty(0, device=device)  # a name can be right and the device absent
    except (RuntimeError, AssertionError) as error:
        cause = str(error).splitlines()[0]
        raise ModelError(f"device {name!r} cannot be used here ({cause}); choose auto or cpu") from error
    return device


def device_type(name: str) -> str:
    """The type of the device of that name, found out without a CUDA context in this process.

    >>> device_type("cuda:1")
    'cuda'
    """
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return name.partition(":")[0]


@contextmanager
def quiet() -> Iterator[None]:
    """Switch off progress bars and warnings of transformers and the hub's client; restore them at the end."""
    loggings: tuple[Any, ...] = (transformers_logging, hub_logging)  # the hub's reports each retry when offline
    before = [logging.get_verbosity() for logging in loggings]
    had_bars = transformers_logging.is_progress_bar_enabled()
    for logging in loggings:
        logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        for logging, verbosity in zip(loggings, before, strict=True):
            logging.set_verbosity(verbosity)
        if had_bars:
            transformers_logging.enable_progress_bar()


def save(folder: Path, model: Any, tokenizer: Any) -> None:
    """Write model and tokenizer into a folder, from which `load` and `--model` take them."""
    with quiet():
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def sha256(path: Path) -> str:
    """The checksum of a file, as `sha256sum` prints it."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
