"""Rollouts of two turns: what the policy reads, what it is trained on, and what a reward judges."""

import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

import grpo_lab as gl
from grpo_lab.core.batch import Batch
from grpo_lab.core.logprobs import completion_logprobs
from grpo_lab.errors import ConfigError
from grpo_lab.events import Evaluated, Stepped
from grpo_lab.tasks import tasks
from grpo_lab.training import passes, rollouts, wrong_formulas
from grpo_lab.training.state import Training
from grpo_lab.training.variants import TwoTurns, variants

TWO_TURNS = ("data.tasks=open_sums", "data.rewards=true_sum", "data.tool=adding_machine")
SMALL = ("run.threads=1", "run.device=cpu", "run.num_steps=1", "data.num_prompts=6", "data.num_generations=4")


def config(*overrides):
    return gl.preset("plain").with_(*SMALL, *TWO_TURNS, *overrides)


def rollout(tiny, *overrides):
    """The batch of a run's first step, its prompts, and the trainer."""
    training = Training(config(*overrides), tiny)
    training.begin_stage("grpo")
    trainer: Any = training.trainer
    prompts, batch = trainer.rollout(training.begin(0))
    return prompts, batch, trainer


def parts_of(batch, row):
    """The tokens of a completion up to its last sampled one, and whether the policy sampled each."""
    last = int(batch.completion_mask[row].nonzero().max()) + 1
    return batch.completions[row, :last].tolist(), batch.completion_mask[row, :last].tolist()


@pytest.mark.parametrize("overrides", [(), ("data.call_length=2",), ("run.streams=3",), ("sampling.top_p=0.9",)])
def test_the_tool_writes_between_two_turns_and_its_tokens_are_not_trained(tiny, overrides):
    prompts, batch, _ = rollout(tiny, *overrides)
    written = []
    for row, group in enumerate(batch.group.tolist()):
        tokens, sampled = parts_of(batch, row)
        first, last = sampled.index(False), len(sampled) - sampled[::-1].index(False)
        assert not any(sampled[first:last]), "the tool's tokens stand side by side"
        assert 1 <= first <= 2 and last < len(sampled), "a turn of the policy on both sides"
        problem, call = prompts.problems[group], tiny[1].decode(tokens[:first], skip_special_tokens=True)
        output = tasks.adding_machine(problem.prompt, call, **problem.columns)
        assert tiny[1].decode(tokens[first:last]) == output
        assert batch.sampling_logprobs[row, first:last].eq(0).all() and batch.entropy[row, first:last].eq(0).all()
        written.append(output)
        assert prompts.texts[row] == tiny[1].decode(tokens, skip_special_tokens=True), "a reward reads all of it"
    assert len({len(output) for output in written}) > 1, "outputs of several lengths"


@pytest.mark.parametrize("name", passes.PASSES)
def test_the_policy_reads_the_tools_output_in_every_pass(tiny, name):
    _, batch, _ = rollout(tiny)
    with torch.no_grad():
        states, head = passes.PASSES[name](tiny[0], batch)
        again = completion_logprobs(head(states), batch.completions).masked_fill(~batch.completion_mask, 0.0)
    torch.testing.assert_close(batch.sampling_logprobs, again, rtol=1e-4, atol=1e-4)
    ids = torch.cat([batch.prompt_ids[batch.group[0]], batch.completions[0]])[None]  # no prompt is padded here
    alone = tiny[0](ids, use_cache=False).logits[:, batch.prompt_ids.shape[1] - 1 : -1]
    alone = completion_logprobs(alone, batch.completions[:1]).masked_fill(~batch.completion_mask[:1], 0.0)
    torch.testing.assert_close(batch.sampling_logprobs[:1], alone, rtol=1e-4, atol=1e-4)


def test_the_wrong_mask_trains_the_tools_tokens_and_no_padding(tiny):
    _, batch, _ = rollout(tiny)
    trained = wrong_formulas.mask_with_tool(batch, pad=0)
    for row in range(len(trained)):
        tokens, sampled = parts_of(batch, row)
        assert trained[row].tolist() == [True] * len(tokens) + [False] * (trained.shape[1] - len(tokens))
        assert sampled.count(False) > 0


def again(tiny, *overrides):
    """The rows of a batch as sampled, and the same tokenised again: tokens, mask and log-probabilities of each."""
    found = []
    for how in ("tokens", "text"):
        prompts, batch, _ = rollout(tiny, f"data.train_on={how}", *overrides)
        rows = [parts_of(batch, row) for row in range(len(batch.group))]
        assert batch.entropy.shape == batch.completions.shape == batch.sampling_logprobs.shape
        assert batch.sampling_logprobs[~batch.completion_mask].eq(0).all()
        noted = [batch.sampling_logprobs[row, : len(ids)].tolist() for row, (ids, _) in enumerate(rows)]
        found.append((prompts.texts, rows, noted))
    (texts, sampled, noted), (written, trained, moved) = found
    assert texts == written, "a reward reads the same text"
    return zip(sampled, noted, trained, moved, strict=True)


