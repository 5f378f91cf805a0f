"""The checks of lab 3: the order of the links, the test of multinomial, crash messages, a guard, and AdamW's eps."""

import ast
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from grpo_lab import core, seeds
from grpo_lab.config.catalog import scenario
from grpo_lab.course import pages
from grpo_lab.course.compare import beside, is_number, other_kind, shown
from grpo_lab.course.exercises import Case, Finding, Function, Values, cases_by
from grpo_lab.course.probes import as_a_bool, one_norm
from grpo_lab.course.relations import changed, lines_alike, scaled
from grpo_lab.course.trials import HERE
from grpo_lab.errors import Sentence
from grpo_lab.events import Stepped
from grpo_lab.runs.crashes import classify_crash
from grpo_lab.training.trainer import train

TEXTS = pages.case_texts(__file__)

# The order of the links ----------------------------------------------------------------------------------------------

_BEFORE_LAST = {
    "far token": "The loss takes exp of a distance. Which of the two comes first?",
    "large loss": "Backward starts from the loss, and the loss was still finite.",
    "nan gradient": "Clipping divides gradients by their norm. What is that if one of them is NaN?",
    "nan clipped": "The weights change only when the optimizer steps, with the clipped gradients.",
    "nan weights": "Logits are computed from the weights, in the next forward pass.",
    "nan logits": "softmax turns logits into probabilities.",
    "nan probabilities": "multinomial draws from the probabilities, so it comes after them.",
}
"""Each link before the last, and the reason why the next one comes after it."""
CHAIN = (*_BEFORE_LAST, "multinomial")


def _judge_order(values: Mapping[str, Any], seed: int) -> Iterator[Finding]:
    order = values["order"]
    if not isinstance(order, tuple | list) or sorted(map(str, order)) != sorted(CHAIN):
        why = "Copy the eight texts as they are written, and change their order alone."
        why = other_kind(order, "a tuple", "a list") or why
        yield Finding(False, "the eight links", shown(order), "each of the eight once", why)
        return
    place = {link: order.index(link) for link in CHAIN}
    for (first, why), second in zip(_BEFORE_LAST.items(), CHAIN[1:], strict=True):
        right = place[first] < place[second]
        words = Sentence(first), Sentence(second)
        got, expected = (Sentence("'{}' first", each) for each in (words[0 if right else 1], words[0]))
        yield Finding(right, Sentence("the pair '{}' and '{}'", *words), got, expected, why)


# The test that multinomial makes -------------------------------------------------------------------------------------


def _draws(probabilities: Tensor) -> bool:
    """Whether torch.multinomial draws from probabilities (B, V); any other error is raised."""
    try:
        torch.multinomial(probabilities, 1, generator=torch.Generator().manual_seed(0))
    except RuntimeError as error:
        if "probability tensor contains either" not in str(error):
            raise
        return False
    return True


def _accepts_cases(seed: int) -> Sequence[Case]:
    generator = torch.Generator().manual_seed(seeds.derive(seed, 0, "03_error_chain"))
    usual = torch.randn(3, 5, generator=generator).softmax(dim=-1)
    column = int(torch.randint(1, 5, (1,), generator=generator))

    def broken(value: float) -> Tensor:
        row = usual.clone()
        row[1, column] = value
        return row

    first_is_0 = usual.clone()
    first_is_0[:, 0] = 0.0
    rows = [
        (usual, "three rows from softmax", "Healthy probabilities must be accepted."),
        (first_is_0, "the first probability of each row is 0", "A first probability of 0 only means: never token 0."),
        (torch.tensor([[0.0, 1.0]]), "[[0, 1]]", "One token has all the probability. It is drawn every time."),
        (7.3 * usual, "rows that sum to 7.3", "multinomial takes any weights: it divides by their sum."),
        (broken(math.nan), "one NaN", "One NaN is enough: refused."),
        (broken(math.inf), "one inf", "One inf is enough: refused."),
        (broken(-1e-4), "one number below 0", "A probability below 0 is refused."),
        (torch.full((2, 4), math.nan), "all NaN: the softmax of NaN logits", "This is the row that crashed."),
    ]
    rows += _drawn_rows(generator) if seed else []
    return cases_by(_draws, [(what, {"probabilities": given}, why) for given, what, why in rows])


