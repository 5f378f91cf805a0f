"""The recipe of the tiny models in data/tiny_models.toml: partly trained on addition, so that GRPO can improve them."""

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
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from grpo_lab import seeds
from grpo_lab.models.loading import save, sha256
from grpo_lab.models.registry import write_page
from grpo_lab.paths import data_tables
from grpo_lab.tasks import tasks
from grpo_lab.tasks.conversations import tokenized
from grpo_lab.tasks.tasks import Problem, Tasks

RECIPES = data_tables("tiny_models")
Progress = Callable[[int, int], None]
CHECKED_FILES = ("model.safetensors", "tokenizer.json")
END, PAD = "<|endoftext|>", "<|pad|>"
IGNORED = -100  # the label that the cross entropy leaves out

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
    return (
        pad_sequence(rows, batch_first=True, padding_value=tokenizer.get_vocab()[PAD]),
        pad_sequence(labels, batch_first=True, padding_value=IGNORED),
    )


def token_losses(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The negative log-probability of each labelled token, 0 elsewhere: (N, T, V), (N, T) -> (N, T - 1)."""
    return F.cross_entropy(logits[:, :-1].transpose(1, 2), labels[:, 1:], ignore_index=IGNORED, reduction="none")


@torch.no_grad()
def sampled_accuracy(model: PreTrainedModel, tokens: torch.Tensor, labels: torch.Tensor) -> float:
    """The expected share of exact answers when sampling at T = 1, from tokens and labels (N, T).

    It is computed without sampling: the mean product of the probabilities of the answer's tokens and the end.
    """
    model.eval()
    logits = model(input_ids=tokens, attention_mask=torch.ones_like(tokens)).logits
    return token_losses(logits, labels).sum(-1).neg().exp().mean().item()


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
    progress: Progress = lambda done, total: None,
    num_steps: int = 0,
    name: str = "tiny",
) -> dict[str, Any]:
    """Train a tiny model on addition and write it, its tokenizer and a README to `directory`; about two minutes.

    The same seed gives the same weights on one machine; other processors round otherwise and end close by.
    `progress` is called with (steps done, steps in all). Returns accuracy, number of parameters and checksums.
    """
    directory.mkdir(parents=True, exist_ok=True)  # before the training, which would be lost if this failed after it
    recipe = RECIPES[name] | ({"num_steps": num_steps} if num_steps else {})
    problems, tokenizer, num_threads = tasks.addition(), build_tokenizer(), torch.get_num_threads()
    # Dropout and initial weights draw from torch's global generator on the CPU; no other one is seeded.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seeds.derive(seed, 0, f"build-{name}"))
        torch.set_num_threads(1)  # another number of threads gives other bits
        try:
            model = trained(recipe, tokenizer, problems, seed, progress)
            accuracy = sampled_accuracy(model, *encode(tokenizer, problems.held_out))
        finally:
            torch.set_num_threads(num_threads)
    save(directory, model, tokenizer)
    built = {
        "seed": seed,
        "num_steps": recipe["num_steps"],
        "accuracy": accuracy,
        "parameters": model.num_parameters(),
        "sha256": {name: sha256(directory / name) for name in CHECKED_FILES},
    }
    write_page(directory, name, **built, slips=SLIPS, batch_size=BATCH_SIZE, learning_rate=LEARNING_RATE)
    return built


def trained(
    recipe: dict[str, Any], tokenizer: PreTrainedTokenizerFast, problems: Tasks, seed: int, progress: Progress
) -> PreTrainedModel:
    """A model of 0.8 million parameters, trained on answers with errors.

    The learning rate warms up and stays: after a decay, one larger step of GRPO destroys the model.
    """
    end, pad = (tokenizer.get_vocab()[token] for token in (END, PAD))
    ids: Any = {"vocab_size": len(tokenizer), "bos_token_id": end, "eos_token_id": end, "pad_token_id": pad}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**recipe["config"], **ids))
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    model.train()
    for step in range(recipe["num_steps"]):
        optimizer.param_groups[0]["lr"] = LEARNING_RATE * min((step + 1) / WARM_UP_STEPS, 1.0)
        slips = random.Random(seeds.derive(seed, step, "slips"))
        batch = [slipped(problem, slips) for problem in problems.batch(seed, step, BATCH_SIZE)]
        tokens, labels = encode(tokenizer, batch)
        output = model(input_ids=tokens, attention_mask=torch.ones_like(tokens), **recipe["forward"])
        loss = token_losses(output.logits, labels).sum() / (labels != IGNORED).sum()
        optimizer.zero_grad()
        (loss + recipe["balance"] * getattr(output, "aux_loss", 0.0)).backward()
        optimizer.step()
        progress(step + 1, recipe["num_steps"])
    return model
