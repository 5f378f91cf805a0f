"""Tasks: prompts to train on and to measure with, with the columns that rewards read; and completions for SFT."""

import json
import math
import random
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from grpo_lab import seeds
from grpo_lab.config.fields import distinct
from grpo_lab.errors import DataError, unknown
from grpo_lab.paths import data_tables
from grpo_lab.tasks.conversations import Prompt, is_conversation
from grpo_lab.tasks.judge_pool import OFFERED

T = TypeVar("T")
Tool = Callable[..., str]
"""From a prompt, the policy's turn as text, and the problem's columns as keywords, to the text that follows."""
EXAMPLE = '{"prompt": "1+1=", "answer": "2"}'
"""A line of a file of problems."""
MAX_HELD_OUT = 500
DUAL_PROBLEMS = 4000
"""Problems of each task of the dual trainer."""
# Reward functions are called with these keywords, so a column of the same name could not be passed.
RESERVED_COLUMNS = frozenset({"prompts", "completions"}) | OFFERED


@dataclass(frozen=True)
class Problem:
    """One prompt, and the columns by which reward functions judge its completions."""

    prompt: Any
    """A `Prompt`: a text, as every built-in task has it, or a conversation."""
    columns: dict[str, Any]

    def answered(self, text: str) -> Prompt:
        """A completion as reward functions receive it: of a conversation a list of one message, as in TRL."""
        return text if isinstance(self.prompt, str) else [{"role": "assistant", "content": text}]


@dataclass(frozen=True)
class Tasks:
    """Problems to train on, and held-out problems to measure with. Raises DataError without training problems."""

    name: str
    train: Sequence[Problem]
    held_out: Sequence[Problem]

    def __post_init__(self) -> None:
        if not self.train:
            raise DataError(f"task {self.name!r} has no training problems; it needs at least 1")

    def batch(self, seed: int, step: int, num_prompts: int) -> list[Problem]:
        """The `num_prompts` problems of one step, which depend on seed and step alone.

        Each epoch is a permutation of the training problems, so that each one comes once before any comes again. A
        batch larger than the training set goes on into the next epoch.

        >>> tasks = Tasks("letters", [Problem(letter, {}) for letter in "abc"], [])
        >>> sorted(problem.prompt for problem in tasks.batch(seed=0, step=0, num_prompts=3))
        ['a', 'b', 'c']
        """
        return drawn(self.train, seed, step, num_prompts)

    def limited(self, most: int) -> "Tasks":
        """The same held-out problems, and this many training problems at most, chosen once for all seeds; 0 for all."""
        return replace(self, train=drawn(self.train, 0, 0, most)) if 0 < most < len(self.train) else self


