"""The recipe of the tiny model in data/models/tiny-gpt2: partly trained on addition, so that GRPO can improve it.

`python -m benchmarks.build_tiny FOLDER --seed 0` writes model and tokenizer in about two minutes, and prints accuracy
and checksums for the README beside them.
"""

import argparse
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from torch.nn.utils.rnn import pad_sequence
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from grpo_lab import seeds
from grpo_lab.models.loading import quiet, sha256
from grpo_lab.tasks import tasks
from grpo_lab.tasks.conversations import tokenized
from grpo_lab.tasks.tasks import Problem, Tasks

CHECKED_FILES = ("model.safetensors", "tokenizer.json")
END, PAD = "<|endoftext|>", "<|pad|>"
IGNORED = -100  # the label that the cross entropy leaves out

# With seed 0 the model then answers about 30 % of the held-out problems when sampled at T = 1.
NUM_STEPS = 1140
# Answers with errors make a robust model, which RL can sharpen. A model trained on right answers and stopped early is
# brittle: GRPO's first steps at 3e-4 cost it a third to half of its accuracy.
SLIPS = 0.5
BATCH_SIZE = 64
LEARNING_RATE = 1e-3
WARM_UP_STEPS = 50


def build_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer with one token a byte, in GPT-2's order, and two special tokens: 258 in all.

    Without merges every digit is a token. Id 0 is `!`, as in GPT-2 and Qwen: greedy decoding prints it for NaN logits.

    >>> build_tokenizer()("1+2=!").input_ids
    [16, 10, 17, 28, 0]
    """
    # GPT-2 numbers its byte alphabet by code point: the printable bytes first, then stand-ins for the others.
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(BPE(vocab={character: place for place, character in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=END,
        eos_token=END,
        pad_token=PAD,
        padding_side="left",
        model_max_length=64,
        clean_up_tokenization_spaces=False,
    )


def encode(tokenizer: PreTrainedTokenizerFast, problems: Sequence[Problem]) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and labels, both (N, T) int64: prompt, answer, end; only answer and end are labelled.

    Padded on the right, where no token attends; positions count from 0, as for the left-padded prompts of a rollout.
    """
    prompts = tokenized(tokenizer, [problem.prompt for problem in problems]).input_ids
    answers = tokenizer([problem.columns["answer"] + END for problem in problems]).input_ids
    pairs = list(zip(prompts, answers, strict=True))
    rows = [torch.tensor(prompt + answer) for prompt, answer in pairs]
    labels = [torch.tensor([IGNORED] * len(prompt) + answer) for prompt, answer in pairs]
    padding = tokenizer.get_vocab()[PAD]
    return (
        pad_sequence(rows, batch_first=True, padding_value=padding),
        pad_sequence(labels, batch_first=True, padding_value=IGNORED),
    )


def token_losses(model: GPT2LMHeadModel, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The negative log-probability of each labelled token, 0 elsewhere: (N, T), (N, T) -> (N, T - 1)."""
    logits = model(input_ids=tokens, attention_mask=torch.ones_like(tokens)).logits[:, :-1]
    return F.cross_entropy(logits.transpose(1, 2), labels[:, 1:], ignore_index=IGNORED, reduction="none")


@torch.no_grad()
def sampled_accuracy(model: GPT2LMHeadModel, tokens: torch.Tensor, labels: torch.Tensor) -> float:
    """The expected share of exact answers when sampling at T = 1, from tokens and labels (N, T).

    It is computed without sampling: the mean product of the probabilities of the answer's tokens and the end.
    """
    model.eval()
    return token_losses(model, tokens, labels).sum(-1).neg().exp().mean().item()


def slipped(problem: Problem, generator: random.Random) -> Problem:
    """The problem with a training answer: in half the cases one of its digits is replaced by a random one."""
    if generator.random() >= SLIPS:
        return problem
    digits = list(problem.columns["answer"])
    digits[generator.randrange(len(digits))] = generator.choice("0123456789")
    return replace(problem, columns={"answer": "".join(digits)})


def build_tiny(folder: Path, seed: int = 0, num_steps: int = NUM_STEPS) -> tuple[float, dict[str, str]]:
    """Train the tiny model on addition and write it and its tokenizer; return accuracy, and checksums by file.

    The same seed gives the same weights on one machine; other processors round otherwise and end close by.
    """
    folder.mkdir(parents=True, exist_ok=True)  # before the training, which would be lost if this failed after it
    problems, tokenizer = tasks.addition(), build_tokenizer()
    torch.manual_seed(seeds.derive(seed, 0, "build-tiny"))  # of dropout and initial weights
    model = trained(tokenizer, problems, seed, num_steps)
    accuracy = sampled_accuracy(model, *encode(tokenizer, problems.held_out))
    with quiet():
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return accuracy, {name: sha256(folder / name) for name in CHECKED_FILES}


def trained(tokenizer: PreTrainedTokenizerFast, problems: Tasks, seed: int, num_steps: int) -> GPT2LMHeadModel:
    """GPT-2 with four layers of 128, 0.8 million parameters, trained on answers with errors; dropout 0.1.

    The learning rate warms up and stays: after a decay, one larger step of GRPO destroys the model.
    """
    sizes: Any = {"vocab_size": len(tokenizer), "n_positions": 64, "n_embd": 128, "n_layer": 4, "n_head": 4}
    dropout: Any = {"resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1}
    end, pad = (tokenizer.get_vocab()[token] for token in (END, PAD))
    model = GPT2LMHeadModel(GPT2Config(**sizes, **dropout, bos_token_id=end, eos_token_id=end, pad_token_id=pad))
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    model.train()
    for step in range(num_steps):
        optimizer.param_groups[0]["lr"] = LEARNING_RATE * min((step + 1) / WARM_UP_STEPS, 1.0)
        slips = random.Random(seeds.derive(seed, step, "slips"))
        batch = [slipped(problem, slips) for problem in problems.batch(seed, step, BATCH_SIZE)]
        tokens, labels = encode(tokenizer, batch)
        loss = token_losses(model, tokens, labels).sum() / (labels != IGNORED).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)  # another number of threads gives other bits
    accuracy, checksums = build_tiny(given.folder, given.seed)
    print(f"{accuracy:.1%} of held-out problems exact at T = 1")
    for name, checksum in checksums.items():
        print(f"{checksum}  {name}")


if __name__ == "__main__":
    main()
