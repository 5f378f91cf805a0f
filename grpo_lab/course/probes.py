"""Probes: each calls a function of an answer and returns data to compare, such as a value, a gradient or the updates.

A probe runs beside the answer, inside the sandbox. So it knows no expected values and judges nothing. A grader refers
to a probe by its name in this module.
"""

import inspect
import math
import re
from collections.abc import Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any, SupportsFloat

import numpy as np
import torch
from torch import Tensor

from grpo_lab.algorithm import kl
from grpo_lab.core.advantages import group_advantages
from grpo_lab.core.batch import Batch
from grpo_lab.core.hooks import Verdict
from grpo_lab.core.logprobs import completion_logprobs
from grpo_lab.course.exercises import call as call
from grpo_lab.training.interventions import Outcome
from grpo_lab.training.passes import plain_pass

Asked = Callable[..., Any]
Inputs = Mapping[str, Any]

# Values and gradients ------------------------------------------------------------------------------------------------


def by_delta(function: Asked, inputs: Inputs) -> Any:
    """`function(delta)`: by `inputs["look"]` its value, its gradient, or the value as a multiple of delta² / 2.

    The multiple has one decimal, because near 0 several right ways to compute it differ in the next one.
    """
    delta = _leaf(inputs, "delta")
    found = function(delta)
    if inputs["look"] == "multiple":
        return (_tensor(found) / (delta.square() / 2)).round(decimals=1)
    return found if inputs["look"] == "value" else _gradient(found, delta)


def by_logprobs(function: Asked, inputs: Inputs) -> Any:
    """`function(**inputs)`, or by `inputs["look"]` the gradient of its sum by `logprobs` (B, T)."""
    logprobs = _leaf(inputs, "logprobs")
    given = {name: value for name, value in inputs.items() if name != "look"}
    found = function(**{**given, "logprobs": logprobs})
    return found if inputs["look"] == "value" else _gradient(found, logprobs)


def value_and_gradient(function: Asked, inputs: Inputs) -> dict[str, Any]:
    """The loss `function(**inputs)`, and its gradient by `logprobs` (B, T)."""
    logprobs = inputs["logprobs"].clone().requires_grad_()
    found = _tensor(function(**{**inputs, "logprobs": logprobs}))
    loss = found.detach().clone()  # the answer's own backward may change `found`
    return {"loss": loss.item() if loss.numel() == 1 else loss, "gradient": _gradient(found, logprobs)}


def in_a_batch(function: Asked, inputs: Inputs, then: Callable[[Tensor], Tensor] = lambda found: found) -> Any:
    """`function(logprobs, batch)`, or by `inputs["look"]` the gradient of its sum by `logprobs` (B, T)."""
    logprobs = _leaf(inputs, "logprobs")
    found = function(logprobs, one_group(inputs))
    return found if inputs["look"] == "value" else _gradient(then(_tensor(found)), logprobs)


def ratio_in_a_batch(function: Asked, inputs: Inputs) -> Any:
    """A log-ratio `function(logprobs, batch)`, or by `inputs["look"]` the gradient of the sum of its ratios."""
    return in_a_batch(function, inputs, Tensor.exp)


def one_group(given: Mapping[str, Tensor]) -> Batch:
    """A batch of these fields; without others, of one prompt, and with `old_logprobs` for all log-probabilities.

    >>> one_group({"old_logprobs": torch.zeros(2, 3)}).completion_mask.shape
    torch.Size([2, 3])
    """
    old = given["old_logprobs"]
    rows, width = old.shape
    usual = {
        "prompt_ids": torch.zeros(1, 3, dtype=torch.long),
        "prompt_mask": torch.ones(1, 3, dtype=torch.long),
        "group": torch.zeros(rows, dtype=torch.long),
        "completions": torch.zeros(rows, width, dtype=torch.long),
        "completion_mask": torch.ones(rows, width, dtype=torch.bool),
        "sampling_logprobs": old,
        "entropy": torch.zeros(rows, width),
        "ref_logprobs": old,
    }
    return Batch(**usual | {name: given[name] for name in Batch.__annotations__ if name in given})


def by_estimator(function: Asked, inputs: Inputs) -> Any:
    """`function(theta, log_ref, estimator)`: logits (V,) with a gradient, log-probabilities (V,), an estimator."""
    theta = inputs["theta"].clone().requires_grad_()
    return function(theta, inputs["log_ref"], kl.ESTIMATORS[inputs["estimator"]])


def _tensor(found: Any) -> Tensor:
    """The value itself. Raises TypeError, in words for the learner, for anything but a tensor."""
    if not isinstance(found, Tensor):
        raise TypeError(f"{_kind(found)} is returned, where a tensor made from the tensors handed in is expected")
    return found


def _kind(found: Any) -> str:
    return "nothing" if found is None else f"a value of type {type(found).__name__}"


