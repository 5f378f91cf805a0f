"""Token notes: by hand on a tiny batch, in runs, in files, and as text."""

import json
import math
from pathlib import Path

import pytest
import torch

from grpo_lab.config.catalog import scenario
from grpo_lab.config.schema import Config
from grpo_lab.core.batch import Batch
from grpo_lab.events import CompletionNote, Stepped, from_json, to_json
from grpo_lab.models import loading
from grpo_lab.runs.recordings import find
from grpo_lab.training.token_notes import Texts, TokenNotes, token_text
from grpo_lab.training.trainer import train

LN2, LN3 = math.log(2), math.log(3)


@pytest.fixture(scope="module")
def tokenizer():
    return loading.load("tiny", "fp32", "cpu")[1]


def notes_of(config) -> list[Stepped]:
    return [event for event in train(config) if isinstance(event, Stepped)]


def batch_of(completions, trained, **values) -> Batch:
    ids = torch.tensor(completions)
    prompts = torch.tensor([[257, 16], [17, 18]])  # "1" behind a pad token, and "23"
    mask, group = torch.tensor([[0, 1], [1, 1]]), torch.tensor([0, 0, 1, 1])[: len(ids)]
    numbers = {name: torch.tensor(each) for name, each in values.items()}
    return Batch(prompts, mask, group, ids, torch.tensor(trained), torch.zeros(ids.shape), **numbers)


def test_by_hand(tokenizer):
    """Four completions of two tokens: the second has the largest ratio, the third the largest KL, all clipped or not
    as 1 ± 0.2 says."""
    batch = batch_of(
        [[52, 256], [53, 256], [54, 256], [55, 257]],
        [[True, True]] * 3 + [[True, False]],
        advantages=[1.0, -1.0, 0.5, 1.0],
        weights=[[0.125, 0.125]] * 4,
        old_logprobs=[[-1.0, -1.0]] * 4,
        ref_logprobs=[[-1.0, -1.0], [-1.0, -1.0], [-1.0 + LN3, -1.0], [-1.0, 0.0]],
    )
    log_ratio = torch.tensor([[LN2, 0.0], [0.0, 5 * LN2], [0.0, 0.0], [-LN2, 0.0]])
    notes = TokenNotes()
    for offset in (0, 4):  # two micro-batches: the second one's completions are the numbers 4 to 7
        notes.tensor("logprobs", log_ratio - 1 + offset)
        notes.begin(batch, "", 1, log_ratio * (1 if offset else 0.5), (0.8, 1.2))
        notes.tensor("ratio", log_ratio.exp())
        notes.tensor("kl_delta", torch.tensor([[0.0, 0.0], [0.0, 0.0], [LN3, 0.0], [0.0, 0.0]]))
        notes.tensor("log_ratio_gradient", torch.tensor([[0.0, 0.25], [0.0, 4.0], [0.5, 0.0], [0.125, 0.0]]))
    found = {note.number: note for note in notes.flush(Texts(tokenizer))}
    assert found[5].why == ("log_ratio",) and found[1].why == ("gradient",), "the larger of two, else the first"
    assert found[2].why == ("kl",) and {note.why for note in found.values()} >= {("usual",)}
    worst = found[5]
    assert (worst.update, worst.prompt, worst.tokens) == (1, "1", ("V", "<|endoftext|>"))
    assert (worst.advantage, worst.weight) == (-1.0, 0.125)
    assert worst.log_ratio == (0.0, 3.4657) and worst.ratio == (1.0, 32.0) and worst.logprobs == (3.0, 6.4657)
    assert worst.clipped == (False, False), "a higher ratio of a negative advantage is not clipped"
    assert found[2].kl == (0.90139, 0.0) and found[2].prompt == "23", "3 - 1 - log 3"
    assert found[2].ref_logprobs == (0.098612, -1.0) and found[2].gradient == (0.5, 0.0)
    assert notes.flush(Texts(tokenizer)) == (), "each step begins anew"

    notes.tensor("logprobs", log_ratio)
    notes.begin(batch, "", 0, log_ratio, (0.8, 1.2))
    notes.tensor("ratio", torch.tensor([[2.0, 1.0], [1.0, 32.0], [1.0, math.inf], [0.5, 1.0]]))
    found = {note.number: note for note in notes.flush(Texts(tokenizer))}  # the step ended before its backward pass
    assert found[2].why[0] == "nonfinite" and found[2].gradient == () and found[2].kl == ()
    assert found[2].clipped == (False, True) and found[2].ratio == (1.0, math.inf)
    assert [note.tokens for note in found.values() if note.number == 3] in ([], [("X",)]), "padding is no token"