@pytest.mark.parametrize("overrides", [(), ("run.streams=3",), ("sampling.top_p=0.9999",)])
def test_a_template_closes_the_first_turn_with_an_end_token_that_was_not_sampled(tiny, overrides):
    end, closed = tiny[1].eos_token_id, 0
    for (ids, mask), logprobs, (trained, trained_mask), moved in again(tiny, *overrides):
        assert mask[1] is False, "the first turn is one token"
        if ids[0] == end:  # sampled: there is one all the same, with its log-probability
            assert (trained, trained_mask, moved) == (ids, mask, logprobs)
            continue
        closed += 1
        assert trained == [ids[0], end, *ids[1:]] and trained_mask == [True, True, *mask[1:]]
        assert moved == [logprobs[0], 0.0, *logprobs[1:]], "what was sampled keeps its log-probability"
    assert closed > 20


def test_a_template_closes_an_answer_that_was_cut_off(tiny):
    end = tiny[1].eos_token_id
    for (ids, _), _, (trained, _), _ in again(tiny, "sampling.max_completion_length=1"):
        assert trained[-1] == end and trained[-2] != end and (ids[-1] == end or ids[-1] == trained[-2])


def test_tokens_that_the_tokenizer_merges_come_back_as_one(tiny):
    model = BPE(vocab={"1": 0, "2": 1, "12": 2, "<end>": 3, "<pad>": 4}, merges=[("1", "2")])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(model), eos_token="<end>", pad_token="<pad>")
    ids, mask = torch.tensor([[0, 1, 3], [1, 0, 4]]), torch.tensor([[True] * 3, [True, True, False]])
    values, of_prompt = torch.tensor([[-1.0, -2.0, -3.0], [-4.0, -5.0, 0.0]]), torch.zeros(1, 1).long()
    turn = Batch(of_prompt, of_prompt, torch.zeros(2).long(), ids, mask, values, entropy=-values)
    found = rollouts.tokenised_again(turn, tokenizer)
    assert found.completions.tolist() == [[2, 3, 4], [1, 0, 3]]
    assert found.completion_mask.tolist() == [[True, True, False], [True] * 3]
    assert found.sampling_logprobs.tolist() == [[-1.0, -2.0, 0.0], [-4.0, -5.0, 0.0]], (
        "of other tokens, from the merge on"
    )
    assert found.entropy is not None and found.entropy.equal(-found.sampling_logprobs)
    shorter = rollouts.tokenised_again(turn.rows(torch.tensor([0])), tokenizer)
    assert shorter.completions.tolist() == [[2, 3]] and shorter.sampling_logprobs.tolist() == [[-1.0, -2.0]]


def test_completions_of_one_turn_are_untouched_by_the_wrong_mask(tiny):
    _, batch, trainer = rollout(tiny, "data.tool=", "data.tasks=addition", "data.rewards=exact_match")
    assert not isinstance(trainer, TwoTurns)
    assert wrong_formulas.mask_with_tool(batch, pad=0).equal(batch.completion_mask)


def test_a_run_without_a_tool_has_no_part_for_one(tiny):
    assert TwoTurns in variants(config(), {}, tiny[0])
    assert TwoTurns not in variants(config("data.tool="), {}, tiny[0])


def test_held_out_problems_have_two_turns_too():
    """In one turn no completion of these prompts can be a true sum."""
    events = list(gl.train(config("run.num_eval=64", "run.seed=1")))
    before, after = (event for event in events if isinstance(event, Evaluated))
    assert before.reward > 0.1 and after.num_problems == 64
    (step,) = (event for event in events if isinstance(event, Stepped))
    assert all(re.match(r"..?\+\d+=|\+\d+=", text) for _, text, _ in step.samples), "the log shows the tool's output"


def test_a_tool_of_the_users_own(tiny, tmp_path):
    (tmp_path / "mine.py").write_text("def more(prompt, call, **columns):\n    return '+7=' if prompt > '4' else ''\n")
    prompts, batch, _ = rollout(tiny, f"data.tool={tmp_path / 'mine.py'}:more", "data.num_prompts=8")
    said = [
        ("+7=" in text, prompts.problems[int(g)].prompt > "4")
        for text, g in zip(prompts.texts, batch.group, strict=True)
    ]
    assert {has for has, _ in said} == {True, False} and all(has == wanted for has, wanted in said)


def test_a_tool_that_writes_nothing_at_all(tiny, tmp_path):
    (tmp_path / "mine.py").write_text("def nothing(prompt, call, **columns):\n    return ''\n")
    _, batch, _ = rollout(tiny, f"data.tool={tmp_path / 'mine.py'}:nothing")
    assert all(all(parts_of(batch, row)[1]) for row in range(len(batch.group)))


def test_a_tools_mistakes_are_named(tiny, tmp_path):
    with pytest.raises(ConfigError, match=r"data\.tool 'adding_machin'; did you mean 'adding_machine'"):
        Training(config("data.tool=adding_machin"), tiny)
    (tmp_path / "mine.py").write_text("def number(prompt, call, **columns):\n    return 7\n")
    with pytest.raises(ConfigError, match="number' returned 7; it must return a text"):
        rollout(tiny, f"data.tool={tmp_path / 'mine.py'}:number")
    with pytest.raises(ConfigError, match="max_completion_length = 60 exceed"):
        rollout(tiny, "sampling.max_completion_length=60")


def test_the_tokens_of_a_completion_go_on_behind_a_tool(tiny):
    _, batch, _ = rollout(tiny)
    ids = rollouts.token_ids(batch)
    assert ids == [parts_of(batch, row)[0] for row in range(len(batch.group))]
    nothing = replace(batch, completion_mask=torch.zeros_like(batch.completion_mask))
    assert rollouts.token_ids(nothing) == [[]] * len(batch.group)