def _gradient(found: Any, by: Tensor) -> Tensor:
    """The gradient of the sum; 0 for a detached tensor, so that such an answer can be compared like any other."""
    if not _tensor(found).requires_grad:
        return torch.zeros_like(by)
    (gradient,) = torch.autograd.grad(found.sum(), by, allow_unused=True, materialize_grads=True)
    return gradient


def _leaf(inputs: Inputs, name: str) -> Tensor:
    """A copy of an input tensor, which requires a gradient where `look` asks for one."""
    return inputs[name].clone().requires_grad_(inputs["look"] == "gradient")


# Functions and plain values ------------------------------------------------------------------------------------------

CURVES: dict[str, Callable[[float], float]] = {"x³": lambda x: x**3, "exp": math.exp, "|x|": abs}


def of_a_curve(function: Asked, inputs: Inputs) -> Any:
    """`function(f, x, h)`, where f is a named curve, stretched and raised.
    >>> of_a_curve(lambda f, x, h: f(x + h), {"curve": "x³", "stretch": 2.0, "height": 1.0, "x": 2.0, "h": 1.0})
    55.0
    """
    curve = CURVES[inputs["curve"]]
    return function(lambda x: inputs["stretch"] * curve(x) + inputs["height"], inputs["x"], inputs["h"])


def as_a_bool(function: Asked, inputs: Inputs) -> Any:
    """The return value, as a bool if it is a tensor with one element."""
    found = function(**inputs)
    return bool(found) if isinstance(found, Tensor) and found.numel() == 1 else found


def as_floats(function: Asked, inputs: Inputs) -> Any:
    """The return value with a float for each number, as a tuple if it is one, else as a list.

    It may be any collection in one dimension: a tensor, an array, a generator. Texts and truth values stay as they are.
    """
    found = function(**inputs)
    found = found.tolist() if hasattr(found, "tolist") else found  # of torch, numpy and pandas
    if not isinstance(found, Iterable) or isinstance(found, str | Mapping):
        return found
    floats = [float(x) if isinstance(x, SupportsFloat) and not isinstance(x, bool) else x for x in found]
    return tuple(floats) if isinstance(found, tuple) else floats


def as_a_number(function: Asked, inputs: Inputs) -> Any:
    """The return value, as a number if it is a tensor or an array without dimensions."""
    found = function(**inputs)
    return found.item() if isinstance(found, Tensor | np.ndarray) and not found.shape else found


# Guards --------------------------------------------------------------------------------------------------------------