def _drawn_rows(generator: torch.Generator) -> list[tuple[Tensor, str, str]]:
    """Three to eight rows more, each with one number replaced at random, by one that is accepted or not."""
    found = []
    values = (0.0, 3.0, math.nan, math.inf, -1e-4)
    drawn = torch.randint(5, (int(torch.randint(2, 8, (1,), generator=generator)),), generator=generator).tolist()
    for new in (values[-1], *(values[place] for place in drawn)):
        given = torch.rand(2, 4, generator=generator) + 0.1
        given.view(-1)[torch.randint(8, (1,), generator=generator)] = new
        what = Sentence("weights, and one of them {:g}", new)
        found.append((given, what, "Every number counts; only NaN, inf and < 0 fail."))
    return found


# The messages of one crash -------------------------------------------------------------------------------------------

FACES = ("multinomial-cpu", "multinomial-cuda-linux", "multinomial-cuda-windows")
_CHECK = "probability tensor contains either `inf`, `nan` or element < 0"
_LATER = """RuntimeError: CUDA error: device-side assert triggered
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1"""


def _face(text: str) -> str:
    """The kind of crash in a log's text: one of FACES, or `other`."""
    kind = classify_crash(text).kind
    return kind if kind in FACES else "other"


def _face_cases(seed: int) -> Sequence[Case]:
    generator = torch.Generator().manual_seed(seeds.derive(seed, 1, "03_error_chain"))
    line, block, thread = torch.randint(20, 400, (3,), generator=generator).tolist()
    place = f"TensorCompare.cu:{line}: block: [{block},0,0], thread: [{thread},0,0] Assertion "
    linux = f"../aten/src/ATen/native/cuda/{place}`{_CHECK}` failed.\n{_LATER}"
    folder = r"C:\actions-runner\_work\pytorch\aten\src\ATen\native\cuda"
    windows = f"{folder}\\{place}`input[0] != 0` failed.\n{_LATER}"
    where = f"../aten/src/ATen/native/cuda/Indexing.cu:{line}: block: [{block},0,0] Assertion "
    index = f"{where}`srcIndex < srcSelectDimSize` failed.\n{_LATER}"
    rows = [
        (f"RuntimeError: {_CHECK}", "a traceback without CUDA", "It is an ordinary Python error, raised on the CPU."),
        (linux, *TEXTS["same_words"]),
        (windows, "an assertion about input[0]", "MSVC prints the condition itself, so this is CUDA under Windows."),
        (index, *TEXTS["index"]),
        (_LATER, *TEXTS["after"]),
        ("torch.OutOfMemoryError: CUDA out of memory.", "no memory", "Nothing here mentions probabilities."),
    ]
    if seed:  # so that an answer cannot count on the number of each
        rows += [rows[place] for place in torch.randint(len(rows), (6,), generator=generator).tolist()]
    return cases_by(_face, [(what, {"text": text}, why) for text, what, why in rows])


_LOG = ("step 41: loss 0.0133, grad norm 2.31, kl 0.081", "Traceback (most recent call last):", "  rewards: 0.25 0.75")


def _with_lines_before(case: Case, draw: random.Random) -> Case:
    """Put other lines of a log before the text."""
    before = draw.choices(_LOG, k=draw.randint(1, 4))
    return changed(case, "after other lines of a log", case.expected, text="\n".join([*before, case.inputs["text"]]))


# A guard that tests finiteness first ---------------------------------------------------------------------------------


