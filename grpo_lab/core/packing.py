"""The shared-prompt pass: a prompt and its completions stand in one row, and a mask keeps the completions apart."""

import torch
from torch import Tensor

from grpo_lab.core.batch import Batch


def pack(batch: Batch, hidden_size: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Lay out the batch in R rows of L slots: a prompt, padded on its left, and behind it some of its completions.

    Returns tokens (R, L), their positions (R, L), which go on where the prompt ends, the slots (R, 1, L, L) that each
    slot sees, and the slot (B, T), counted over all rows, whose hidden state predicts each token.

    All completions of a prompt stand in one row, or each in a row of its own if that is less work, by one rule: of each
    layer a slot costs about 12 D^2 multiplications, and 2 D for every slot of its row, so R rows of L slots cost
    R L (6 D + L). A completion's last token predicts nothing and is left out, as is everything outside the mask.
    """
    (size, width), (rows, start), device = batch.completions.shape, batch.prompt_ids.shape, batch.group.device
    steps, each = torch.arange(width, device=device), torch.arange(size, device=device)
    row, of_row = batch.group, slice(None)
    count = (batch.completion_mask * steps).amax(dim=1)  # tokens before a completion's last trained one
    before = ((row[:, None] == row).tril(-1) * count).sum(dim=1)  # those of the completions before it in its row
    most = torch.stack([(before + count).max(), count.max()]).tolist()  # waits for the device, once
    length, alone = start + most[0], start + most[1]
    if size * alone * (6 * hidden_size + alone) < rows * length * (6 * hidden_size + length):
        rows, length, row, of_row, before = size, alone, each, row, torch.zeros_like(before)
    behind = row * length + start  # the first slot behind the prompt
    inside, slots = steps < count[:, None], (behind + before)[:, None] + steps

    places = batch.prompt_mask.cumsum(dim=1)
    of_prompts = torch.stack([batch.prompt_ids, places - batch.prompt_mask, batch.prompt_mask])
    after = places[:, -1:][batch.group] + steps
    of_completions = torch.stack([batch.completions, after, (each + 2)[:, None].expand(size, width)])
    laid_out = torch.zeros(3, rows * length + 1, dtype=torch.long, device=device)  # the last slot takes what is outside
    laid_out[:, torch.where(inside, slots, rows * length)] = of_completions
    laid_out = laid_out[:, :-1].view(3, rows, length)
    laid_out[:, :, :start] = of_prompts[:, of_row]
    tokens, positions, owners = laid_out

    before_each = torch.cat([behind[:, None], torch.where(inside, slots + 1, behind[:, None])[:, :-1]], dim=1) - 1
    return tokens, positions, visible(owners), before_each


def visible(owners: Tensor) -> Tensor:
    """(b, 1, k, k) bool: the slots that each slot sees, which are the prompt's and those of its own owner so far.

    `owners` (b, k) are 0 for padding, 1 for a prompt, and other numbers for completions. Padding sees padding, because
    a slot that sees nothing gives NaN. transformers takes a mask with four dimensions as it is; to make one itself, it
    waits for the device.

    >>> visible(torch.tensor([[0, 1, 2, 3]])).int().tolist()
    [[[[1, 0, 0, 0], [0, 1, 0, 0], [0, 1, 1, 0], [0, 1, 0, 1]]]]
    """
    query, key = owners[:, :, None], owners[:, None, :]
    return ((key == 1) | (key == query)).tril()[:, None]
