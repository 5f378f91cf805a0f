"""A reward function for models with random weights, which solve no problem."""


def alternating(prompts: list[str], completions: list[str], **columns: object) -> list[float]:
    """0 and 1 in turn, so that every group has a spread and there is a gradient."""
    return [float(row % 2) for row in range(len(completions))]
