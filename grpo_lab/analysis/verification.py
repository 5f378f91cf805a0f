"""Verification of a trainer by its behaviour: temperature, KL, accumulation, terminators, masks (`doctor --verify`).

A trainer is an adapter, this project's own or a user's (docs/verify.md). The checks watch it from outside: its
optimizer, its gradients and its weights. Each check is one line with a number and its limit.
"""

from __future__ import annotations

import copy
import functools
import itertools
import math
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from grpo_lab.algorithm import kl as kl_estimators
from grpo_lab.config import catalog, user_code
from grpo_lab.config.schema import Config
from grpo_lab.config.sections import SamplingConfig
from grpo_lab.core.hooks import Stage
from grpo_lab.core.logprobs import completion_logprobs
from grpo_lab.errors import ConfigError, GrpoLabError
from grpo_lab.events import Event, Stepped
from grpo_lab.models import loading
from grpo_lab.models.precision import PRECISIONS
from grpo_lab.training import rollouts
from grpo_lab.training.interventions import Intervention, Outcome, Step, known
from grpo_lab.training.objectives import COMBINATIONS, resolve
from grpo_lab.training.registry import chosen_formulas
from grpo_lab.training.snapshots import SMALL
from grpo_lab.training.state import Training
from grpo_lab.training.torch_settings import own_settings
from grpo_lab.training.trainer import events

NUM_PROMPTS, NUM_GENERATIONS, LENGTH = 4, 4, 32
"""The most of a batch that is needed to verify a trainer."""
USUAL = {**asdict(SamplingConfig()), "temperature": None, "max_completion_length": None}
"""Filters and penalties that change nothing."""
NOISE = 0.01
"""The largest advantage of equal rewards that counts as 0.

The mean of a group's rewards of 0.7 is off by 6e-8 or 1.2e-7 in fp32. TRL divides that by its eps of 1e-4, which gives
up to 0.0012; an eps of 1e-8 gives a whole advantage.
"""
COORDINATES = 2**16
"""Gradient elements that token weights are fitted to: enough for some hundred unknowns, of few parameters."""
Result = tuple[bool, str, str]
"""Whether a check holds, its number and its limit in words."""
Reward = Callable[..., list[float | None]]
Rows = Mapping[str, Any]
"""The tensors of one objective that a step returns."""


def own_trainer(config: Config) -> Callable[[], OwnTrainer]:
    """A function that returns this project's trainer with a config, on a small batch, as an adapter."""
    parts = tuple(
        replace(each, rewards=None, reward_weights=None, num_prompts=each.num_prompts and NUM_PROMPTS)
        for each in config.objectives
    )
    # The reward function is replaced by that of the checks.
    data = replace(config.data, rewards=("exact_match",), reward_weights=(), num_prompts=NUM_PROMPTS)
    small = replace(config, objectives=parts, data=data).with_(
        f"run.num_steps={1 + max(1, len(parts))}",
        "run.num_eval=0",
        "run.stages=grpo",
        "run.exact_kl=false",
        "judge.workers=0",
        f"data.num_generations={min(data.num_generations, NUM_GENERATIONS)}",
        f"sampling.max_completion_length={min(config.sampling.max_completion_length, LENGTH)}",
    )
    model, tokenizer = loading.load(small.model.name, small.model.precision, small.run.device)
    return lambda: OwnTrainer(small, copy.deepcopy(model), tokenizer)


