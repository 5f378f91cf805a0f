"""Sampling: a prompt's cache, softmax, torch.multinomial, and the log-probability of what was drawn."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from grpo_lab.core.batch import Batch
from grpo_lab.core.hooks import Sampling, Stage
from grpo_lab.core.packing import visible

Distribution = Callable[[Tensor, Tensor, Tensor], Tensor]
"""From logits (b, V), the tokens (B, t) drawn so far and the completions (b,) that go on, to probabilities (b, V)."""


def tempered(temperature: float) -> Distribution:
    """The softmax of logits / temperature."""
    return lambda logits, drawn, alive: (logits / temperature).softmax(dim=-1)


@torch.no_grad()
def sample(
    model: Any,
    prompt_ids: Tensor,
    prompt_mask: Tensor,
    num_generations: int,
    sampling: Sampling,
    ends: Tensor,
    pad: int,
    generator: torch.Generator,
    apply: Callable[..., Any],
    distribution: Distribution,
) -> Batch:
    """Draw `num_generations` completions of each prompt, one token at a time.

    A prompt is run once, and its cache repeated for its completions. Completions that have drawn one of the tokens
    `ends` (E,) leave the computation. `apply` passes logits and probabilities through the interventions of their
    stages.
    """
    device, length = prompt_ids.device, sampling.max_completion_length
    group = torch.arange(len(prompt_ids), device=device).repeat_interleave(num_generations)
    completions = torch.full((len(group), length), pad, device=device)
    mask = torch.zeros(completions.shape, dtype=torch.bool, device=device)
    logprobs = torch.zeros(completions.shape, device=device)
    mask_of_prompt, positions = visible(prompt_mask), (prompt_mask.cumsum(dim=1) - 1).clamp(min=0)
    output = model(
        input_ids=prompt_ids, attention_mask=mask_of_prompt, position_ids=positions, use_cache=True, logits_to_keep=1
    )
    cache, logits, alive = output.past_key_values, output.logits[group], torch.arange(len(group), device=device)
    cache.reorder_cache(group)  # batch_select_indices does the same, several times slower on a CPU
    keys, positions = prompt_mask.bool()[group], prompt_mask.sum(1, keepdim=True)[group]
    width = 0
    for column in range(length):
        width = column + 1
        logits = apply(Stage.LOGITS, logits, "sampling")[:, -1].float()
        probabilities = apply(Stage.PROBABILITIES, distribution(logits, completions[:, :column], alive))
        tokens = torch.multinomial(probabilities, 1, generator=generator)
        completions[alive, column] = tokens[:, 0]
        mask[:, column].index_fill_(0, alive, True)  # `= True` would copy it to the device, and wait
        logprobs[alive, column] = probabilities.gather(1, tokens)[:, 0].log()
        over = torch.isin(tokens[:, 0], ends).tolist()  # the only wait for the device
        if all(over) or width == length:
            break
        if any(over):
            going = torch.tensor([row for row, ended in enumerate(over) if not ended]).to(device, non_blocking=True)
            alive, tokens, keys, positions = alive[going], tokens[going], keys[going], positions[going]
            cache.reorder_cache(going)
        keys = torch.cat([keys, keys.new_ones(tokens.shape)], dim=1)
        seen = keys[:, None, None]
        output = model(
            input_ids=tokens, attention_mask=seen, position_ids=positions, past_key_values=cache, use_cache=True
        )
        logits = output.logits
        positions = positions + 1
    ended = (torch.isin(completions, ends) & mask).any(dim=1)
    columns = (each[:, :width] for each in (completions, mask, logprobs))
    return Batch(prompt_ids, prompt_mask, group, *columns, ended=ended)
