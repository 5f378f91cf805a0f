"""The recipe of the tiny model that ships with the package: partly trained on addition, so that GRPO can improve it."""

import random
from collections.abc import Callable, Sequence
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
from grpo_lab.models.registry import write_page
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


def build_tiny(
    directory: Path,
    seed: int = 0,
    progress: Callable[[int, int], None] = lambda done, total: None,
    num_steps: int = NUM_STEPS,
) -> dict[str, Any]:
    """Train the tiny model on addition and write it, its tokenizer and a README to `directory`; about two minutes.

    The same seed gives the same weights on one machine; other processors round otherwise and end close by.
    `progress` is called with (steps done, steps in all). Returns accuracy, number of parameters and checksums.
    """
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)  # before the training, which would be lost if this failed after it
    problems, tokenizer, num_threads = tasks.addition(), build_tokenizer(), torch.get_num_threads()
    # Dropout and initial weights draw from torch's global generator on the CPU; no other one is seeded.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seeds.derive(seed, 0, "build-tiny"))
        torch.set_num_threads(1)  # another number of threads gives other bits
        try:
            model = trained(tokenizer, problems, seed, num_steps, progress)
            accuracy = sampled_accuracy(model, *encode(tokenizer, problems.held_out))
        finally:
            torch.set_num_threads(num_threads)
    with quiet():
        model.save_pretrained(directory)
        tokenizer.save_pretrained(directory)
    built = {
        "seed": seed,
        "num_steps": num_steps,
        "accuracy": accuracy,
        "parameters": model.num_parameters(),
        "sha256": {name: sha256(directory / name) for name in CHECKED_FILES},
    }
    constants = {"slips": SLIPS, "batch_size": BATCH_SIZE, "learning_rate": LEARNING_RATE}
    write_page(directory, "tiny", **built, **constants)
    return built


def trained(
    tokenizer: PreTrainedTokenizerFast, problems: Tasks, seed: int, num_steps: int, progress: Callable[[int, int], None]
) -> GPT2LMHeadModel:
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
        progress(step + 1, num_steps)
    return model
