"""Models and tokenizers by name, folder or hub id, in one of five precisions; each error message names the way out."""

from __future__ import annotations  # evaluated, they would import every model of transformers

import hashlib
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers  # as a module: each name imported from it loads all models, for a second
from huggingface_hub import HfApi
from huggingface_hub.errors import RepositoryNotFoundError
from huggingface_hub.utils import logging as hub_logging
from transformers.utils import logging as transformers_logging

from grpo_lab.errors import ModelError, unknown
from grpo_lab.models import adapters
from grpo_lab.models.precision import PRECISIONS, fuse_gelu, widen_products
from grpo_lab.models.registry import MODELS

HUB_PATIENCE = 10.0
"""Seconds to wait for the hub's answer."""
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
    if precision not in PRECISIONS:
        raise unknown("precision", precision, PRECISIONS)
    if base := adapters.base_of(name):
        model, tokenizer = load(base, precision, device)
        with quiet():
            adapters.load(model, Path(name).expanduser())
        _check_finite(model, name)
        return model, tokenizer
    target = resolve_device(device)
    source = locate(name)
    with quiet():
        local = isinstance(source, Path) or not _hub_has(source)
        model = _load_model(source, PRECISIONS[precision].weights, local)
        tokenizer = _load_tokenizer(source, local, _vocabulary(model))
    _check_finite(model, source)
    if len(tokenizer) > (rows := _vocabulary(model)):  # an id without an embedding would destroy a CUDA context
        raise ModelError(
            f"{source}: the tokenizer has {len(tokenizer)} tokens, the model {rows}; use its own tokenizer"
        )
    _suit(model, precision, target.type)
    return model.to(target).eval(), tokenizer  # pyright: ignore[reportArgumentType]


def outline(name: str, precision: str) -> tuple[transformers.PreTrainedModel, transformers.PreTrainedTokenizerFast]:
    """The model that `load` gives on a CPU as shapes alone, on the device `meta`, and its tokenizer; no weight is read.

    Raises ModelError as `load` does.
    """
    base = adapters.base_of(name)
    source = locate(base or name)
    with quiet():
        local = isinstance(source, Path) or not _hub_has(source)
        try:
            shape = transformers.AutoConfig.from_pretrained(source, local_files_only=local)
            with torch.device("meta"):
                model = transformers.AutoModelForCausalLM.from_config(shape, dtype=PRECISIONS[precision].weights)
                if base:
                    adapters.add_as_saved(model, Path(name).expanduser())
        except Exception as error:  # of any type, as for the model itself
            raise _unreadable("config", source, error) from error
        tokenizer = _load_tokenizer(source, local, _vocabulary(model))
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


def _hub_has(name: str) -> bool:
    """Whether the hub answers and has the model; without an answer only transformers' cache is tried.

    transformers itself would retry for half a minute. Raises ModelError if the hub does not have the model.
    """
    try:
        HfApi().model_info(name, timeout=HUB_PATIENCE)
    except RepositoryNotFoundError as error:
        known = ", ".join(MODELS)
        raise ModelError(
            f"{name}: neither a folder here nor a model on the hub; give either, or one of: {known}"
        ) from error
    except Exception:  # of any type: the hub's client passes errors of its transport on
        return False
    return True


def _load_model(source: Path | str, dtype: torch.dtype, local: bool) -> transformers.PreTrainedModel:
    """The model. Raises ModelError for a missing weight, which transformers would fill with random numbers."""
    try:
        # Only safetensors: reading the older .bin format runs code.
        loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(
            source, dtype=dtype, use_safetensors=True, output_loading_info=True, local_files_only=local
        )
    except Exception as error:  # of any type: config, safetensors and hub each raise their own
        raise _unreadable("model", source, error) from error
    model, info = loaded
    if missing := sorted(info["missing_keys"]):
        raise ModelError(
            f"{source}: {len(missing)} weights are not in the file, first {missing[0]}; save the model again"
        )
    return model


def _load_tokenizer(source: Path | str, local: bool, vocabulary: int) -> transformers.PreTrainedTokenizerFast:
    """The tokenizer, set to pad prompts on the left. Raises ModelError without an end token, or with one in prompts."""
    options: dict[str, Any] = {"padding_side": "left", "local_files_only": local}
    try:
        tokenizer: Any = transformers.AutoTokenizer.from_pretrained(source, **options)
        if len(tokenizer) > vocabulary:
            # transformers adds the special tokens of a family, as Qwen2's, to a tokenizer of one's own; this adds none.
            tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(source, **options)
    except Exception as error:  # the tokenizers library raises plain Exception
        raise _unreadable("tokenizer", source, error) from error
    if tokenizer.eos_token is None:
        raise ModelError(f"{source}: the tokenizer has no eos_token, so no completion could end; set one and save it")
    if tokenizer("a").input_ids[-1:] == [tokenizer.eos_token_id]:
        raise ModelError(
            f"{source}: the tokenizer puts its end token {tokenizer.eos_token!r} behind every text, so every prompt "
            "would end before its answer; save it with add_eos_token=False, or without that post-processor"
        )
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token  # harmless: masks are made from positions, never from token ids
    return tokenizer


def _vocabulary(model: transformers.PreTrainedModel) -> int:
    """The number of tokens that a model has embeddings for."""
    embeddings: Any = model.get_input_embeddings()
    return embeddings.weight.shape[0]


def _unreadable(what: str, source: Path | str, error: Exception) -> ModelError:
    """The error for a model or tokenizer that could not be loaded, with its cause in one line."""
    cause = (str(error).strip() or "no message").splitlines()[0]
    return ModelError(f"{source}: cannot load the {what} ({type(error).__name__}: {cause}); {_way_out(source)}")


def _way_out(source: Path | str) -> str:
    """The last part of an error message: how to get the model again."""
    for known in MODELS.values():
        if source == known.path:
            return f"get it again with `{known.origin}`"
    if isinstance(source, Path):
        return "save model and tokenizer there with save_pretrained"
    return f"no such folder, so it was tried as a hub id; go online, give a folder, or one of: {', '.join(MODELS)}"


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


def sha256(path: Path) -> str:
    """The checksum of a file, as `sha256sum` prints it."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
