"""LoRA adapters by the library `peft`, which is imported only where there are some: added, saved, loaded, merged.

A model with adapters is the same object as before, with some linear layers replaced; only the adapters are trained.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers.pytorch_utils import Conv1D

from grpo_lab import seeds
from grpo_lab.config.sections import LoraConfig
from grpo_lab.errors import ConfigError, ModelError
from grpo_lab.models.registry import MODELS

NAME = "default"
"""The adapter of a policy, as peft names it; several of them are not trained at once."""
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


def prepared(policy: Any, config: LoraConfig, seed: int) -> Any:
    """The model to train: with new adapters if `config.r` asks for them, or with those that it has.

    A `PeftModel` gives the model inside it, whose layers are the same. Raises ConfigError for names that match no
    layer, and for a policy whose adapters are not those of the config.
    """
    model = policy.get_base_model() if hasattr(policy, "get_base_model") else policy
    had = {(each.r, each.lora_alpha) for each in getattr(model, "peft_config", {}).values() if hasattr(each, "r")}
    if had and config.r and had != {(config.r, config.alpha)}:
        r, alpha = min(had)
        raise ConfigError(
            f"lora.r = {config.r}, lora.alpha = {config.alpha:g}, but the policy has adapters with r = {r}, alpha = "
            f"{alpha:g}: set lora.r=0 to train them as they are"
        )
    if config.r and not had:
        _add(model, config, seed)
    for each in getattr(model, "peft_config", {}).values():  # so that peft loads them by their folder alone
        each.task_type, base = "CAUSAL_LM", each.base_model_name_or_path
        if base and Path(base).is_dir():  # not an id of the hub
            each.base_model_name_or_path = str(Path(base).absolute())
    return model


def _add(model: Any, config: LoraConfig, seed: int) -> None:
    """Add adapters that change nothing yet: the second matrix of each is 0."""
    from peft import LoraConfig as PeftConfig

    head = model.get_output_embeddings()  # often the embedding too: an adapter merged into it would change both
    modules = {name: each for name, each in model.named_modules() if each is not head}
    linear = {name: each for name, each in modules.items() if isinstance(each, torch.nn.Linear | Conv1D)}
    norms = {name: each for name, each in modules.items() if _is_norm(each)}
    layers = _matching(linear, config.target_modules, "lora.target_modules", "linear layer") or linear
    whole = _matching(norms, config.modules_to_save, "lora.modules_to_save", "norm")
    transposed = all(isinstance(layer, Conv1D) for layer in layers.values())
    sizes: dict[str, Any] = {"r": config.r, "lora_alpha": config.alpha, "lora_dropout": config.dropout}
    names: dict[str, Any] = {"target_modules": [*layers], "modules_to_save": [*whole] or None}
    _inject(model, PeftConfig(**sizes, **names, fan_in_fan_out=transposed), seed)


def _inject(model: Any, config: Any, seed: int) -> None:
    """Put peft's layers into the model, with matrices drawn from this seed alone, in fp32 whatever the weights are."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seeds.derive(seed, 0, "adapters"))
        model.add_adapter(config, NAME)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()  # as peft does: moments of fp16 matrices would underflow


def _is_norm(module: torch.nn.Module) -> bool:
    weights = [*module.parameters()]
    return bool(weights) and not [*module.children()] and all(weight.dim() < 2 for weight in weights)


def _matching(
    modules: Mapping[str, torch.nn.Module], names: Iterable[str], setting: str, kind: str
) -> Mapping[str, torch.nn.Module]:
    """The modules that the names of a setting select. Raises ConfigError for a name that matches none of them."""
    chosen: dict[str, torch.nn.Module] = {}
    for wanted in names:
        found = {name: module for name, module in modules.items() if f".{name}".endswith(f".{wanted}")}
        if not found:
            known = ", ".join(dict.fromkeys(name.rpartition(".")[2] for name in modules))
            raise ConfigError(f"{setting}: {wanted!r} matches no {kind}; this model has {known or 'none'}")
        chosen |= found
    return chosen


def merged(policy: Any) -> Any:
    """A copy of the model with its adapters added to the weights: an ordinary model, which needs no peft."""
    policy = copy.deepcopy(policy)
    if hasattr(policy, "merge_and_unload"):  # a PeftModel, which may have adapters of any kind
        return policy.merge_and_unload()
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils import ModulesToSaveWrapper

    for name, layer in [*policy.named_modules()]:
        if isinstance(layer, BaseTunerLayer):
            layer.merge()
            policy.set_submodule(name, layer.get_base_layer())
        elif isinstance(layer, ModulesToSaveWrapper):
            policy.set_submodule(name, layer.modules_to_save[NAME])
    policy._hf_peft_config_loaded = False  # else save_pretrained looks for adapters
    return policy


def base_of(name: str) -> str:
    """The model that the adapters in this folder belong to: a folder, or a known model; empty if it holds none.

    Raises ModelError for a file that names no model.
    """
    file = Path(name).expanduser() / CONFIG
    if not file.is_file():
        return ""
    try:
        base = json.loads(file.read_text(encoding="utf-8"))["base_model_name_or_path"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{file} cannot be read ({type(error).__name__}: {error}); save the adapters again") from error
    if not base:
        raise ModelError(f"{file}: base_model_name_or_path is empty; write the folder of the model there")
    # Folders of known models differ from machine to machine; their last name does not.
    known = [model.name for model in MODELS.values() if model.folder == Path(base).name]
    return base if Path(base).is_dir() or not known else known[0]


def add_as_saved(model: Any, folder: Path) -> None:
    """Add adapters of the shapes that a folder holds, with other values."""
    from peft import PeftConfig

    config: Any = PeftConfig.from_pretrained(str(folder))
    config.inference_mode = False
    _inject(model, config, seed=0)


def load(model: Any, folder: Path) -> None:
    """Add the adapters that a folder holds, ready to be trained further. Raises ModelError if they do not fit."""
    from peft import set_peft_model_state_dict

    try:
        add_as_saved(model, folder)
        values = {n.removeprefix("base_model.model."): value for n, value in load_file(folder / WEIGHTS).items()}
        found = set_peft_model_state_dict(model, values, adapter_name=NAME)
    except Exception as error:  # of any type: peft, safetensors and torch each raise their own
        cause = (str(error).strip() or "no message").splitlines()[0]
        raise ModelError(
            f"{folder}: cannot load the adapters ({type(error).__name__}: {cause}); save them with save_pretrained"
        ) from error
    lost = [*found.unexpected_keys]
    lost += [name for name in found.missing_keys if "lora_" in name or "modules_to_save" in name]
    if lost:
        raise ModelError(f"{folder}: {len(lost)} matrices do not fit the model, first {lost[0]}; save them again")