class OwnTrainer:
    """`grpo_lab.train` as an adapter; two guards, the last of their stages, keep the tensors that pass by."""

    def __init__(self, config: Config, model: Any, tokenizer: Any) -> None:
        self.model, self._tokenizer, self._config = model, tokenizer, config
        self.num_iterations, self.pad_token_id = config.loss.num_iterations, tokenizer.pad_token_id
        self.terminators = rollouts.terminators(model, tokenizer).tolist()
        self.half_precision = not PRECISIONS[config.model.precision].exact(model.device)
        several = config.objectives[1:]
        self.objectives = [each.name for each in resolve(config) if each.num_prompts and several]
        # The mistake `overwrite` stands where the gradients should be added.
        self.combination = config.loss.combination if config.loss.combination in COMBINATIONS else "separate"
        if any(objective.beta for objective in resolve(config)):
            estimator = chosen_formulas(config).kl_estimator
            self.kl = lambda logprobs, ref_logprobs: estimator(ref_logprobs - logprobs)
        self._events: Iterator[Event] | None = None

    def step(self, reward: Reward, micro_batches: int) -> list[dict[str, Any]]:
        """Run one step of the trainer; the first call begins the run.

        Raises RuntimeError for a step that has no batch, and any error of the step.
        """
        self._reward, self._seen = reward, dict[str, dict[str, Any]]()
        self._events = self._events or self._run(micro_batches)
        step = next((e for e in self._events if isinstance(e, Stepped) and not e.failed), None)
        if not self._seen:
            why = "; ".join(action.reason for action in step.actions) if step else "it ended"
            raise RuntimeError(f"the step was refused before its batch was complete: {why}")
        return list(self._seen.values())

    @own_settings
    def _run(self, micro_batches: int) -> Iterator[Event]:
        config = self._config.with_(f"data.micro_batch_prompts={NUM_PROMPTS // micro_batches}")
        training = Training(config, (self.model, self._tokenizer))
        training.rewards |= {name: [lambda **columns: self._reward(**columns)] for name in training.rewards}
        training.interventions = {stage: [*row] for stage, row in training.interventions.items()}
        for stage, see in ((Stage.BATCH, self._see_batch), (Stage.LOG_RATIO, self._see_log_ratio)):
            probe = type("Probe", (Intervention,), {"name": "verify", "__call__": see})
            training.interventions.setdefault(stage, []).append(("guard", probe()))
        yield from events(training)

    def _see_batch(self, batch: Any, step: Step) -> Outcome:
        self.model, objective = step.policy, step.recorder.objective
        unusual = {k: v for k, v in asdict(step.sampling).items() if USUAL[k] not in (None, v)}
        self._seen[objective] = {
            **{name: getattr(batch, name) for name in ("old_logprobs", "ref_logprobs", "advantages", "completions")},
            **{name: getattr(batch, name)[batch.group] for name in ("prompt_ids", "prompt_mask")},
            "logprobs": batch.sampling_logprobs,
            "temperature": step.sampling.temperature,
            "filters": ", ".join(f"{name} = {value:g}" for name, value in unusual.items()),
            "objective": objective,
        }
        return Outcome(batch)

    def _see_log_ratio(self, log_ratio: Tensor, step: Step) -> Outcome:
        if step.update == 0:
            rows = self._seen[step.recorder.objective]
            now = {"log_ratio": log_ratio.detach(), "weights": known(known(step.batch, "batch").weights, "weights")}
            rows |= {key: torch.cat([rows.get(key, new[:0]), new]) for key, new in now.items()}
            rows["beta"] = step.beta
        return Outcome(log_ratio)


@dataclass(frozen=True)
class Line:
    """The result of one check."""

    name: str
    ok: bool | None
    """None: not checked, for the reason in `measured`."""
    measured: str
    limit: str = ""


def verify(target: str = "stable", settings: Sequence[str] = ()) -> list[Line]:
    """Check a preset, a scenario, a run's folder, or a user's `file.py:Adapter`; `settings` are overrides.

    Raises ConfigError for a target or setting that does not exist, and for an adapter without a model or a step.
    """
    own = re.search(r"\.py(:\w+)?$", target)
    if own and settings:
        raise ConfigError(f"{target}: --set and --model change a config; set them in the file of your trainer")
    with loading.quiet():
        if own:
            fresh = user_code.load(target if user_code.is_own(target) else f"{target}:Adapter")
        else:
            fresh = own_trainer(catalog.named(target).with_(*settings))
        return list(_lines(Subject(fresh)))


@own_settings
def _lines(subject: Subject) -> Iterator[Line]:
    """Make the checks of each objective, and then those of the policy."""
    if sum(p.numel() for p in subject.trainer.model.parameters()) < SMALL:
        torch.set_num_threads(1)  # the checks of a small model take too little for a second
    checks = {
        f"{name} ({objective})" if objective else name: partial(one, objective=objective)
        for name, one in EACH.items()
        for objective in subject.objectives or [""]
    }
    for name, one in {**checks, **WHOLE, **({"combination": combination} if subject.objectives else {})}.items():
        try:
            yield Line(name, *one(subject))
        except Unmeasured as reason:
            yield Line(name, None, str(reason))
        except GrpoLabError:
            raise
        except Exception as error:  # a user's trainer may raise anything, and return tensors of any shape
            yield Line(name, False, f"raised {user_code.said(error, subject.file)}")


class Trainer(Protocol):
    """A fresh trainer with a fixed seed; docs/verify.md lists what it may have and return beside what is here."""

    model: Any
    """The policy, called as transformers' models are: `model(input_ids=, attention_mask=, position_ids=).logits`."""

    def step(self, reward: Reward, micro_batches: int) -> Any:
        """Run one cycle (sample, score, update) and return its tensors, or a list of them for several objectives."""
        ...