def _guard_cases(seed: int) -> Sequence[Case]:
    generator = torch.Generator().manual_seed(seeds.derive(seed, 2, "03_error_chain"))
    small, large = torch.rand(2, generator=generator).tolist()
    small, large = round(0.5 + 9 * small, 2), round(20 + 900 * large, 1)
    named = "A guard that acts gives a reason with the number in it."
    below = "A norm below the threshold must pass, or nothing is learned."
    rows = [
        ("verdict", small, "KEEP", Sentence("norm {}", small), below),
        ("verdict", large, "SKIP_STEP", Sentence("norm {}", large), "This one is above the threshold of 10."),
        ("verdict", 6.1e7, "SKIP_STEP", "norm 6.1e7", "Finite, and far above the threshold."),
        (
            "verdict",
            math.inf,
            "SKIP_STEP",
            "norm inf",
            "The norm is not finite: this update is skipped.",
        ),
        ("verdict", math.nan, "SKIP_STEP", "norm NaN", "The norm is not finite: this update is skipped."),
        ("verdict", 0.0, "KEEP", "norm 0", "An update with a gradient of 0 does no harm."),
        ("reason", large, [large], "the number in the reason", named),
    ]
    under, above, *drawn = torch.rand(10, generator=generator, dtype=torch.float64).tolist()
    drawn = [9.2 + 0.7 * under, 10.1 + 0.7 * above, *(20 * x for x in (drawn if seed else ()))]
    why = "The threshold is 10: a norm of at most 10 passes."
    rows += [("verdict", x, "KEEP" if x <= 10 else "SKIP_STEP", Sentence("norm {}", f"{x:.4g}"), why) for x in drawn]
    return [Case(what, {"grad_norm": norm, "look": look}, expected, why) for look, norm, expected, what, why in rows]


def _further(case: Case, draw: random.Random) -> Case:
    """Halve an accepted norm, and double a refused one."""
    if case.inputs["look"] == "reason":
        return case
    factor = 0.5 if case.expected == "KEEP" else 2.0
    return changed(case, Sentence("times {:g}", factor), case.expected, grad_norm=factor * case.inputs["grad_norm"])


# An eps that fp16 can hold -------------------------------------------------------------------------------------------

RATE, LARGEST_MOVE = 1e-5, 1e-3
"""The reports' learning rate, and the largest allowed move of a weight in one update."""


def _judge_epsilon(values: Mapping[str, Any], seed: int) -> Iterator[Finding]:
    eps = values["adam_eps"]
    if not is_number(eps) or not 0 <= eps < math.inf:
        why = other_kind(eps, "a number") or "AdamW's eps is a small number, 0 or above."
        yield Finding(False, "adam_eps", shown(eps), "a number", why)
        return
    stored = float(torch.tensor(eps, dtype=torch.float16))
    why = "fp16 rounds it to 0, and because g² underflows too the update is 0 / 0."
    yield Finding(stored > 0, "as fp16 stores it", shown(stored), "above 0", why)
    if not stored:
        return
    broken, move = _one_step(eps)
    why = "The sum in the denominator still underflowed or overflowed for these weights."
    yield Finding(not broken, "broken weights after an update", f"{broken:,.0f}", "0", why)
    far = "Where g² underflows, only eps divides: m / eps times the rate of 1e-5. Yours moved a weight by {:.2g}."
    little = "With an eps this large every move is too small: in fp32 the largest is about the rate, 1e-5."
    right = RATE <= move <= LARGEST_MOVE
    expected = Sentence("from {:g} to {:g}", RATE, LARGEST_MOVE)
    why = Sentence(far, move) if move > LARGEST_MOVE else little
    yield Finding(right, "largest move of a weight", beside(move, LARGEST_MOVE), expected, why)


def _one_step(eps: float) -> tuple[float, float]:
    """The number of broken weights and the largest move after one update of fp16-adam-epsilon at the reports' rate.

    The batch is the same for learners and graders: for an eps near a limit the batch decides, because moves are
    multiples of what fp16 resolves, and no number that passed in the notebook may fail. One number fits no batch.
    """
    draw = seeds.derive(0, 0, "adam_eps") % 2**31
    settings = (f"optimizer.adam_eps={eps!r}", f"optimizer.learning_rate={RATE}", "run.num_steps=1", f"run.seed={draw}")
    events = train(scenario("fp16-adam-epsilon").config().with_(*settings, *HERE))
    metrics = next(event.metrics for event in events if isinstance(event, Stepped))
    return metrics["weights/nonfinite"], metrics["weights/max_move"]


# A walk through the trainer -------------------------------------------------------------------------------------------

