"""Reward functions of one's own, in TRL's signature: the same file works with TRL's GRPOTrainer."""


def text_of(completion):
    """The text of a completion, which is a list of one message where the prompt is a conversation."""
    return completion if isinstance(completion, str) else completion[0]["content"]


def correct(completions, answer, log_metric, log_extra, **kwargs):
    """1 for the right answer, else 0; the columns of the file arrive by their names."""
    texts = [text_of(completion).strip() for completion in completions]
    log_metric("right_length", sum(len(t) == len(a) for t, a in zip(texts, answer, strict=True)) / len(texts))
    log_extra("answer", answer)
    return [float(text == wanted) for text, wanted in zip(texts, answer, strict=True)]


def digits(completions, **kwargs):
    """The share of digits."""
    texts = [text_of(completion) for completion in completions]
    return [sum(map(str.isdecimal, text)) / max(1, len(text)) for text in texts]
