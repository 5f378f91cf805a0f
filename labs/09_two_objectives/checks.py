"""The checks of lab 9: the angle of two gradients, their sum, a beta for each objective, and PCGrad."""

import math
import random
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from grpo_lab.course import pages
from grpo_lab.course.exercises import Case, Function, cases_by
from grpo_lab.course.probes import gradients_of_vectors
from grpo_lab.course.relations import changed, permuted, reordered, scaled
from grpo_lab.errors import Sentence, listed

TEXTS = pages.case_texts(__file__)


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed + 900)


# The angle of two gradients ------------------------------------------------------------------------------------------

Gradients = Sequence[Tensor | None]


def _cosine(first: Gradients, second: Gradients) -> float:
    """The cosine of two gradients, each a list of one tensor or None for each parameter."""
    pairs = [(a, b) for a, b in zip(first, second, strict=True) if a is not None and b is not None]
    product = sum(float((a.double() * b.double()).sum()) for a, b in pairs)
    sizes = [
        math.sqrt(sum(float(g.double().square().sum()) for g in each if g is not None)) for each in (first, second)
    ]
    return product / (sizes[0] * sizes[1] or 1.0)


def _cosine_cases(seed: int) -> Sequence[Case]:
    generator = _generator(seed)

    def drawn(size: float = 1.0) -> list[Tensor]:
        return [size * torch.randn(shape, generator=generator) for shape in ((2, 2), (3,), (2,))]

    first, second = drawn(), drawn()
    large = [20 * first[0], *first[1:]]
    broken = [first[0], first[1] * torch.tensor([1.0, math.nan, 1.0]), first[2]]
    rows: list[tuple[Gradients, Gradients, str]] = [
        (first, second, "two"),
        (first, [-3 * g for g in first], "against"),
        (large, second, "unequal"),
        ([first[0], None, first[2]], [None, *second[1:]], "missing"),
        (drawn(1e-6), drawn(1e-6), "tiny"),
        (first, [torch.zeros_like(g) for g in second], "zero"),
        (broken, second, "nan_gradient"),
    ]
    given = [(TEXTS[key][0], {"first": one, "second": two}, TEXTS[key][1]) for one, two, key in rows]
    return cases_by(_cosine, given)


def _swapped(case: Case, draw: random.Random) -> Case:
    """Swap the two gradients, which must not change what is symmetric in them."""
    one, two = case.inputs
    inputs = {one: case.inputs[two], two: case.inputs[one]}
    return changed(case, "the two swapped", case.expected, **inputs)


def _parameters_moved(case: Case, draw: random.Random) -> Case:
    """Reorder the parameters, which must not change the angle."""
    order = reordered(len(case.inputs["first"]), draw)
    inputs = {name: [given[place] for place in order] for name, given in case.inputs.items()}
    return changed(case, "parameters in another order", case.expected, **inputs)


# The sum of gradient vectors -----------------------------------------------------------------------------------------

SHAPES = [(2, 2), (3,), ()]
SIZE = sum(math.prod(shape) for shape in SHAPES)


def _set_cases(seed: int) -> Sequence[Case]:
    generator = _generator(seed)
    rows = [([1.0], "one"), ([1.0, 1.0], "both"), ([0.5, 2.0], "weighted"), ([0.25] * 4, "four"), ([0.0, 1.0], "off")]
    cases = list[Case]()
    for weights, key in rows:
        vectors = [torch.randn(SIZE, generator=generator) for _ in weights]
        inputs = {"shapes": SHAPES, "vectors": vectors, "weights": weights}
        cases.append(Case(TEXTS[key][0], inputs, _left(vectors, weights), TEXTS[key][1]))
    return cases


def _left(vectors: Sequence[Tensor], weights: Sequence[float]) -> dict[str, list[Tensor]]:
    """What `gradients_of_vectors` must find: the weighted sum in parts, and the vectors as they were given."""
    total = torch.stack([weight * vector for vector, weight in zip(vectors, weights, strict=True)]).sum(dim=0)
    parts = total.split([math.prod(shape) for shape in SHAPES])
    left = [part.reshape(shape) for part, shape in zip(parts, SHAPES, strict=True)]
    return {"left in .grad": left, "given": list(vectors)}


