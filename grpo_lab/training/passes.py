"""The passes over completions that a config may name, and the models that they fit."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from grpo_lab.core.batch import Batch
from grpo_lab.core.logprobs import Head, Pass, shared_pass
from grpo_lab.core.packing import visible
from grpo_lab.errors import ConfigError, ModelError


def plain_pass(model: Any, batch: Batch) -> tuple[Tensor, Head]:
    """The usual way: every prompt is repeated for each completion, and the model itself makes the logits."""
    prompt_mask = batch.prompt_mask[batch.group]
    mask = torch.cat([prompt_mask, prompt_mask.new_ones(batch.completions.shape)], dim=1)
    output = model(
        input_ids=torch.cat([batch.prompt_ids[batch.group], batch.completions], dim=1),
        attention_mask=visible(mask),
        position_ids=(mask.cumsum(dim=1) - 1).clamp(min=0),
        use_cache=False,
        logits_to_keep=batch.completions.shape[1] + 1,
    )
    return output.logits[:, :-1], lambda logits: logits


PASSES: dict[str, Pass] = {"shared": shared_pass, "plain": plain_pass}


def prepare_attention(model: Any) -> None:
    """Let a model's attention take masks (b, 1, t, k) of bool. Raises ConfigError for one that takes none."""
    if (kind := model.config._attn_implementation) not in ("sdpa", "eager"):
        raise ConfigError(f"attention {kind!r} takes no mask: load the model with attn_implementation='sdpa'")
    if kind == "eager" and _added_to_scores not in model.base_model._forward_pre_hooks.values():
        model.base_model.register_forward_pre_hook(_added_to_scores, with_kwargs=True)


def _added_to_scores(trunk: Any, args: Any, given: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The arguments of a model with eager attention, which adds its mask to the scores: 0 for a slot that is seen."""
    mask = given.get("attention_mask")
    if mask is None or mask.dtype != torch.bool:
        return args, given
    added = torch.zeros(mask.shape, dtype=trunk.dtype, device=mask.device)
    return args, {**given, "attention_mask": added.masked_fill(~mask, torch.finfo(trunk.dtype).min)}


@torch.no_grad()
def check(model: Any, name: str) -> None:
    """Raise ModelError for a model on which the pass of this name differs from each completion alone, without padding.

    Such a model changes its logits after its head (a soft cap, a scale), is no plain trunk with a head, or does not
    heed a mask with four dimensions.
    """
    prepare_attention(model)
    prompt_ids, completions = torch.tensor([[0, 1, 2], [3, 2, 1]]), torch.tensor([[1, 2], [3, 0], [2, 2], [0, 1]])
    mask, blank = torch.ones(completions.shape, dtype=torch.bool), torch.zeros(completions.shape)
    inputs = (prompt_ids, (prompt_ids > 0).long(), torch.tensor([0, 0, 1, 1]), completions, mask, blank, blank)
    batch = Batch(*(tensor.to(model.device) for tensor in inputs))
    alone = [
        torch.cat([batch.prompt_ids[i][batch.prompt_mask[i] > 0], row])
        for i, row in zip(batch.group, batch.completions, strict=True)
    ]
    expected = torch.stack([model(input_ids=ids[None], use_cache=False).logits[0, -3:-1] for ids in alone]).float()
    rounding = torch.finfo(model.dtype).eps ** 0.5 if model.device.type == "cpu" else 0.05  # TF32 on a GPU
    way_out = {"plain": "it cannot be trained here"}.get(name, "set model.prompt_pass=plain")
    try:
        hidden, head = PASSES[name](model, batch)
        gap, allowed = (head(hidden).float() - expected).abs().max(), expected.abs().max() * rounding
    except (AttributeError, TypeError, ValueError, RuntimeError) as error:
        cause = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ModelError(f"{model.config.model_type}: model.prompt_pass={name} fails ({cause}); {way_out}") from error
    if expected.isfinite().all() and not gap <= allowed:
        raise ModelError(
            f"{model.config.model_type}: model.prompt_pass={name} gives logits that differ by {gap:.3g} from those of "
            f"each completion alone (at most {allowed:.3g} may be rounding): {way_out}"
        )
