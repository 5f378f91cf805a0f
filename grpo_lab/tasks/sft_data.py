"""Prompts with the completions that SFT teaches: those that come with the package, and files."""

import random
from collections.abc import Callable
from pathlib import Path

from grpo_lab import seeds
from grpo_lab.tasks.tasks import Problem, capitals, fairness, hallucination, read_jsonl, reviews


def dual() -> list[Problem]:
    """Completions for SFT before the dual trainer: sums answered, and sums of `hallucination`, three of five left open.

    >>> dual()[0], dual()[-1]
    (Problem(prompt='45+77=', columns={'completion': '122'}), Problem(prompt='24+45?', columns={'completion': '?'}))
    """
    draw = random.Random(seeds.derive(0, 0, "dual"))
    answered = [(problem, problem.columns["answer"]) for problem in fairness().train]
    # So many that GRPO has a way to go: with half of them open, the KL of H could stay below its band.
    open_or_not = [("?" if draw.random() < 0.6 else problem.columns["answer"]) for problem in hallucination().train]
    either = zip(hallucination().train, open_or_not, strict=True)
    return [Problem(problem.prompt, {"completion": text}) for problem, text in [*answered, *either]]


def reviews_and_capitals() -> list[Problem]:
    """Completions for SFT of a model that can read: reviews answered, and capitals named or left open.

    >>> reviews_and_capitals()[0].columns, reviews_and_capitals()[-1].columns
    ({'completion': ' positive'}, {'completion': ' Lusaka'})
    """
    draw = random.Random(seeds.derive(0, 0, "reviews_and_capitals"))
    answered = [(problem, problem.columns["answer"]) for problem in reviews().train]
    either = [(problem, draw.choice((problem.columns["answer"], "?"))) for problem in capitals().train]
    # The space belongs to the first token of an answer: the prompts end with a colon.
    return [Problem(problem.prompt, {"completion": f" {text}"}) for problem, text in answered + either]


DEMONSTRATIONS: dict[str, Callable[[], list[Problem]]] = {"dual": dual, "reviews_and_capitals": reviews_and_capitals}
"""Prompts with completions to teach, by the name that `sft.data` gives."""


def load(name_or_path: str) -> dict[str, Problem]:
    """The prompts with completions of that name or in that file, each by the place where it stands.

    Raises DataError, naming file and line.
    """
    if name_or_path in DEMONSTRATIONS:
        rows = enumerate(DEMONSTRATIONS[name_or_path](), 1)
    else:
        rows = read_jsonl(Path(name_or_path)).items()
    return {f"{name_or_path}:{number}": problem for number, problem in rows}
