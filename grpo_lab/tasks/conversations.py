"""Prompts and completions as conversations: lists of messages, as TRL and chat templates have them."""

from collections.abc import Mapping, Sequence
from typing import Any

from grpo_lab.errors import ConfigError

Message = Mapping[str, Any]
"""One message of a conversation: its `role`, and its text as `content`."""
Prompt = str | Sequence[Message]
"""A text, or a conversation that the tokenizer's chat template turns into one."""


def is_conversation(prompt: Any) -> bool:
    """Whether a value is a list of messages, each with a role and a text."""
    return isinstance(prompt, list) and all(
        isinstance(message, dict) and all(isinstance(message.get(key), str) for key in ("role", "content"))
        for message in prompt
    )


def text_of(prompt: Prompt) -> str:
    """The text of a prompt or a completion; of a conversation the contents, with their roles if there are several.

    >>> text_of("2"), text_of([{"role": "assistant", "content": "2"}])
    ('2', '2')
    >>> print(text_of([{"role": "system", "content": "Add."}, {"role": "user", "content": "1+1"}]))
    system: Add.
    user: 1+1
    """
    if isinstance(prompt, str):
        return prompt
    if len(prompt) == 1:
        return prompt[0]["content"]
    return "\n".join(f"{message['role']}: {message['content']}" for message in prompt)


def tokenized(tokenizer: Any, prompts: Sequence[Prompt], **options: Any) -> Any:
    """The tokenizer's output for these prompts, with its special tokens.

    A conversation goes through the tokenizer's chat template, which writes the special tokens and the opening of the
    answer. Raises ConfigError for a tokenizer without a template, and for a conversation that its template refuses.
    """
    if all(isinstance(prompt, str) for prompt in prompts):
        return tokenizer(list(prompts), **options)
    if not tokenizer.chat_template:
        raise ConfigError(
            "the prompts are conversations, and the tokenizer has no chat template: take the model's chat version, set "
            "tokenizer.chat_template and save it beside the model, or write prompts as texts"
        )
    return tokenizer([_templated(tokenizer, prompt) for prompt in prompts], add_special_tokens=False, **options)


def _templated(tokenizer: Any, prompt: Prompt) -> str:
    if isinstance(prompt, str):
        prompt = [{"role": "user", "content": prompt}]
    try:
        return tokenizer.apply_chat_template(list(prompt), tokenize=False, add_generation_prompt=True)
    except Exception as error:  # of any type: a template is a program of the model's author
        raise ConfigError(
            f"the tokenizer's chat template refuses {text_of(prompt)[:60]!r} ({type(error).__name__}: {error}); "
            "change the roles of the messages, or the template"
        ) from error