def _in_halves(case: Case, draw: random.Random) -> Case:
    """Give every vector twice, each time with half of its weight, which must not change the sum."""
    vectors = [vector for vector in case.inputs["vectors"] for _ in range(2)]
    weights = [weight / 2 for weight in case.inputs["weights"] for _ in range(2)]
    expected = {**case.expected, "given": vectors}
    return changed(case, "in two halves", expected, vectors=vectors, weights=weights)


# A beta for each objective -------------------------------------------------------------------------------------------

BANDS = {"F": (0.02, 0.06), "H": (0.08, 0.15)}


def _betas_cases(seed: int) -> Sequence[Case]:
    draw = random.Random(seed + 900)
    f, h = draw.uniform(0.05, 0.5), draw.uniform(0.05, 0.5)
    inside = {name: math.sqrt(low * high) * draw.uniform(0.9, 1.1) for name, (low, high) in BANDS.items()}
    rows: list[tuple[dict[str, float], dict[str, float], str]] = [
        ({"F": f, "H": h}, inside, "inside"),
        ({"F": f, "H": h}, {"F": 0.3, "H": 0.01}, "apart"),
        ({"F": f, "H": h}, {"F": 0.01, "H": 50.0}, "outlier"),
        ({"F": f, "H": h}, {"F": 0.3, "H": math.nan}, "nan"),
        ({"F": f, "H": h}, {"F": math.inf, "H": 0.3}, "inf"),
        ({"F": f, "H": h}, {"H": 0.3}, "absent"),
        ({"F": 3.99, "H": 0.00201}, {"F": 1.0, "H": 0.001}, "ends"),
    ]
    given = [(TEXTS[key][0], {"betas": betas, "kls": kls, "bands": BANDS}, TEXTS[key][1]) for betas, kls, key in rows]
    return cases_by(pages.solved(__file__, "next_betas").next_betas, given)


def _renamed(case: Case, draw: random.Random) -> Case:
    """Give the objectives other names, and list them in the other order."""
    names: dict[str, str] = dict(zip(("F", "H"), draw.sample(("H", "G", "length", "tone"), 2), strict=True))

    def other(given: Mapping[str, object]) -> dict[str, object]:
        return {names[name]: given[name] for name in reversed(list(given))}

    inputs = {name: other(given) for name, given in case.inputs.items()}
    how = Sentence("objectives {}", listed("{} and {}", list(names.values())))
    return changed(case, how, other(case.expected), **inputs)


# PCGrad --------------------------------------------------------------------------------------------------------------


def _without_conflict(f: Tensor, h: Tensor) -> Tensor:
    """The sum (D,) of two gradients (D,), each without its part against the other one."""
    product = f.double() @ h.double()
    if not product < 0:
        return f + h
    parts = f * (1 - product / f.double().square().sum()) + h * (1 - product / h.double().square().sum())
    return parts.to(f.dtype)


def _conflict_cases(seed: int) -> Sequence[Case]:
    f, other = torch.randn(2, 6, generator=_generator(seed))
    across = other - (other @ f) / (f @ f) * f
    broken = other.clone()
    broken[2] = math.nan
    rows = [
        (f, across + 0.5 * f, "agree"),
        (f, across - 0.5 * f, "conflict"),
        (f, 5 * across - 0.5 * f, "longer"),
        (f, -f, "opposed"),
        (f, torch.zeros(6), "nothing"),
        (f, broken, "broken"),
    ]
    given = [(TEXTS[key][0], {"f": one, "h": two}, TEXTS[key][1]) for one, two, key in rows]
    return cases_by(_without_conflict, given)


def _more_weights(case: Case, draw: random.Random) -> Case:
    """Append weights that neither objective moves."""
    inputs = {name: torch.cat([given, torch.zeros(3)]) for name, given in case.inputs.items()}
    return changed(case, "three more weights", torch.cat([case.expected, torch.zeros(3)]), **inputs)


CHECKS = {
    "cosine": Function(
        "cosine", _cosine_cases, relations=(_swapped, _parameters_moved, scaled("first"), scaled("second"))
    ),
    "set_grads": Function("set_grads", _set_cases, gradients_of_vectors, (_in_halves, scaled("vectors", power=1))),
    "next_betas": Function("next_betas", _betas_cases, relations=(_renamed, scaled("kls", "bands"))),
    "without_conflict": Function(
        "without_conflict",
        _conflict_cases,
        relations=(_swapped, _more_weights, permuted("f", "h"), scaled("f", "h", power=1)),
    ),
}
