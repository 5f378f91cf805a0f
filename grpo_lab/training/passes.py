"""Passes of a model over a batch's completions, for the reference's, the old and the current log-probabilities.

`shared` runs a prompt once for several completions: they stand in one row behind it, and a mask keeps them apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor

from grpo_lab.algorithm.batch import Batch
from grpo_lab.algorithm.logprobs import CHUNK, completion_logprobs, head_logprobs
from grpo_lab.errors import ModelError
from grpo_lab.events import Stage
from grpo_lab.training import masks
from grpo_lab.training.attempt import Attempt
from grpo_lab.training.recorder import extremes

Head = Callable[[Tensor], Tensor]
Pass = Callable[[Any, Batch], tuple[Tensor, Head]]
"""From a model and a batch: the state before each token, (B, T, D), and the head that makes logits (…, V) of states."""


def done(logits: Tensor) -> Tensor:
    """The head of a pass whose states are the logits."""
    return logits


def plain_pass(model: Any, batch: Batch) -> tuple[Tensor, Head]:
    """The usual way: every prompt is repeated for each completion, and the model itself makes the logits."""
    prompt_mask = batch.prompt_mask[batch.group]
    mask = torch.cat([prompt_mask, prompt_mask.new_ones(batch.completions.shape)], dim=1)
    output = model(
        input_ids=torch.cat([batch.prompt_ids[batch.group], batch.completions], dim=1),
        attention_mask=masks.as_attention_takes_it(model, masks.causal(mask.bool(), mask.shape[1])),
        position_ids=(mask.cumsum(dim=1) - 1).clamp(min=0),
        use_cache=False,
        logits_to_keep=batch.completions.shape[1] + 1,
    )
    return output.logits[:, :-1], done


def shared_pass(model: Any, batch: Batch) -> tuple[Tensor, Head]:
    """Each prompt is run once for the completions of a row; states before tokens outside the mask have no meaning."""
    packing = pack(batch, model.config.hidden_size)
    output = model.base_model(
        input_ids=packing.tokens,
        attention_mask=masks.as_attention_takes_it(model, packing.visible()),
        position_ids=packing.positions,
        use_cache=False,
    )
    return output.last_hidden_state.flatten(0, 1)[packing.predicts], model.get_output_embeddings()


PASSES: dict[str, Pass] = {"shared": shared_pass, "plain": plain_pass}


@torch.no_grad()
def check(model: Any, name: str) -> None:
    """Raise ModelError for a model on which the pass of this name differs from each completion alone, without padding.

    Such a model changes its logits after its head (a soft cap, a scale), is no plain trunk with a head, or does not
    heed a mask with four dimensions.
    """
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


def ignore(logits: Tensor, tokens: Tensor) -> None:
    """Do nothing with logits (…, V) and the tokens (…) that follow, -1 outside the mask."""


def logprobs(
    model: Any,
    run: Pass,
    batch: Batch,
    attempt: Attempt,
    note: str,
    watch: Callable[[Tensor, Tensor], None] = ignore,
    whole: list[Tensor] | None = None,
) -> Tensor:
    """Log-probabilities (B, T) of the completions' tokens under a model, in nats; without a meaning outside the mask.

    Large logits of the shared pass are never there as a whole, unless an intervention wants them or a list is given as
    `whole`, which receives them with their gradient; `watch` receives them in parts, as `ignore` does.
    """
    hidden, head = run(model, batch)
    step, mask, tokens = attempt.step, batch.completion_mask, batch.completions
    small = mask.numel() * model.config.vocab_size <= CHUNK
    # A subclass, such as a quantised layer, multiplies in its own way.
    if type(head) is not torch.nn.Linear or small or attempt.intervenes(Stage.LOGITS) or whole is not None:
        logits = attempt.apply(Stage.LOGITS, head(hidden), note)
        if whole is not None:
            whole.append(logits)
        watch(logits.detach(), torch.where(mask, tokens, -1))
        return completion_logprobs(logits, tokens, step.sampling.temperature)

    chosen, seen = tokens[mask], 0

    def look(logits: Tensor) -> None:
        nonlocal seen
        watch(logits, chosen[seen : seen + len(logits)])
        seen += len(logits)
        step.recorder.note(Stage.LOGITS, extremes(logits), logits.numel(), step.update, note)

    found = head_logprobs(hidden[mask], cast(torch.nn.Linear, head), chosen, step.sampling.temperature, look)
    return torch.zeros(mask.shape, device=mask.device).masked_scatter(mask, found)


@dataclass(frozen=True)
class Packing:
    """R rows of L slots: a prompt, padded on its left, and some of its completions behind each other."""

    tokens: Tensor
    """(R, L) int."""
    positions: Tensor
    """(R, L) int: every completion goes on where its prompt ends."""
    segments: Tensor
    """(R, L) int: -1 for padding, 0 for the prompt, b + 1 for completion b."""
    predicts: Tensor
    """(B, T) int: the slot, counted over all rows, whose hidden state predicts the token."""

    def visible(self) -> Tensor:
        """(R, L, L) bool: a token sees its prompt, its own completion so far, and always itself."""
        query, key = self.segments[:, :, None], self.segments[:, None, :]
        seen = (key == 0) | ((key == query) & (key > 0))
        itself = torch.eye(self.segments.shape[1], dtype=torch.bool, device=self.segments.device)
        return seen.tril() | itself


def pack(batch: Batch, hidden_size: int) -> Packing:
    """The rows of the batch's completions, as many in a row as cost the least work.

    A completion's last token predicts nothing and is left out, as is everything outside the mask. The host lays the
    rows out: it waits for the device once, and the device has one transfer and one gather.
    """
    (size, width), start, given = batch.completions.shape, batch.prompt_ids.shape[1], batch.prompt_mask
    steps = torch.arange(width, device=given.device)
    used_up = (batch.completion_mask * (steps + 1)).amax(dim=1).sub(1).clamp(min=0)
    prompt, group, inputs = torch.cat([given.flatten(), batch.group, used_up]).cpu().split([given.numel(), size, size])
    prompt, steps = prompt.view(-1, start), torch.arange(width)
    rows = _least_work(group.tolist(), inputs.tolist(), start, hidden_size)
    of, used = torch.tensor(rows.prompt), steps < inputs[:, None]
    slots = torch.tensor(rows.begin)[:, None] + steps
    prompt_end = (torch.tensor(rows.row) * rows.length + start - 1)[:, None]

    def laid_out(before: Tensor, behind: Tensor) -> Tensor:
        """(R, L): values of the prompts (P, S), behind them those of the completions (B, T), and -1."""
        whole = before.new_full((len(of), rows.length), -1)
        whole[:, :start] = before[of]
        whole.view(-1)[slots[used]] = behind[used].to(whole.dtype)
        return whole

    positions = laid_out(prompt.cumsum(dim=1) - 1, prompt.sum(dim=1)[group][:, None] + steps)
    segments = laid_out(prompt - 1, torch.arange(1, size + 1)[:, None].expand(size, width))
    places = torch.arange(prompt.numel() + size * width)
    sources = laid_out(places[: prompt.numel()].view_as(prompt), places[prompt.numel() :].view(size, width))
    predicts = torch.cat([prompt_end, torch.where(used, slots, prompt_end)[:, :-1]], dim=1)
    laid = [positions.clamp(min=0), segments, sources, predicts]
    there = torch.cat([each.flatten() for each in laid]).to(given.device, non_blocking=True)
    positions, segments, sources, predicts = map(Tensor.view_as, there.split([each.numel() for each in laid]), laid)
    known = torch.cat([batch.prompt_ids.flatten(), batch.completions.flatten(), given.new_zeros(1)])
    return Packing(known[sources], positions, segments, predicts)  # -1 finds the last one


@dataclass
class _Rows:
    """The places of completions: row and first slot of each, counted over all rows; the prompt of each row."""

    row: list[int] = field(default_factory=list)
    begin: list[int] = field(default_factory=list)
    prompt: list[int] = field(default_factory=list)
    length: int = 0


def _least_work(group: list[int], inputs: list[int], start: int, hidden_size: int) -> _Rows:
    """Rows of a group's half, quarter, … or of all of it.

    Of each layer, a token costs about 12 D^2 multiplications, and 2 D for every slot that it could attend to.
    """
    most = max(Counter(group).values())
    sizes = {-(-most // parts) for parts in (1, 2, 4, 8, most)}
    tried = [_rows(group, inputs, start, in_a_row) for in_a_row in sizes]
    return min(tried, key=lambda rows: len(rows.prompt) * rows.length * (6 * hidden_size + rows.length))


def _rows(group: list[int], inputs: list[int], start: int, in_a_row: int) -> _Rows:
    rows, open_row, room, ends = _Rows(), {}, Counter(), []
    for prompt, count in zip(group, inputs, strict=True):
        if not room[prompt]:
            open_row[prompt], room[prompt] = len(ends), in_a_row
            rows.prompt.append(prompt)
            ends.append(start)
        row = open_row[prompt]
        rows.row.append(row)
        rows.begin.append(ends[row])
        room[prompt] -= 1
        ends[row] += count
    rows.length = max(ends)
    rows.begin = [row * rows.length + slot for row, slot in zip(rows.row, rows.begin, strict=True)]
    return rows