def place(note: CompletionNote, name: str) -> str:
    """Completion and token of the largest magnitude, as links name it."""
    values = [abs(value) for value in getattr(note, name)]
    return f"[{note.number}, {values.index(max(values))}]"


def test_the_worst_are_those_that_the_links_name():
    for event in notes_of(scenario("train-001").config().with_("run.num_steps=3", "run.num_eval=0")):
        assert 4 <= len(event.completions) <= 8
        for name, link in (("log_ratio", "log_ratio"), ("gradient", "log_ratio_gradient")):
            worst = max((note for note in event.links if note.link == link), key=lambda note: note.magnitude)
            note = next(note for note in event.completions if name in note.why)
            assert (place(note, name), note.update) == (worst.where, worst.update), (event.step, name)
            assert max(map(abs, getattr(note, name))) == pytest.approx(worst.magnitude, rel=1e-4)
        for note in event.completions:
            lists = [getattr(note, name) for name in CompletionNote.__slots__ if isinstance(getattr(note, name), tuple)]
            assert {len(each) for each in lists[1:]} == {len(note.tokens)}
            assert note.tokens[-1] == "<|endoftext|>" or len(note.tokens) == 5


def test_the_first_that_is_not_finite_is_kept_and_comes_back_from_a_file():
    config = scenario("zero-times-infinity").config().with_("run.num_steps=2", "run.num_eval=0")
    event = notes_of(config)[1]
    note = next(note for note in event.completions if "nonfinite" in note.why)
    where = next(each.where for each in event.links if each.broken)
    assert where == f"[{note.number}, {next(i for i, ratio in enumerate(note.ratio) if math.isinf(ratio))}]"
    assert any(map(math.isnan, note.gradient))
    line = to_json(event)
    read = from_json(line)
    assert isinstance(read, Stepped) and to_json(read) == line
    assert repr(read.completions) == repr(event.completions), "NaN is not equal to itself"
    assert json.loads(line)["completions"][0]["why"]


def test_a_step_without_a_ratio_and_a_file_of_before_have_none(tmp_path):
    (tmp_path / "taught.jsonl").write_text('{"prompt": "1+1=", "completion": "2"}')
    taught = ("run.stages=sft", f"sft.data={tmp_path / 'taught.jsonl'}", "sft.num_steps=1", "run.num_eval=0")
    steps = notes_of(Config().with_(*taught))
    assert [event.completions for event in steps] == [()]
    lines = (Path(find("mystery-1")) / "events.jsonl").read_text().splitlines()
    old = [event for event in map(from_json, lines) if isinstance(event, Stepped)]
    assert old and not any(event.completions for event in old)
    assert "completions" not in json.loads(to_json(old[0]))


def test_tokens_are_text_and_bytes_of_half_a_letter_are_named(tokenizer):
    letters = tokenizer("né€").input_ids
    texts = [token_text(tokenizer, each) for each in [*letters, 256]]
    assert texts == ["n", r"\xc3", r"\xa9", r"\xe2", r"\x82", r"\xac", "<|endoftext|>"]
    assert "\ufffd" not in "".join(texts)
