"""Models of several sizes with random weights, saved in folders, so that every contender loads them by name.

Time and memory depend on a model's shape, not on its weights. All have the tokenizer of `tiny`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from benchmarks.timing import settle
from grpo_lab.config.schema import Config
from grpo_lab.models import loading

POSITIONS = 1024
NEVER = -100.0
"""The logit of the end token: completions have the full length, so that each contender samples as many tokens."""
REWARDS = Path(__file__).with_name("rewards.py")

SHAPES: dict[str, dict[str, int]] = {
    "0.8M": {"n_embd": 128, "n_layer": 4, "n_head": 4, "vocab_size": 258},
    "0.8M, V = 49152": {"n_embd": 128, "n_layer": 4, "n_head": 4, "vocab_size": 49_152},
    "10M": {"n_embd": 384, "n_layer": 6, "n_head": 6, "vocab_size": 258},
    "124M": {"n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50_257},
}
"""GPT-2 in four shapes; the first is that of `tiny`, the last that of GPT-2 itself."""
LLAMAS: dict[str, dict[str, int]] = {
    "0.2M": {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 258,
    },
    "135M": {
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "vocab_size": 49_152,
    },
}
"""A small one for tests, and the shape of SmolLM2-135M; among 49,152 tokens the end token is seldom drawn."""


def build(shape: str, device: str = "cpu") -> tuple[Any, Any]:
    """A model of this shape with random weights, the same at each call, and the tokenizer of `tiny`."""
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    _, tokenizer = loading.load("tiny")
    special: dict[str, Any] = {
        f"{kind}_token_id": getattr(tokenizer, f"{kind}_token_id") for kind in ("bos", "eos", "pad")
    }
    tokenizer.model_max_length = POSITIONS
    torch.manual_seed(0)
    with torch.device(device):
        if shape in LLAMAS:
            llama = LlamaConfig(**LLAMAS[shape], **special, tie_word_embeddings=True, max_position_embeddings=POSITIONS)
            return LlamaForCausalLM(llama).eval(), tokenizer
        model = GPT2LMHeadModel(GPT2Config(**SHAPES[shape], **special, n_positions=POSITIONS))
    _without_end(model, tokenizer.eos_token_id)
    return model.eval(), tokenizer


def parameters(shape: str) -> int:
    """The number of parameters of a shape."""
    model, _ = build(shape, "meta")
    return sum(parameter.numel() for parameter in model.parameters())


@torch.no_grad()
def _without_end(model: Any, end: int) -> None:
    """Make one coordinate of the last hidden state 1, and let the end token's embedding alone look at it."""
    embeddings, norm = model.transformer.wte.weight, model.transformer.ln_f
    norm.weight[0], norm.bias[0] = 0.0, 1.0
    embeddings[:, 0] = 0.0
    embeddings[end] = 0.0
    embeddings[end, 0] = NEVER


def save(shape: str, into: Path) -> Path:
    """The folder of a model of this shape, made if it is not there yet."""
    folder = into / shape.replace(" ", "")
    if not folder.exists():
        with loading.quiet():
            for part in build(shape):
                part.save_pretrained(folder)
    return folder


def work(folder: Path, *settings: str) -> Config:
    """The work of a point: this model on prompts of additions, with every setting that is not given as in `settle`."""
    rate = "optimizer.learning_rate=1e-6"  # low, so that the model stays as it is
    return settle((f"model.name={folder}", f"data.rewards={REWARDS}:alternating,", rate, *settings))