class Cycle:
    """One cycle of a trainer, its `number`-th: what its step returned, and what its optimizer did.

    Raises ConfigError where the step returns too little.
    """

    def __init__(self, trainer: Trainer, reward: Reward, micro_batches: int, number: int) -> None:
        self.number = number
        self.model: Any = None
        """A copy of the policy before the first update, in fp32."""
        self.gradients = dict[str, Tensor]()
        """Gradients at the first optimizer step, by parameter."""
        self.optimizer_steps, self.rate = 0, 0.0
        """The number of optimizer steps, and their learning rates, added up."""
        self.allowed = math.inf
        """Twice the rate of Adam's family, which moves a weight by about its rate, and the largest one's rounding."""
        with register_optimizer_step_pre_hook(partial(self._look, trainer)):
            found = trainer.step(reward, micro_batches)
        self.objectives: list[Rows] = [found] if isinstance(found, Mapping) else list(found or [{}])
        for name in ("prompt_ids", "prompt_mask", "completions"):
            if any(rows.get(name) is None for rows in self.objectives):
                raise ConfigError(f"the adapter's step returned no `{name}`; docs/verify.md shows an adapter")
        self.model = self.model or copy.deepcopy(trainer.model).float().eval()
        named = [(name, p.detach()) for name, p in trainer.model.named_parameters() if p.requires_grad]
        weights = [(p, self.model.get_parameter(name).detach()) for name, p in named]
        self.largest_move = float(torch.tensor([0.0, *(float((p - old).abs().max()) for p, old in weights)]).max())
        """Largest change of one weight in the cycle; NaN if a weight is not finite."""
        rounding = max([0.0, *(torch.finfo(p.dtype).eps * float(old.abs().max()) for p, old in weights)])
        self.allowed += 2 * self.rate + rounding

    def _look(self, trainer: Trainer, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Look at an optimizer that is about to step."""
        self.optimizer_steps += 1
        self.rate += max(group["lr"] for group in optimizer.param_groups)
        if self.model is None:
            self.allowed = 0.0 if "adam" in type(optimizer).__name__.lower() else math.inf
            named = trainer.model.named_parameters()
            self.gradients = {name: p.grad.detach().clone() for name, p in named if p.grad is not None}
            self.model = copy.deepcopy(trainer.model).float().eval()

    @property
    def gradient(self) -> Tensor:
        """(n,) All gradients of the first optimizer step."""
        return torch.cat([each.flatten().float() for each in self.gradients.values()] or [torch.zeros(1)])

    @property
    def without(self) -> str:
        """Why there is no gradient to measure; empty where there is one."""
        norm = float(self.gradient.norm())
        if not self.optimizer_steps:
            return "no optimizer step was made"
        return "" if 0 < norm < math.inf else f"the norm of the gradient at the first optimizer step is {norm:g}"


def varied(prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
    """Rewards that depend on the text alone, so that a repeated cycle receives the same ones."""
    pairs = zip(prompts, completions, strict=True)
    return [zlib.crc32(f"{prompt}{completion}".encode()) % 101 / 100 for prompt, completion in pairs]


def in_turn(*rewards: float | None) -> Reward:
    """A function that gives completions these rewards in turn, whatever they are."""
    return lambda prompts, completions, **columns: [*itertools.islice(itertools.cycle(rewards), len(completions))]


EQUAL, EVERY_OTHER = in_turn(0.7), in_turn(0.7, None)


class Unmeasured(Exception):
    """The trainer does not give what a check measures."""


class Subject:
    """The trainer that is verified: `fresh` returns it in the same first state at each call.

    What it does not give raises Unmeasured, and any error of its own passes. Raises ConfigError for an adapter that
    cannot be made, or that has no model or no step.
    """

    def __init__(self, fresh: Callable[[], Trainer]) -> None:
        self._fresh = fresh
        self.file = str(getattr(sys.modules.get(getattr(fresh, "__module__", "")), "__file__", ""))
        try:
            self.trainer = fresh()
        except GrpoLabError:
            raise
        except Exception as error:  # a user's code may raise anything
            raise ConfigError(f"making the adapter raised {user_code.said(error, self.file)}; mend it") from error
        for name, form in (("model", "model"), ("step", "step(reward, micro_batches)")):
            if getattr(self.trainer, name, None) is None:
                raise ConfigError(f"the adapter has no `{form}`; docs/verify.md shows one")
        if not isinstance(self.trainer.model, torch.nn.Module):
            raise ConfigError(f"the adapter's `model` is of type {type(self.trainer.model).__name__}; give a module")
        self.half = bool(getattr(self.trainer, "half_precision", False))
        self.enough = 0.9 if self.half else 0.99
        """The least share of a gradient that the sampled tokens must explain."""
        self.objectives: Sequence[str] = getattr(self.trainer, "objectives", ())
        self.turns = len(self.objectives) if getattr(self.trainer, "combination", "") == "alternate" else 1
        """Cycles until every objective has been trained."""
        self.run = functools.cache(self._run)
        self.parts = functools.cache(self._parts)

    def _run(self, reward: Reward = varied, count: int = 1, micro_batches: int = 1, favoured: int = -1) -> list[Cycle]:
        """Cycles of a fresh trainer, at most up to one that left weights that are not finite.

        The model gives the `favoured` token about half of the probability at every place.
        """

        def favour(module: Any, inputs: Any, output: Tensor) -> Tensor:
            raised = torch.zeros_like(output)
            raised[..., favoured] = (output.float().logsumexp(dim=-1) - output[..., favoured].float()).detach()
            return output + raised

        trainer, found = self._fresh(), list[Cycle]()
        head = trainer.model.get_output_embeddings if favoured >= 0 else None
        with head().register_forward_hook(favour) if head else nullcontext():
            while len(found) < count and (not found or math.isfinite(found[-1].largest_move)):
                found.append(Cycle(trainer, reward, micro_batches, len(found) + 1))
        if reward is not varied or micro_batches > 1:
            for cycle in found:
                cycle.model = None  # it may be large, and is not needed
        return found

    @property
    def cycles(self) -> list[Cycle]:
        """Cycles of one trainer until it has trained the first objective again."""
        return self.run(count=self.turns + 1)

    def favoured(self) -> dict[int, Cycle]:
        """By terminator, the first cycle where it is favoured."""
        return {token: self.run(favoured=token)[0] for token in self.terminators}

    def optional(self, name: str) -> Any:
        """An attribute that an adapter may lack."""
        found = getattr(self.trainer, name, None)
        if found is None:
            raise Unmeasured(f"the trainer gives no `{name}`")
        return found

    def tables(self, name: str, objective: str = "", among: Sequence[Cycle] | None = None) -> list[tuple[Cycle, Rows]]:
        """The tables of an objective, or of all, that have something which a step may leave out; with their cycles.

        They are `among` the first cycles, in which every objective is trained once.
        """
        cycles = self.cycles[: self.turns] if among is None else among
        each = [(cycle, rows) for cycle in cycles for rows in cycle.objectives if rows.get(name) is not None]
        found = [(cycle, rows) for cycle, rows in each if objective in ("", rows.get("objective"))]
        if not found:
            raise Unmeasured(f"its step returns no `{name}`" + (f" of {objective}" if objective else ""))
        return found

    @property
    def terminators(self) -> list[int]:
        """Ids that should end a completion: of the adapter and of the model's generation config."""
        of_model = getattr(getattr(self.trainer.model, "generation_config", None), "eos_token_id", None)
        listed = of_model if isinstance(of_model, list) else [of_model]
        ids = {i for i in [*listed, *getattr(self.trainer, "terminators", ())] if i is not None}
        if not ids:
            raise Unmeasured("neither the trainer nor its model names `terminators`")
        return sorted(ids)

    def _parts(self, cycle: Cycle) -> dict[str, float]:
        """The parts of a cycle's first gradient, by kind of token, as norms over its own; `all`: the squared share
        that they explain.

        The gradient of a policy loss is a sum of weight x gradient of a token's log-probability. Least squares finds a
        weight for the `rest` of each completion, its `end` token, the `padding` after it, and its `prompt`.
        """
        if cycle.without:
            raise Unmeasured(cycle.without)
        names = _near_the_head(cycle)
        target = torch.cat([cycle.gradients[name].flatten() for name in names]).double()
        sums = [pair for rows in cycle.objectives for pair in _by_kind(cycle.model, rows, self.terminators)]
        units = torch.stack([derivative(cycle.model, names, logprob).double() for _, logprob in sums])
        units = units / units.norm(dim=1, keepdim=True).clamp(min=1e-30)
        explained = fitted(units, target, rtol=1e-7)[:, None] * units
        found = {"all": 1 - float((target - explained.sum(dim=0)).square().sum() / target.square().sum())}
        for wanted in ("end", "padding", "prompt"):
            part = explained[[kind == wanted for kind, _ in sums]].sum(dim=0)
            found[wanted] = float(part.norm() / target.norm())
        return found


def until_end(completions: Tensor, terminators: Sequence[int]) -> Tensor:
    """(B, T) bool: True up to and including the first terminator.

    >>> until_end(torch.tensor([[8, 5, 9, 0], [5, 9, 8, 9], [5, 6, 7, 5]]), [8, 9]).int().tolist()
    [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 1]]
    """
    ends = torch.isin(completions, torch.tensor(terminators, device=completions.device)).long()
    return ends.cumsum(dim=1) - ends == 0


def logprobs(model: Any, rows: Rows, temperature: float | None = None) -> Tensor:
    """(B, S + T - 1) log-probabilities of all tokens but the first, in nats; those of the completions come last.

    The temperature is that of the rows, if none is given.
    """
    tokens = torch.cat([rows["prompt_ids"], rows["completions"]], dim=1)
    mask = torch.cat([rows["prompt_mask"].long(), torch.ones_like(rows["completions"])], dim=1)
    positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
    logits = model(input_ids=tokens, attention_mask=mask, position_ids=positions).logits
    at = rows.get("temperature", 1.0) if temperature is None else temperature
    return completion_logprobs(logits[:, :-1], tokens[:, 1:], at)


def derivative(model: Any, names: Iterable[str], value: Tensor) -> Tensor:
    """(n,) the gradient of a value with respect to these parameters."""
    parameters = [model.get_parameter(name) for name in names]
    found = torch.autograd.grad(value, parameters, retain_graph=True, materialize_grads=True, allow_unused=True)
    return torch.cat([gradient.flatten() for gradient in found])


def fitted(vectors: Tensor, total: Tensor, rtol: float | None = None) -> Tensor:
    """(k,) the weights with which vectors (k, n) add up to a total (n,) best, by least squares."""
    return torch.linalg.pinv(vectors @ vectors.T, hermitian=True, rtol=rtol) @ (vectors @ total)


def _by_kind(model: Any, rows: Rows, terminators: Sequence[int]) -> Iterator[tuple[str, Tensor]]:
    """Yield each kind of token in each row, with the sum () of their log-probabilities."""
    for row in range(len(rows["completions"])):
        start = int(rows["prompt_mask"][row].long().argmax())  # without the prompt's padding
        one = {name: rows[name][row : row + 1, start:] for name in ("prompt_ids", "prompt_mask")}
        completion = rows["completions"][row : row + 1]
        whole = logprobs(model, {**rows, **one, "completions": completion})[0]
        prompt, chosen = whole.tensor_split([len(whole) - completion.shape[1]])
        inside = until_end(completion, terminators)[0]
        last = inside & torch.isin(completion[0], torch.tensor(terminators, device=inside.device))
        parts = {"rest": chosen[inside & ~last], "end": chosen[last], "padding": chosen[~inside], "prompt": prompt}
        yield from ((kind, part.sum()) for kind, part in parts.items() if len(part))


def _near_the_head(cycle: Cycle) -> list[str]:
    """Names of trained parameters near the head, without embeddings: their gradients are quick to compute."""
    tables = {id(each.weight) for each in cycle.model.modules() if isinstance(each, torch.nn.Embedding)}
    chosen, size = [], 0
    for name, parameter in reversed(list(cycle.model.named_parameters())):
        fits = name in cycle.gradients and id(parameter) not in tables and parameter.numel() <= COORDINATES
        if fits and size < COORDINATES:
            chosen.append(name)
            size += parameter.numel()
    return chosen


def temperature(subject: Subject, objective: str = "") -> Result:
    """The log-probabilities of sampler and loss against the policy's at the temperature of the loss."""
    limit, worst, said = (0.2 if subject.half else 0.01), {"sampler": 0.0, "loss": 0.0}, ""
    for cycle, rows in subject.tables("logprobs", objective):
        policy, wanted = partial(_policy, subject, cycle, rows), rows.get("temperature", 1.0)
        for who, name in (("sampler", "logprobs"), ("loss", "old_logprobs")):
            if rows.get(name) is None:
                continue
            own = rows[name].float()[until_end(rows["completions"], subject.terminators)]
            largest = float((own - policy(wanted)).abs().max())
            if not largest <= max(limit, worst[who]):
                named = f" ({rows['filters']})" if rows.get("filters") else ""
                said = said or f"; {who}: {_mismatch(own, policy, wanted, limit)}{named}"
            worst[who] = max(worst[who], largest)
    shown = ", ".join(f"{who} {gap:.4f}" for who, gap in worst.items())
    return max(worst.values()) <= limit, f"farthest from the policy: {shown} nats{said}", f"<= {limit:g} nats"


@torch.no_grad()
def _policy(subject: Subject, cycle: Cycle, rows: Rows, temperature: float | None = None) -> Tensor:
    """Log-probabilities (N,) of the sampled tokens under the policy of a cycle, before its update."""
    inside = until_end(rows["completions"], subject.terminators)
    return logprobs(cycle.model, rows, temperature)[:, -inside.shape[1] :][inside]


def _mismatch(own: Tensor, policy: Callable[[float], Tensor], wanted: float, limit: float) -> str:
    """The distribution that was used instead, as far as its log-probabilities (N,) tell."""
    gap = own - policy(wanted)
    cut = 1 - float(gap.neg().exp().min())
    if (gap >= -limit).all() and cut < 0.9:
        return f"top-p or top-k cut off up to {cut:.0%} of the probability"
    tried = {step / 20: float((own - policy(step / 20)).abs().max()) for step in range(2, 41)}
    best = min(tried, key=lambda at: tried[at])
    if tried[best] <= max(limit, 0.1 * float(gap.abs().max())):
        return f"temperature {best:g} instead of {wanted:g}"
    return "no temperature explains this, but penalties, old weights or dropout may"


def _largest(tables: Iterable[tuple[Cycle, Rows]], name: str) -> float:
    """The largest value of some tables, without its sign; NaN if one is NaN."""
    values = torch.cat([rows[name].flatten() for _, rows in tables])
    return float(values.abs().max()) if len(values) else 0.0


def ratio(subject: Subject, objective: str = "") -> Result:
    """The log-ratio at the first update of each cycle, before anything has moved."""
    tables = subject.tables("log_ratio", objective, subject.cycles)
    each = itertools.groupby(tables, key=lambda pair: pair[0].number)
    worst, limit = {number: _largest(pairs, "log_ratio") for number, pairs in each}, 0.2 if subject.half else 1e-3
    shown = ", ".join(f"{value:.4f} in cycle {number}" for number, value in worst.items())
    return all(value <= limit for value in worst.values()), f"largest |log-ratio| {shown}", f"<= {limit:g}"


def reference(subject: Subject, objective: str = "") -> Result:
    """Whether the reference of a later cycle is still the policy before the first."""
    first, *later = subject.cycles
    if len(later) < subject.turns:
        raise Unmeasured(f"the weights are not finite after cycle {len(subject.cycles)}")
    away, moved = [], []
    for cycle, rows in subject.tables("ref_logprobs", objective, later):
        start, now = (_policy(subject, each, rows) for each in (first, cycle))
        away.append((rows["ref_logprobs"][until_end(rows["completions"], subject.terminators)].float() - start).abs())
        moved.append((now - start).abs())
    distance, movement = float(torch.cat(away).mean()), float(torch.cat(moved).mean())
    rounding = 0.03 if subject.half else 1e-5
    if movement < 2 * rounding:
        raise Unmeasured(f"the policy moved by {movement:.1e} nats only, so that nothing tells the two apart")
    limit = max(rounding, 0.1 * movement)
    said = f"{distance:.4f} nats from the first policy, which has moved by {movement:.4f}"
    return distance <= limit, said, f"<= {limit:.4f}"


def _penalty(subject: Subject, objective: str) -> tuple[Tensor, Tensor]:
    """The expected penalty over 7 tokens, KL(policy || reference) and KL(reference || policy), (3,), and the gradients
    of each by the policy's scores, (3, 7)."""
    if objective and not any(rows["beta"] for _, rows in subject.tables("beta", objective)):
        raise Unmeasured(f"the beta of {objective} is 0")
    kl, generator = subject.optional("kl"), torch.Generator().manual_seed(0)
    scores, shift = (torch.randn(7, generator=generator) for _ in range(2))
    log_p, log_q = scores.requires_grad_().log_softmax(dim=-1), (scores.detach() + 0.2 * shift).log_softmax(dim=-1)
    penalty = (log_p.detach().exp() * kl(log_p[None], log_q[None])[0]).sum()
    found = torch.stack([penalty, kl_estimators.exact(log_p, log_q), kl_estimators.exact(log_q, log_p)])
    return found, torch.stack([torch.autograd.grad(each, scores, retain_graph=True)[0] for each in found])


def kl_value(subject: Subject, objective: str = "") -> Result:
    """The expected penalty, summed over a vocabulary of 7 tokens, against the KL."""
    value, exact, _ = _penalty(subject, objective)[0].tolist()
    return abs(value / exact - 1) <= 0.2, f"expected value {value:.4f}, KL {exact:.4f}", "within 20 %"


def kl_gradient(subject: Subject, objective: str = "") -> Result:
    """The expected gradient of the penalty against those of KL(policy || reference) and KL(reference || policy)."""
    found, *exact = _penalty(subject, objective)[1]
    cosine = max(float(torch.cosine_similarity(found, each, dim=0)) for each in exact)
    size = float(found.norm() / exact[0].norm())
    said = f"expected gradient {size:.2f} x that of a KL, cosine {cosine:.2f}"
    return cosine >= 0.95 and 0.5 <= size <= 2, said, "0.5 to 2 x, cosine >= 0.95"


def equal_rewards(
    subject: Subject, objective: str = "", reward: Reward = EQUAL, said: str = "of equal rewards {:g}"
) -> Result:
    """Advantages of equal rewards."""
    worst = _largest(subject.tables("advantages", objective, subject.run(reward, subject.turns)), "advantages")
    limit = f"<= {NOISE:g}, as rounding over an eps of 1e-4 leaves"
    return worst <= NOISE, f"largest |advantage| {said.format(worst)}", limit


def unscored(subject: Subject, objective: str = "") -> Result:
    """Advantages of equal rewards where every other completion has None: a 0 in its place would show."""
    if not equal_rewards(subject, objective)[0]:
        raise Unmeasured("the advantages of equal rewards are not 0")
    return equal_rewards(subject, objective, EVERY_OTHER, "{:g} with None among equal rewards")


def gradient(subject: Subject) -> Result:
    """The gradient of the first update against those of the sampled tokens' log-probabilities."""
    first, enough = subject.cycles[0], subject.enough
    if first.without:
        return False, first.without, ""
    norm, share = float(first.gradient.norm()), subject.parts(first)["all"]
    return share >= enough, f"norm {norm:.3g}, of which the sampled tokens explain {share:.1%}", f">= {enough:.0%}"


def _explained(subject: Subject) -> dict[str, float]:
    """The parts of the first gradient, which is a sum of the sampled tokens' gradients."""
    found = subject.parts(subject.cycles[0])
    if found["all"] < subject.enough:
        raise Unmeasured("the gradient is not a sum of the sampled tokens' gradients")
    return found


def micro_batches(subject: Subject) -> Result:
    """The gradient of two micro-batches against that of one batch."""
    _explained(subject)
    (whole, *_), (halves,) = subject.cycles, subject.run(micro_batches=2)
    for one, other in zip(whole.objectives, halves.objectives, strict=False):
        if not torch.equal(one["completions"], other["completions"]):
            raise Unmeasured("two fresh trainers sampled different completions: seed the sampler")
    apart = float((halves.gradient - whole.gradient).norm() / whole.gradient.norm())
    limit = 0.05 if subject.half else 1e-3
    return apart <= limit, f"gradients of two halves and of the whole differ by {apart:.2%}", f"<= {limit:.1%}"


def optimizer_steps(subject: Subject) -> Result:
    """Optimizer steps in a cycle with two micro-batches."""
    wanted, found = getattr(subject.trainer, "num_iterations", 1), subject.run(micro_batches=2)[0].optimizer_steps
    return found == wanted, f"{found} in a cycle of two micro-batches", f"{wanted}"


def update_size(subject: Subject) -> Result:
    """The largest change of a weight in a cycle against the learning rate."""
    cycle = subject.cycles[0]
    said = f"largest change of a weight {cycle.largest_move:.2g}, rate {cycle.rate:.2g}"
    return 0 < cycle.largest_move <= cycle.allowed, said, f"> 0, <= {cycle.allowed:.2g}"


def terminators(subject: Subject) -> Result:
    """Sampling where one token in two is the terminator: what follows it must be padding."""
    padding, active = subject.optional("pad_token_id"), []
    for token, cycle in subject.favoured().items():
        sampled = [rows["completions"] for rows in cycle.objectives]
        goes_on = any(bool((~until_end(each, [token]) & (each != padding)).any()) for each in sampled)
        if not goes_on and any(bool((each == token).any()) for each in sampled):
            active.append(token)
    silent = [token for token in subject.terminators if token not in active]
    said = f"active: {active}" + (f"; sampling goes on after {silent}" if silent else "")
    return not silent, said, f"all of {subject.terminators}"


def end_tokens(subject: Subject) -> Result:
    """The part of the gradient that each end token makes up where it is frequent."""
    _explained(subject)
    shares = {token: subject.parts(cycle)["end"] for token, cycle in subject.favoured().items()}
    said = ", ".join(f"{token} {share:.1%}" for token, share in shares.items())
    return min(shares.values()) >= 0.05, f"{said} of the gradient, if half of the tokens are end tokens", ">= 5%"


def padding_and_prompt(subject: Subject) -> Result:
    """The parts of the gradient that padding and prompt tokens make up, also where completions end early."""
    found = [_explained(subject), *(subject.parts(cycle) for cycle in subject.favoured().values())]
    shares = {kind: max(parts[kind] for parts in found) for kind in ("padding", "prompt")}
    limit, said = (0.2 if subject.half else 0.02), ", ".join(f"{kind} {share:.1%}" for kind, share in shares.items())
    return max(shares.values()) <= limit, f"{said} of the gradient", f"<= {limit:.0%}"


def combination(subject: Subject) -> Result:
    """The gradient of each cycle's first update against the combination of the objectives' own, by `loss.combination`.

    With `alternate`, more than one objective in a cycle are infinitely far.
    """
    way, ways = subject.optional("combination"), [name for name, each in COMBINATIONS.items() if not each.pooled]
    if way not in ways:
        known = ", ".join(ways)
        raise Unmeasured(f"`{way}` is none of {known}, which combine gradients; the combination is not verified")
    for name, needed in itertools.product(subject.objectives, ("weights", "advantages")):
        subject.tables(needed, name)
    limit, found, opposed = (0.2 if subject.half else 1e-3), [], 0.0
    for cycle in subject.cycles:
        if cycle.number > subject.turns and not cycle.optimizer_steps:
            continue
        if cycle.without:
            return False, cycle.without, ""
        total, tables = cycle.gradient, [rows for _, rows in subject.tables("weights", among=[cycle])]
        own = torch.stack([_gradient(subject, cycle, rows) for rows in tables])
        (wanted,) = COMBINATIONS[way].gradients([[each] for each in own])
        assert wanted is not None
        apart = float("inf") if way == "alternate" and len(tables) > 1 else _distance(total, wanted)
        factors = fitted(own, total)
        factors = factors / factors.abs().max().clamp(min=1e-30)
        said = ", ".join(f"{rows['objective']} {factor:.2f}" for rows, factor in zip(tables, factors, strict=True))
        found.append((not apart <= limit, apart, f"cycle {cycle.number}, where gradients count {said}"))  # NaN is far
        opposed = max(opposed, _distance(own.sum(dim=0), wanted))
    if way == "pcgrad" and opposed <= limit:
        raise Unmeasured(f"no gradients oppose each other in {len(found)} cycles, where `pcgrad` is the sum")
    wrong, apart, said = max(found)
    return not wrong, f"{apart:.2%} away from `{way}` in {said}", f"<= {limit:.1%}"


def _gradient(subject: Subject, cycle: Cycle, rows: Rows) -> Tensor:
    """(n,) the gradient of one objective's loss at the first update, where that of a ratio is its log-probability's."""
    chosen = logprobs(cycle.model, rows)[:, -rows["completions"].shape[1] :]
    if rows.get("old_logprobs") is not None and rows.get("log_ratio") is not None:
        # The trainer's own values, to the bit: a penalty may have a kink where the policy is the reference.
        chosen = chosen + (rows["old_logprobs"] + rows["log_ratio"] - chosen).detach()
    per_token = -rows["advantages"][:, None] * chosen
    if rows.get("beta"):
        per_token = per_token + rows["beta"] * subject.optional("kl")(chosen, rows["ref_logprobs"].float())
    inside = rows["weights"] != 0
    return derivative(cycle.model, cycle.gradients, (rows["weights"][inside] * per_token[inside]).sum())


def _distance(found: Tensor, wanted: Tensor) -> float:
    """The share of a gradient (n,) that the wanted one does not explain, up to a factor, which clipping changes."""
    factor = (found @ wanted / (wanted @ wanted).clamp(min=1e-30)).clamp(min=0)
    return float((found - factor * wanted).norm() / found.norm().clamp(min=1e-30))


_OF_EACH = (temperature, ratio, reference, kl_value, kl_gradient, equal_rewards, unscored)
EACH: dict[str, Callable[..., Result]] = {check.__name__.replace("_", " "): check for check in _OF_EACH}
"""The checks of each objective, in the order of their lines."""
WHOLE: dict[str, Callable[[Subject], Result]] = {
    "gradient": gradient,
    "micro-batches": micro_batches,
    "optimizer steps": optimizer_steps,
    "update size": update_size,
    "terminators": terminators,
    "end tokens": end_tokens,
    "padding and prompt": padding_and_prompt,
}
"""The checks of the policy, which all objectives share; of several objectives also `combination`."""