def drawn(items: Sequence[T], seed: int, step: int, count: int) -> list[T]:
    """The `count` items of one step, in the order that `Tasks.batch` describes."""
    size, places = len(items), range(step * count, (step + 1) * count)
    return [items[_permutation(seed, place // size, size)[place % size]] for place in places]


@lru_cache(maxsize=8)  # shuffling thousands of problems would cost a few per cent of each step
def _permutation(seed: int, epoch: int, size: int) -> tuple[int, ...]:
    """The order in which one epoch visits the training problems."""
    order = list(range(size))
    random.Random(seeds.derive(seed, epoch, "tasks")).shuffle(order)
    return tuple(order)


def split(problems: Sequence[Problem], num_held_out: int) -> tuple[list[Problem], list[Problem]]:
    """The problems to train on and the held-out ones: a fixed random choice, each part in its original order.

    >>> train, held_out = split([Problem(letter, {}) for letter in "abcdefgh"], num_held_out=3)
    >>> len(train), len(held_out)
    (5, 3)
    """
    generator = random.Random(seeds.derive(0, 0, "held-out"))
    chosen = set(generator.sample(range(len(problems)), num_held_out))
    train = [problem for place, problem in enumerate(problems) if place not in chosen]
    return train, [problems[place] for place in sorted(chosen)]


def addition() -> Tasks:
    """All sums of two numbers from 0 to 99.

    Operands below ten make prompts of mixed length, so that prompts are padded and a wrong mask shows.

    >>> tasks = addition()
    >>> len(tasks.train), len(tasks.held_out)
    (9500, 500)
    >>> tasks.train[0]
    Problem(prompt='0+0=', columns={'answer': '0'})
    """
    problems = [Problem(f"{a}+{b}=", {"answer": str(a + b)}) for a in range(100) for b in range(100)]
    return Tasks("addition", *split(problems, MAX_HELD_OUT))


def reviews() -> Tasks:
    """Reviews to classify as positive or negative, for a model that can read: SmolLM2-135M, not the tiny one.

    >>> tasks = reviews()
    >>> len(tasks.train), len(tasks.held_out)
    (96, 32)
    >>> tasks.train[0].prompt.splitlines()[-2:], tasks.train[0].columns
    (['Review: The soup was hot and full of flavour.', 'Answer:'], {'answer': 'positive'})
    """
    tree = data_tables("tasks/reviews")
    rows = [(review, answer) for answer in ("positive", "negative") for review in tree[answer]]
    problems = [Problem(tree["prompt"].strip().format(review=review), {"answer": answer}) for review, answer in rows]
    return Tasks("reviews", *split(problems, 32))


def capitals() -> Tasks:
    """Countries whose capital to name, or to leave open with `?`, for a model that knows some of them: SmolLM2-135M.

    >>> tasks = capitals()
    >>> len(tasks.train), len(tasks.held_out)
    (100, 57)
    >>> tasks.train[0].prompt.splitlines()[-2:], tasks.train[0].columns
    (['Country: Afghanistan', 'Capital:'], {'answer': 'Kabul'})
    """
    tree = data_tables("tasks/capitals")
    prompt, rows = tree["prompt"].strip(), tree["capitals"].items()
    problems = [Problem(prompt.format(country=country), {"answer": capital}) for country, capital in rows]
    return Tasks("capitals", *split(problems, 57))


def fairness() -> Tasks:
    """Sums in both orders; the answer must not depend on which number comes first.

    >>> [problem.prompt for problem in fairness().train[:2]]
    ['45+77=', '77+45=']
    """
    draw = random.Random(seeds.derive(0, 0, "fairness"))
    problems = []
    for _ in range(DUAL_PROBLEMS // 2):
        a, b = draw.randrange(100), draw.randrange(100)
        problems += [Problem(f"{first}+{second}=", {"answer": str(a + b)}) for first, second in ((a, b), (b, a))]
    return Tasks("fairness", *split(problems, MAX_HELD_OUT))


def hallucination() -> Tasks:
    """Sums to answer, or to leave open with `?`; the reward `honest_answer` makes a wrong number cost.

    >>> hallucination().train[0]
    Problem(prompt='15+18?', columns={'answer': '33'})
    """
    draw = random.Random(seeds.derive(0, 0, "hallucination"))
    pairs = [(draw.randrange(100), draw.randrange(100)) for _ in range(DUAL_PROBLEMS)]
    problems = [Problem(f"{a}+{b}?", {"answer": str(a + b)}) for a, b in pairs]
    return Tasks("hallucination", *split(problems, MAX_HELD_OUT))


def letters() -> Tasks:
    """Sums of letters, which have no answer: the right completion is empty, its end token alone.

    >>> letters().train[0]
    Problem(prompt='eu+nn=', columns={'answer': ''})
    """
    draw = random.Random(seeds.derive(0, 0, "letters"))
    rows = ["".join(draw.choices(string.ascii_lowercase, k=4)) for _ in range(DUAL_PROBLEMS)]
    problems = [Problem(f"{row[:2]}+{row[2:]}=", {"answer": ""}) for row in rows]
    return Tasks("letters", *split(problems, MAX_HELD_OUT))


def open_sums() -> Tasks:
    """Sums in two turns: the policy adds a digit to the first number, and `adding_machine` writes the second one.

    >>> tasks = open_sums()
    >>> len(tasks.train), len(tasks.held_out), tasks.train[0]
    (600, 300, Problem(prompt='1', columns={'number': 0}))
    """
    problems = [Problem(str(digit), {"number": number}) for digit in range(1, 10) for number in range(100)]
    return Tasks("open_sums", *split(problems, 300))


def adding_machine(prompt: Prompt, call: str, number: int, **columns: Any) -> str:
    """The number to add, which depends on the problem and on the digit that the policy entered (0 for another text).

    >>> adding_machine("1", "2", number=30), adding_machine("1", "x", number=30)
    ('+64=', '+30=')
    """
    return f"+{(number + 17 * (int(call) if call.isascii() and call.isdecimal() else 0)) % 100}="


def from_jsonl(path: str | Path) -> Tasks:
    """Problems from a file with one JSON object a line: a `prompt`, and the same other columns in every line.

    Every prompt is a text, or every prompt is a conversation: a list of messages. A tenth is held out (at most 500)
    when there are ten lines or more. Raises `DataError`, naming file and line.
    """
    path = Path(path)
    rows = read_jsonl(path)
    first = next(iter(rows))
    wanted = sorted(rows[first].columns)
    for number, problem in rows.items():
        if (found := sorted(problem.columns)) != wanted:
            raise DataError(f"{path}:{number}: columns {found} differ from {wanted} in line {first}; make them equal")
        if isinstance(problem.prompt, str) != isinstance(rows[first].prompt, str):
            raise DataError(
                f"{path}:{number}: prompts are texts and conversations; make all of one kind, as line {first}"
            )
    return Tasks(path.stem, *split(list(rows.values()), min(len(rows) // 10, MAX_HELD_OUT)))


def read_jsonl(path: Path) -> dict[int, Problem]:
    """The problem in each line of a file, at least one, by the number of the line.

    Raises DataError, naming file and line.
    """
    try:
        # "utf-8-sig" also reads the byte order mark of Windows editors, which JSON forbids.
        lines = path.read_bytes().decode("utf-8-sig").split("\n")
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read ({error.strerror}); give a file with one JSON object a line"
        ) from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: byte {error.start} is not UTF-8; save the file as UTF-8") from error
    rows = {number: _problem(line, f"{path}:{number}") for number, line in enumerate(lines, 1) if line.strip()}
    if not rows:
        raise DataError(f"{path}: the file is empty; it needs at least one line such as {EXAMPLE}")
    return rows


def _problem(line: str, where: str) -> Problem:
    """The problem in one line. Raises DataError, which begins with `where`, for a malformed one."""
    try:
        row = json.loads(line, parse_constant=_finite, parse_float=_finite, object_pairs_hook=distinct)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not valid JSON: {error}; each line must be an object such as {EXAMPLE}") from error
    if not isinstance(row, dict):
        raise DataError(f"{where}: is {type(row).__name__}; each line must be an object such as {EXAMPLE}")
    if "prompt" not in row:
        there = ", ".join(sorted(row)) or "none"
        raise DataError(f'{where}: has no column "prompt" (its columns: {there}); give the text to complete that name')
    prompt = row.pop("prompt")
    if not prompt or not (isinstance(prompt, str) or is_conversation(prompt)):
        raise DataError(
            f'{where}: "prompt" is {prompt!r}; it must be a string of at least one character, or a list of messages '
            'such as [{"role": "user", "content": "1+1="}]'
        )
    if reserved := RESERVED_COLUMNS & row.keys():
        raise DataError(f"{where}: column {min(reserved)!r} is an argument of reward functions already; rename it")
    return Problem(prompt, row)


def _finite(text: str) -> float:
    """The number in a text. Raises ValueError for NaN, Infinity and 1e999, which Python's JSON reads."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is not a finite number; write null and let the reward function decide")
    return number


TASKS: dict[str, Callable[[], Tasks]] = {
    task.__name__: task for task in (addition, reviews, capitals, fairness, hallucination, letters, open_sums)
}
TOOLS: dict[str, Tool] = {"adding_machine": adding_machine}


def load(name_or_path: str | Path) -> Tasks:
    """The task of that name, or the problems in that `.jsonl` file.

    >>> load("addition").name
    'addition'

    Raises ConfigError for an unknown name and DataError for a file that cannot be used.
    """
    name = str(name_or_path)
    if name.endswith(".jsonl"):
        return from_jsonl(name)
    if name in TASKS:
        return TASKS[name]()
    if Path(name).suffix or Path(name).exists():
        raise DataError(
            f"{name}: tasks are read from a file .jsonl, with a line such as {EXAMPLE} for each problem; convert it"
        )
    raise unknown("task", name, [*TASKS, "path/to/problems.jsonl"])


def dual_demonstrations() -> list[Problem]:
    """Completions for SFT before the dual trainer: sums answered, and sums of `hallucination`, three of five left open.

    >>> dual = dual_demonstrations()
    >>> dual[0], dual[-1]
    (Problem(prompt='45+77=', columns={'completion': '122'}), Problem(prompt='24+45?', columns={'completion': '?'}))
    """
    draw = random.Random(seeds.derive(0, 0, "dual"))
    answered = [(problem, problem.columns["answer"]) for problem in fairness().train]
    # So many that GRPO has a way to go: with half of them open, the KL of H could stay below its band.
    either = [(each, "?" if draw.random() < 0.6 else each.columns["answer"]) for each in hallucination().train]
    return [Problem(problem.prompt, {"completion": text}) for problem, text in answered + either]


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


DEMONSTRATIONS: dict[str, Callable[[], list[Problem]]] = {
    "dual": dual_demonstrations,
    "reviews_and_capitals": reviews_and_capitals,
}
"""Prompts with completions to teach, by the name that `sft.data` gives."""


def load_demonstrations(name_or_path: str) -> dict[str, Problem]:
    """The prompts with completions of that name or in that file, each by the place where it stands.

    Raises DataError, naming file and line.
    """
    if name_or_path in DEMONSTRATIONS:
        rows = enumerate(DEMONSTRATIONS[name_or_path](), 1)
    else:
        rows = read_jsonl(Path(name_or_path)).items()
    return {f"{name_or_path}:{number}": problem for number, problem in rows}