def one_norm(guard: Asked, inputs: Inputs) -> Any:
    """The verdict of a new guard on one norm, or a list with the number in its reason that is nearest to the norm."""
    outcome = _outcome(guard(), inputs["grad_norm"])
    if inputs["look"] == "verdict":
        return Verdict(outcome.verdict).name
    numbers = [float(number) for number in re.findall(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?", str(outcome.reason))]
    return sorted(numbers, key=lambda number: abs(number - inputs["grad_norm"]))[:1]


def norms_in_turn(guard: Asked, inputs: Inputs) -> list[str]:
    """The verdicts of one guard on consecutive norms, each with "+ reason" where the guard gives one."""
    mine = guard()
    outcomes = [_outcome(mine, norm, index) for index, norm in enumerate(inputs["norms"])]
    return [f"{Verdict(outcome.verdict).name}{' + reason' if outcome.reason else ''}" for outcome in outcomes]


def _outcome(guard: Any, norm: float, index: int = 0) -> Outcome:
    """The outcome of a guard for a norm. Raises TypeError, in words for the learner, for anything but a guard."""
    if not callable(guard):
        raise TypeError(f"calling it gives {_kind(guard)}, where a guard is expected: write a class")
    outcome = guard("the policy", SimpleNamespace(grad_norm=norm, index=index, update=0))
    if not isinstance(outcome, Outcome):
        raise TypeError(f"{_kind(outcome)} is returned, where an Outcome is expected, as in `return Outcome(value)`")
    return outcome


# Updates -------------------------------------------------------------------------------------------------------------


def step_or_not(function: Asked, inputs: Inputs) -> dict[str, Any]:
    """The movement of the weights and the return value after `function(optimizer, norm, limit)`.

    An earlier step has filled AdamW's moments.
    """
    weight = torch.nn.Parameter(torch.ones_like(inputs["gradient"]))
    optimizer = torch.optim.AdamW([weight], lr=0.1, weight_decay=0.0)
    weight.grad = inputs["earlier"].clone()
    optimizer.step()
    before = weight.detach().clone()
    weight.grad = inputs["gradient"].clone()
    returned = function(optimizer, inputs["norm"], inputs["limit"])
    return {"weights moved by": weight.detach() - before, "returned": returned}


def updates_made(function: Asked, inputs: Inputs) -> dict[str, Any]:
    """The number of updates by `function(parts, loss_of, optimizer)` from a batch in parts, and the last gradient."""
    weight = inputs["weight"].clone().requires_grad_()
    weight.grad = torch.full_like(weight, 7.0)  # of an earlier update; a right answer clears it
    in_parts = (inputs[name].split(inputs["sizes"].tolist()) for name in ("x", "mask"))
    parts = [SimpleNamespace(x=x, mask=mask) for x, mask in zip(*in_parts, strict=True)]
    optimizer = torch.optim.SGD([weight], lr=0.1)
    seen = _seen(optimizer, weight)
    function(parts, lambda part: (part.x @ weight).square(), optimizer)
    return {"updates": len(seen), "gradient of the last one": seen[-1] if seen else torch.zeros_like(weight)}


def gradients_left(function: Asked, inputs: Inputs) -> dict[str, Any]:
    """The gradients left after one call a micro-batch, and the given ones, which the function must not change."""
    parameters = [torch.nn.Parameter(torch.zeros_like(gradient)) for gradient in inputs["micro_batches"][0]]
    for gradients in inputs["micro_batches"]:
        function(parameters, gradients)
    given = [gradient for gradients in inputs["micro_batches"] for gradient in gradients]
    return {"left in .grad": [parameter.grad for parameter in parameters], "given": given}


def gradients_of_vectors(function: Asked, inputs: Inputs) -> dict[str, Any]:
    """The gradients left after one call a flat vector with its weight, and the vectors, which must not change."""
    parameters = [torch.nn.Parameter(torch.zeros(shape)) for shape in inputs["shapes"]]
    vectors = [vector.clone() for vector in inputs["vectors"]]
    for vector, weight in zip(vectors, inputs["weights"], strict=True):
        function(parameters, vector, weight)
    return {"left in .grad": [parameter.grad for parameter in parameters], "given": vectors}


def updates_in_turn(function: Asked, inputs: Inputs) -> dict[str, Any]:
    """The weights, norms and optimizer steps after one call a batch, on one linear model with one AdamW."""
    weight = torch.nn.Parameter(inputs["weight"].clone())
    optimizer = torch.optim.AdamW([weight], lr=0.1, weight_decay=0.0)
    seen = _seen(optimizer, weight)
    norms = []
    for batch in inputs["batches"]:
        micro_batches = [lambda x=x: (x @ weight).sum() for x in batch]
        norms.append(function([weight], optimizer, micro_batches))
    return {"weight": weight.detach(), "norms": norms, "optimizer steps": len(seen)}


class Averaging(torch.nn.Embedding):
    """A language model whose logits are the mean, over the tokens so far, of their rows of `weight` (V, V)."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor, **more: Any) -> SimpleNamespace:  # pyright: ignore
        seen = attention_mask if attention_mask.dim() == 2 else attention_mask[:, 0, -1]
        sums = (self.weight[input_ids] * seen[:, :, None]).cumsum(dim=1)
        return SimpleNamespace(logits=(sums / (1 + position_ids[:, :, None]))[:, -more.get("logits_to_keep", 0) :])


def logprobs_of_a_batch(function: Asked, inputs: Inputs) -> Any:
    """`function(policy, batch)`, 0 outside the mask; or by `inputs["look"]` the gradient of its sum by the weights."""
    policy, batch = Averaging.from_pretrained(inputs["weight"].clone(), freeze=False), one_group(inputs)
    found = _tensor(function(policy, batch))
    if found.shape == batch.completions.shape:
        found = found.masked_fill(~batch.completion_mask, 0.0)
    return found.detach() if inputs["look"] == "value" else _gradient(found, policy.weight)


def weights_after(function: Asked, inputs: Inputs) -> Tensor:
    """The movement of the weights by an answer's step, which may call by name what the exercises before it ask for."""
    from grpo_lab.algorithm import losses  # where another answer is called, it is not loaded

    parts = {
        "advantages": lambda rewards, scorable=None: group_advantages(rewards, scorable=scorable),
        "logprobs": lambda policy, batch: completion_logprobs(plain_pass(policy, batch)[0], batch.completions),
        "policy_loss": losses.policy_loss,
        "aggregate": losses.aggregate,
    }
    scope = getattr(inspect.unwrap(function), "__globals__", {})
    scope.update({name: part for name, part in parts.items() if name not in scope})
    policy = Averaging.from_pretrained(inputs["weight"].clone(), freeze=False)
    optimizer = torch.optim.SGD(policy.parameters(), lr=1.0)
    function(policy, optimizer, one_group(inputs), inputs["rewards"], inputs["beta"], inputs["num_iterations"])
    return policy.weight.detach() - inputs["weight"]


def _seen(optimizer: torch.optim.Optimizer, weight: Tensor) -> list[Tensor]:
    """A list that receives the gradient of a weight at each step of an optimizer from now on; 0 where there is none.

    It is read behind the step, which leaves it as it is: a closure computes it within the step.
    """
    seen: list[Tensor] = []

    def keep(*_: Any) -> None:
        seen.append(torch.zeros_like(weight) if weight.grad is None else weight.grad.detach().clone())

    optimizer.register_step_post_hook(keep)
    return seen