CORE = Path(core.__file__).parent
PLACES: dict[str, tuple[tuple[str, str], ...]] = {
    "drawn": (("sample.py", "torch.multinomial("),),
    "old": (("train.py", "return batch.sampling_logprobs"), ("sample.py", "logprobs[alive, column] =")),
    "spread": (("advantages.py", "centred.square().sum(dim=1, keepdim=True)"), ("advantages.py", "freedom = ")),
    "ratio": (("loss.py", "ratio = log_ratio.exp()"),),
    "minimum": (("loss.py", "torch.min("),),
    "penalty": (("loss.py", "torch.expm1("),),
    "guards": (("update.py", "ctx.apply(Stage.GRADIENTS"),),
    "noted": (("hooks.py", "self.recorder.tensor("),),
}
"""Each question of the walk, and a text in each statement that answers it; lines are looked up when it is judged."""


class Statement(NamedTuple):
    """A statement of a file of core/, with the function that it stands in and its lines; of a block, its head."""

    file: str
    function: str
    first: int
    last: int


def statements(file: str) -> list[Statement]:
    """The statements of a file of core/, inner ones after outer ones."""
    found: list[Statement] = []

    def walk(node: ast.AST, function: str) -> None:
        for child in ast.iter_child_nodes(node):
            named = isinstance(child, ast.FunctionDef | ast.ClassDef)
            inside = f"{function}.{child.name}".lstrip(".") if named else function
            if isinstance(child, ast.stmt):
                body = getattr(child, "body", None)
                last = (body[0].lineno - 1 if body else child.end_lineno) or child.lineno
                found.append(Statement(file, inside, child.lineno, max(last, child.lineno)))
            walk(child, inside)

    walk(ast.parse((CORE / file).read_text(encoding="utf-8")), "")
    return found


def at(file: str, line: int) -> Statement | None:
    """The innermost statement at a line; None where there is none."""
    return next((each for each in reversed(statements(file)) if each.first <= line <= each.last), None)


def answers_to(name: str) -> list[Statement]:
    """The statements that answer a question of the walk, by the text in one of their lines."""
    found = []
    for file, part in PLACES[name]:
        lines = (CORE / file).read_text(encoding="utf-8").splitlines()
        found += [at(file, number) for number, line in enumerate(lines, start=1) if part in line]
    return [each for each in found if each is not None]


def _judge_walk(values: Mapping[str, Any], seed: int) -> Iterator[Finding]:
    where = values["where"]
    if not isinstance(where, Mapping):
        why = other_kind(where, "a dictionary")
        yield Finding(False, "where", shown(where), "a dictionary of the eight names", why)
        return
    for name in PLACES:
        right, got, why = _judged_place(name, str(where.get(name, "")))
        yield Finding(right, TEXTS[name][0], got, "the file and the line, as in train.py:83", why)


def _judged_place(name: str, answer: str) -> tuple[bool, str, str]:
    """Whether an answer is right, what stands at its line, and where to look instead."""
    file, _, number = answer.removeprefix("core/").partition(":")
    known = sorted(path.name for path in CORE.glob("*.py"))
    if file not in known or not number.isdecimal():
        return False, shown(answer), Sentence("Name a file of core/ and a line of it: {}.", ", ".join(known))
    lines, wanted = (CORE / file).read_text(encoding="utf-8").splitlines(), answers_to(name)
    if not 1 <= (line := int(number)) <= len(lines):
        return False, shown(answer), Sentence("{} has {} lines.", file, len(lines))
    got = f"{answer}  `{lines[line - 1].strip().replace('`', '')}`"  # what stands there, as code
    found = at(file, line)
    if found in wanted:
        return True, got, ""
    if found and any((each.file, each.function) == (file, found.function) for each in wanted):
        return False, got, Sentence("The function is right: {}. It is another line of it.", found.function)
    inside = Sentence(
        "This line belongs to {}. {}", found.function if found and found.function else file, Sentence(TEXTS[name][1])
    )
    return False, got, inside


CHECKS = {
    "order": Values(("order",), _judge_order),
    "accepts": Function("accepts", _accepts_cases, as_a_bool, (*lines_alike("probabilities"), scaled("probabilities"))),
    "face": Function("face", _face_cases, relations=(_with_lines_before,)),
    "finite_first": Function("FiniteFirst", _guard_cases, one_norm, (_further,)),
    "epsilon": Values(("adam_eps",), _judge_epsilon),
    "walk": Values(("where",), _judge_walk),
}
