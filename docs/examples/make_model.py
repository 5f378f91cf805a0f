"""Write a small model with random weights, as a folder of one's own: `python make_model.py FOLDER [qwen2|llama]`.

Like many chat models it has two end tokens, no padding token and a chat template; the Llama-shaped one puts a first
token before every text. It has read nothing: it shows that a folder works, not that a model learns.
"""

import sys
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

START, TURN_ENDS, TEXT_ENDS = "<|start|>", "<|turn_ends|>", "<|text_ends|>"
TEMPLATE = (
    "{% for message in messages %}<|start|>{{ message.role }}: {{ message.content }}<|turn_ends|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant: {% endif %}"
)
SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}


def make(folder: str | Path, kind: str = "qwen2", **changes: object) -> None:
    """Write the model; `changes` are settings of transformers' config."""
    tokenizer = bytes_and_marks(first=kind == "llama")
    marks = tokenizer.convert_tokens_to_ids([START, TURN_ENDS, TEXT_ENDS])
    config = transformers.AutoConfig.for_model(
        kind,
        **SIZES,
        num_key_value_heads=2,
        vocab_size=len(tokenizer),
        max_position_embeddings=512,
        bos_token_id=marks[0],
        eos_token_id=marks[1:],
        tie_word_embeddings=kind == "qwen2",
        **changes,
    )
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config)
    model.generation_config.eos_token_id = marks[1:]  # the turn ends, or the text: either ends a completion
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def bytes_and_marks(first: bool) -> transformers.PreTrainedTokenizerFast:
    """A tokenizer with one token for each byte and three marks; with `first`, START comes before every text."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    plain = Tokenizer(models.BPE({letter: place for place, letter in enumerate(letters)}, []))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    plain.decoder = decoders.ByteLevel()
    plain.add_special_tokens([START, TURN_ENDS, TEXT_ENDS])
    if first:
        id_of_start = plain.token_to_id(START)
        plain.post_processor = processors.TemplateProcessing(f"{START} $A", special_tokens=[(START, id_of_start)])
    found = transformers.PreTrainedTokenizerFast(tokenizer_object=plain, bos_token=START, eos_token=TURN_ENDS)
    found.chat_template = TEMPLATE
    return found


if __name__ == "__main__":
    transformers.utils.logging.disable_progress_bar()
    make(*sys.argv[1:])
