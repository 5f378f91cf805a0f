"""Metamorphic relations: derive another case from a case, and its expected value from the first one's.

The reference solution is not called again: rows in another order give rows in that order, padding changes nothing, and
a result that does not depend on a scale stays. A relation returns the case itself where it does not apply.
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from grpo_lab.course.exercises import Case, Relation
from grpo_lab.errors import Sentence, listed

FACTORS = (0.25, 0.5, 2.0, 4.0)
"""Powers of two: scaling by them is exact."""
LINES = {0: Sentence("rows"), 1: Sentence("columns")}
T = TypeVar("T")


def applied(relations: Sequence[Relation], case: Case, draw: random.Random) -> Case:
    """The case after one or more of the relations that apply, drawn at random; the case itself where none does."""
    wanted = draw.randint(1, len(relations)) if relations else 0
    for relation in draw.sample(relations, len(relations)):
        if wanted and (other := relation(case, draw)) is not case:
            case, wanted = other, wanted - 1
    return case


def changed(case: Case, how: str, expected: Any, **inputs: Any) -> Case:
    """The case with other inputs, another expected value, and the change in words."""
    what = Sentence("{}, {}", Sentence(case.what), Sentence(how))
    return case._replace(what=what, inputs={**case.inputs, **inputs}, expected=expected)


def permuted(*names: str, dim: int = 0, result: bool = True) -> Relation:
    """Reorder these inputs along `dim`, and with `result` every tensor of the expected value alike.
    >>> case = permuted("x")(Case("x", {"x": torch.tensor([1, 2])}, torch.tensor([3, 4]), ""), random.Random(0))
    >>> case.what, case.inputs["x"].tolist(), case.expected.tolist()
    ('x, rows in another order', [2, 1], [4, 3])
    """

    def relation(case: Case, draw: random.Random) -> Case:
        order = reordered(case.inputs[names[0]].shape[dim], draw)
        if len(order) < 2:
            return case
        how = Sentence("{} in another order", LINES[dim])
        return _along(case, names, how, lambda x: x.index_select(dim, torch.tensor(order)), dim, result)

    return relation


def repeated(*names: str, dim: int = 0) -> Relation:
    """Repeat every row or column of these inputs, and of the expected value alike."""

    def relation(case: Case, draw: random.Random) -> Case:
        how = Sentence("{} given twice", LINES[dim])
        return _along(case, names, how, lambda x: torch.cat([x, x], dim), dim)

    return relation


def lines_alike(*names: str) -> tuple[Relation, Relation, Relation]:
    """For a function that treats all rows alike, and all columns: reorder either, and repeat the rows."""
    return permuted(*names), permuted(*names, dim=1), repeated(*names)


def padded(mask: str = "", result: bool = True, **fills: float) -> Relation:
    """Append masked columns of one number to these inputs; with `result` the expected value is 0 there."""

    def relation(case: Case, draw: random.Random) -> Case:
        more = draw.randint(1, 4)
        inputs = {name: _wider(case.inputs[name], more, fill) for name, fill in fills.items()}
        if mask:
            inputs[mask] = _wider(case.inputs[mask], more, 0)
        expected = _tensors(case.expected, 1, lambda x: _wider(x, more, 0)) if result else case.expected
        return changed(case, Sentence("{} more columns", more), expected, **inputs)

    return relation


def scaled(*names: str, power: int = 0) -> Relation:
    """Multiply these inputs by a factor above 0, and the expected value by the factor to the `power`."""

    def relation(case: Case, draw: random.Random) -> Case:
        factor = draw.choice(FACTORS)
        inputs = {name: times(case.inputs[name], factor) for name in names}
        how = Sentence("{} times {:g}", listed("{} and {}", names), factor)
        return changed(case, how, times(case.expected, factor**power), **inputs)

    return relation


def shifted(*names: str, by: Sequence[float] = (-2.0, -1.0, -0.5)) -> Relation:
    """Add the same number to all of these inputs, for functions of their differences alone."""

    def relation(case: Case, draw: random.Random) -> Case:
        amount = draw.choice(by)
        inputs = {name: case.inputs[name] + amount for name in names}
        how = Sentence("{} moved by {:g}", listed("{} and {}", names), amount)
        return changed(case, how, case.expected, **inputs)

    return relation


def without_use(*names: str) -> Relation:
    """Fill inputs with NaN that the function must not use."""

    def relation(case: Case, draw: random.Random) -> Case:
        inputs = {name: torch.full_like(case.inputs[name], math.nan) for name in names}
        return changed(case, Sentence("NaN in {}", listed("{} and {}", names)), case.expected, **inputs)

    return relation


def elementwise(name: str) -> Relation:
    """Reorder and reshape the elements of an input, and of the expected value alike."""

    def relation(case: Case, draw: random.Random) -> Case:
        count = case.inputs[name].numel()
        order = reordered(count, draw)
        shape = draw.choice([(count,), (count, 1), (1, count), *([] if count % 2 else [(2, count // 2)])])
        expected, given = (x.reshape(-1)[order].reshape(shape) for x in (case.expected, case.inputs[name]))
        return changed(case, Sentence("in another order and as {}", shape), expected, **{name: given})

    return relation


def reordered(count: int, draw: random.Random) -> list[int]:
    """The numbers below `count` in another order than ascending.
    >>> reordered(2, random.Random(0)), reordered(1, random.Random(0))
    ([1, 0], [0])
    """
    order = list(range(count))
    while count > 1 and order == sorted(order):
        draw.shuffle(order)
    return order


def times(value: T, factor: float) -> T:
    """Data with every float, and every tensor of floats, times a factor.
    >>> times({"a": [1.5, True, "x"]}, 2.0)
    {'a': [3.0, True, 'x']}
    """

    def product(x: Any) -> Any:
        if isinstance(x, Tensor) and not x.is_floating_point():
            return x
        return x * factor if isinstance(x, Tensor | float) else x

    return mapped(value, product)


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """Data with `change` applied to each tensor, number and text inside its collections."""
    if isinstance(value, Mapping):
        return {name: mapped(item, change) for name, item in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(mapped(item, change) for item in value)
    return change(value)


def _along(
    case: Case, names: Sequence[str], how: str, change: Callable[[Tensor], Tensor], dim: int, result: bool = True
) -> Case:
    expected = _tensors(case.expected, dim, change) if result else case.expected
    return changed(case, how, expected, **{name: change(case.inputs[name]) for name in names})


def _tensors(value: Any, dim: int, change: Callable[[Tensor], Tensor]) -> Any:
    """Data with each tensor changed that has this dimension; a number for all rows stays."""
    return mapped(value, lambda x: change(x) if isinstance(x, Tensor) and x.dim() > dim else x)


def _wider(rows: Tensor, more: int, fill: float) -> Tensor:
    return torch.cat([rows, torch.full((len(rows), more), fill).to(rows.dtype)], dim=1)
