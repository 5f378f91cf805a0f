"""The rules of the seam, held against every registered guard and fault, and what each of them does.

A registered guard or fault without a row in HARM, HEALTHY or FAULTY fails here: adding one adds its tests.
"""

import dataclasses
import inspect
import math
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import tensor

from grpo_lab import messages
from grpo_lab.config.catalog import preset
from grpo_lab.config.schema import Config
from grpo_lab.config.sections import SamplingConfig
from grpo_lab.core.batch import Batch
from grpo_lab.core.hooks import Refused, Stage, Verdict
from grpo_lab.core.loss import clipped_surrogate
from grpo_lab.errors import GrpoLabError, RunError
from grpo_lab.training import observers
from grpo_lab.training.faults import FAULTS
from grpo_lab.training.guards import GUARDS, finite_rows
from grpo_lab.training.interventions import Coefficients, Intervention, Outcome, Step
from grpo_lab.training.registry import arrange, carry_over
from grpo_lab.training.snapshots import Snapshots
from grpo_lab.training.state import Training
from tests.steps import step_of

INF, NAN = math.inf, math.nan
COEFFICIENTS = Coefficients(3e-4, 0.02, 0.2, None, 1e-8)
REGISTERED = [("guard", name, cls) for name, cls in GUARDS.items()] + [("fault", n, c) for n, c in FAULTS.items()]
ALL = pytest.mark.parametrize(("kind", "name", "cls"), REGISTERED, ids=[name for _, name, _ in REGISTERED])


def policy(dtype: torch.dtype = torch.float32, *gradients: float) -> torch.nn.Linear:
    """Four weights of 1, two biases of 1, and, where asked for, the four gradients of the weights and zeros."""
    model: Any = torch.nn.Linear(2, 2, dtype=dtype)
    model.config = SimpleNamespace(vocab_size=100)
    for parameter in model.parameters():
        torch.nn.init.ones_(parameter)
    if gradients:
        model.weight.grad = tensor(gradients, dtype=dtype).view(2, 2)
        model.bias.grad = torch.zeros(2, dtype=dtype)
    return model


def make_step(index: int = 5, model: Any = None, **known: Any) -> Step:
    """A step in which every completion of the micro-batch has an advantage of 1, unless `advantages` says otherwise."""
    advantages = known.pop("advantages", torch.ones(16))
    rows = torch.zeros(len(advantages), dtype=torch.long)
    batch = replace(make_batch().rows(rows), advantages=advantages)
    defaults = {"config": Config(), "sampling": SamplingConfig(), "policy": model or policy(), "batch": batch}
    return step_of(index=index, **{**defaults, **known})


def make_attempt(index: int = 5, interventions: Any = None, **known: Any) -> Step:
    return make_step(index, interventions=interventions or {}, **known)


def make_batch(**changed: Any) -> Batch:
    """Four completions of two prompts, three tokens wide; the last has one token."""
    mask = tensor([[1, 1, 1], [1, 1, 0], [1, 1, 1], [1, 0, 0]]).bool()
    logprobs = torch.full((4, 3), -1.0)
    batch = Batch(
        prompt_ids=torch.arange(4).view(2, 2),
        prompt_mask=torch.ones(2, 2, dtype=torch.long),
        group=tensor([0, 0, 1, 1]),
        completions=torch.arange(12).view(4, 3),
        completion_mask=mask,
        sampling_logprobs=logprobs,
        entropy=logprobs,
        advantages=tensor([1.0, -1.0, 0.5, -0.5]),
        old_logprobs=logprobs,
        ref_logprobs=logprobs,
    )
    return replace(batch, **changed)


def with_element(value: float, row: int, column: int) -> torch.Tensor:
    values = torch.full((4, 3), -1.0)
    values[row, column] = value
    return values


@dataclass
class Harm:
    """A value that a guard objects to, and what it says about it."""

    value: Any
    reason: str
    verdict: Verdict = Verdict.CHANGED
    settings: dict[str, Any] = field(default_factory=dict)
    step: dict[str, Any] = field(default_factory=dict)
    then: Verdict | None = None
    """What the verdict rises to when patience is over, where the guard has one."""
    mended: Callable[[Any], bool] | None = None
    """Whether the value that leaves is what it should be, where the step goes on."""


def is_tensor(*expected: Any) -> Callable[[Any], bool]:
    return lambda value: torch.equal(value.nan_to_num(777.0), tensor([*expected]).nan_to_num(777.0))


def gradients_are(*expected: float) -> Callable[[Any], bool]:
    def check(model: Any) -> bool:
        return torch.allclose(model.weight.grad.flatten(), tensor(expected), equal_nan=True)

    return check


SKIP, BACK, STOP, CHANGED = Verdict.SKIP_STEP, Verdict.ROLL_BACK, Verdict.STOP, Verdict.CHANGED
HARM: dict[str, list[Harm]] = {
    "rollback": [
        Harm(
            COEFFICIENTS,
            "learning rate 0.00015 = 0.0003 x 0.5^1 after rollbacks",
            step={"last_verdict": BACK},
            mended=lambda value: value == replace(COEFFICIENTS, learning_rate=1.5e-4),
        ),
        Harm(COEFFICIENTS, "1 refused steps in a row, patience 1", BACK, {"patience": 1}, {"last_verdict": SKIP}),
    ],
    "warm_up": [
        Harm(
            COEFFICIENTS,
            "learning rate 9e-05, step 3 of 10 of the warm-up",
            step={"index": 2},
            mended=lambda value: value.learning_rate == pytest.approx(9e-5),
        )
    ],
    "adaptive_learning_rate": [
        Harm(
            COEFFICIENTS,
            "learning rate 0.00015 = 0.0003 x 0.5: KL 2 > 1",
            step={"last_metrics": {"kl": 2.0, "grad_norm": 3.0}},
            mended=lambda value: value == replace(COEFFICIENTS, learning_rate=1.5e-4),
        ),
        Harm(
            COEFFICIENTS,
            "learning rate 3e-05 = 0.0003 x 0.1: grad norm nan is not a number",
            settings={"factor": 0.01, "floor": 0.1},
            step={"last_metrics": {"grad_norm": NAN}},
            mended=lambda value: value.learning_rate == pytest.approx(3e-5),
        ),
    ],
    "adaptive_beta": [
        Harm(
            COEFFICIENTS,
            "beta 0.0204 = 0.02 x 1.02: KL 0.2, target 0.1",
            step={"last_metrics": {"kl": 0.2}},
            mended=lambda value: value.beta == pytest.approx(0.0204),
        ),
        Harm(
            COEFFICIENTS,
            "KL nan is not finite: beta stays 0.02",
            step={"last_metrics": {"kl": NAN}},
            mended=lambda value: value == COEFFICIENTS,
        ),
    ],
    "dual_clip": [],  # it acts inside the loss: see test_dual_clip_bounds_the_side_that_min_leaves_open
    "representable_epsilon": [
        Harm(
            COEFFICIENTS,
            "adam_eps 1e-08 < 0.0001 in float16",
            step={"model": policy(torch.float16)},
            mended=lambda value: value == replace(COEFFICIENTS, adam_eps=1e-4),
        )
    ],
    "safe_sampling": [
        Harm(
            SamplingConfig(temperature=0.1, max_completion_length=99),
            "temperature 0.3, top_p 0.9, top_k 40",
            mended=lambda value: value == SamplingConfig(0.3, 0.9, 40, 1.05, 0.0, 0.0, 15),
        ),
    ],
    "check_probabilities": [
        Harm(tensor([[0.5, 0.5], [NAN, 0.5]]), "1 of 2 rows of probabilities are not finite", BACK, then=STOP),
        Harm(tensor([[NAN, NAN], [INF, 0.0]]), "2 of 2 rows of probabilities are not finite", BACK, then=STOP),
        Harm(tensor([[0.0, 0.0], [1.0, 0.0]]), "1 of 2 rows of probabilities sum to 0 or less", BACK, then=STOP),
        Harm(tensor([[-0.5, 1.5]]), "1 of 1 rows of probabilities hold a number below 0", BACK, then=STOP),
        Harm(tensor([[NAN, 1.0]]), "1 of 1 rows", BACK, {"patience": 1}, then=STOP),
    ],
    "sanitize_rewards": [
        Harm(
            tensor([[1.0, NAN], [-INF, 0.5]]),
            "2 of 4 rewards were not finite",
            step={"scorable": torch.ones(2, 2, dtype=torch.bool)},
            mended=is_tensor([1.0, 0.0], [0.0, 0.5]),
        )
    ],
    "clamp_advantages": [
        Harm(tensor([[1.0, -11.0]]), "advantages 11 > 10", mended=is_tensor([1.0, -10.0])),
        Harm(tensor([[1.0, INF]]), "advantages inf > 3", settings={"limit": 3}, mended=is_tensor([1.0, 3.0])),
        Harm(tensor([[NAN, 1e3]]), "advantages nan is not a number; limit 10", mended=is_tensor([NAN, 10.0])),
    ],
    "clamp_logits": [Harm(tensor([[[1.0, -101.0]]]), "logits 101 > 100", mended=is_tensor([[1.0, -100.0]]))],
    "drop_nonfinite_samples": [
        Harm(
            make_batch(old_logprobs=with_element(NAN, 1, 1)),
            "1 of 4 completions were not finite",
            mended=lambda value: value.completions[:, 0].tolist() == [0, 6, 9] and value.group.tolist() == [0, 1, 1],
        ),
        Harm(
            make_batch(advantages=tensor([INF, -1.0, 0.5, NAN]), ref_logprobs=with_element(-INF, 2, 2)),
            "3 of 4 completions were not finite",
            mended=lambda value: value.completions.tolist() == [[3, 4, 5]],
        ),
        Harm(make_batch(advantages=torch.full((4,), NAN)), "4 of 4 completions were not finite", SKIP),
    ],
    "clamp_log_ratio": [
        Harm(tensor([[1.0, -89.0]]), "log-ratio 89 > 5", mended=is_tensor([1.0, -5.0])),
        Harm(tensor([[NAN, INF]]), "log-ratio nan is not a number; limit 5", mended=is_tensor([NAN, 5.0])),
    ],
    "clamp_kl": [Harm(tensor([[11.0, 1.0]]), "kl-delta 11 > 10", mended=is_tensor([10.0, 1.0]))],
    "skip_nonfinite": [
        Harm(policy(), f"grad norm {norm} is not finite", SKIP, step={"grad_norm": norm}, then=BACK)
        for norm in (NAN, INF)
    ],
    "skip_spikes": [
        Harm(policy(), "grad norm 812.4 > 10", SKIP, step={"grad_norm": 812.4}, then=BACK),
        Harm(policy(), "grad norm inf > 10", SKIP, step={"grad_norm": INF}, then=BACK),
        Harm(policy(), "grad norm nan is not a number; limit 10", SKIP, step={"grad_norm": NAN}, then=BACK),
        Harm(policy(), "grad norm inf > 10", SKIP, {"nan_passes": True, "patience": 2}, {"grad_norm": INF}, then=BACK),
    ],
    "skip_outliers": [
        Harm(policy(), f"grad norm {norm} is not finite", SKIP, step={"grad_norm": norm}, then=BACK)
        for norm in (NAN, INF)  # one that is finite needs others to stand out from: see test_adaptive_guards.py
    ],
    "clip_gradients": [
        Harm(
            policy(torch.float32, 3.0, 0.0, 0.0, 4.0),
            "grad norm 5 > 1",
            step={"grad_norm": 5.0},
            mended=gradients_are(0.6, 0.0, 0.0, 0.8),
        )
    ],
    "check_weights": [
        Harm(
            policy(),
            "1 of 2 weight tensors hold NaN or inf",
            BACK,
            step={"weight_norms": tensor([1.0, NAN])},
            then=STOP,
        ),
        Harm(
            policy(),
            "2 of 2 weight tensors hold NaN or inf",
            BACK,
            {"patience": 1},
            {"weight_norms": tensor([INF, -INF])},
            then=STOP,
        ),
        Harm(
            policy(),
            "a weight moved by 0.9 > 0.1",
            BACK,
            {"max_move": 0.1},
            {"weight_norms": torch.ones(2), "largest_move": lambda: 0.9},
            then=STOP,
        ),
    ],
}
HARMS = [pytest.param(name, harm, id=f"{name}-{i}") for name, harms in HARM.items() for i, harm in enumerate(harms)]
REFUSED = [p for p in HARMS if p.values[1].verdict >= Verdict.SKIP_STEP]  # type: ignore[union-attr]

HEALTHY: dict[str, list[tuple[Any, dict[str, Any]]]] = {
    "rollback": [(COEFFICIENTS, {"last_verdict": verdict}) for verdict in (Verdict.KEEP, CHANGED, SKIP)],
    "warm_up": [(COEFFICIENTS, {"index": 9}), (COEFFICIENTS, {"index": 10})],
    "adaptive_learning_rate": [(COEFFICIENTS, {}), (COEFFICIENTS, {"last_metrics": {"kl": 1.0, "grad_norm": 4.0}})],
    "adaptive_beta": [
        (COEFFICIENTS, {"last_metrics": {"kl": 0.1}}),
        (replace(COEFFICIENTS, beta=0.0), {"last_metrics": {"kl": 9.0}}),
        (COEFFICIENTS, {}),
    ],
    "representable_epsilon": [
        (COEFFICIENTS, {}),
        (COEFFICIENTS, {"model": policy(torch.bfloat16)}),
        (replace(COEFFICIENTS, adam_eps=1e-4), {"model": policy(torch.float16)}),
    ],
    "safe_sampling": [(SamplingConfig(0.7, 0.85, 40, 1.05, 0.0, 0.0, 12), {})],
    "check_probabilities": [(tensor([[0.0, 1.0], [0.5, 0.5]]), {})],
    "sanitize_rewards": [(tensor([[1.0, -1e30]]), {"scorable": tensor([[True, False]])})],
    "clamp_advantages": [(tensor([[10.0, -10.0]]), {})],
    "clamp_logits": [(tensor([[[100.0, -100.0]]]), {})],
    "drop_nonfinite_samples": [
        (make_batch(), {}),
        (make_batch(ref_logprobs=None), {}),
        (make_batch(old_logprobs=with_element(NAN, 3, 1)), {}),  # outside the mask nobody looks
    ],
    "clamp_log_ratio": [(tensor([[5.0, -5.0, 0.0]]), {})],
    "clamp_kl": [(tensor([[10.0, -10.0]]), {})],
    "skip_nonfinite": [(policy(), {"grad_norm": 1e30}), (policy(), {"grad_norm": 0.0})],
    "skip_spikes": [(policy(), {"grad_norm": 10.0})],
    "skip_outliers": [(policy(), {"grad_norm": norm}) for norm in (10.0, 1e-30, 0.0)],
    "clip_gradients": [(policy(torch.float32, 0.6, 0.0, 0.0, 0.8), {"grad_norm": 1.0})],
    "check_weights": [(policy(), {"weight_norms": tensor([0.0, 1e30])})],
    "dual_clip": [],  # it sets delta and changes no loss: see the same test
}
HEALTHY_ROWS = [
    pytest.param(name, *row, id=f"{name}-{i}") for name, rows in HEALTHY.items() for i, row in enumerate(rows)
]

FAULTY: dict[str, Callable[[], Any]] = {
    "dropout_on": make_batch,
    "shift_log_ratio": lambda: torch.zeros(16, 3),
    "shift_kl_delta": lambda: torch.zeros(16, 3),
    "scale_loss": lambda: tensor(0.5),
    "nan_gradient": lambda: policy(torch.float32, 1.0, 2.0, 3.0, 4.0),
    "ignore_temperature": lambda: tensor([[0.8, 0.2]]),
    "filter_logits": lambda: torch.arange(24.0).view(1, 1, 24),
    "corrupt_sample": make_batch,
    "stale_batch": make_batch,
    "nan_reward": lambda: torch.rand(4, 4, generator=torch.Generator().manual_seed(0)),
    "unscored_as_zero": lambda: tensor([[-1.0, 9.0], [-1.0, -1.0]]),
}
COLD = SamplingConfig(temperature=0.5)
NEEDS: dict[str, dict[str, Any]] = {
    "ignore_temperature": {"sampling": COLD},
    "filter_logits": {"note": "current"},
    "unscored_as_zero": {"scorable": tensor([[True, False], [True, True]])},
}
"""What a step must be like for a fault to act."""
ONE_PLACE = ["corrupt_sample", "nan_gradient", "nan_reward", "shift_kl_delta", "shift_log_ratio"]
"""Faults that change one element in one step."""


# The rules -----------------------------------------------------------------------------------------------------------


def test_every_guard_and_every_fault_has_its_rows_here():
    assert set(HARM) == set(HEALTHY) == set(GUARDS)
    assert set(FAULTY) == set(FAULTS)


@ALL
def test_an_intervention_says_what_it_is_called_and_where_it_acts(kind, name, cls):
    assert cls.name == name
    assert name.replace("_", "").isalpha()
    assert isinstance(cls.stage, Stage)
    assert issubclass(cls, Intervention)
    assert cls.__call__ is not Intervention.__call__
    assert dataclasses.fields(cls)
    with pytest.raises(dataclasses.FrozenInstanceError):
        cls().name = "other"  # type: ignore[misc]


def test_no_name_is_used_twice():
    names = [name for _, name, _ in REGISTERED] + [observer.name for observer in observers.OBSERVERS]
    assert len(set(names)) == len(names)


@ALL
def test_the_docstring_says_what_it_stops_costs_and_hides(kind, name, cls):
    assert cls.__doc__
    first, _, rest = inspect.cleandoc(cls.__doc__).partition("\n")
    assert first.endswith((".", ","))
    assert not first.startswith(cls.__name__ + "(")  # what a dataclass writes where nobody wrote anything
    if kind == "guard":
        sections = [rest.find(word) for word in ("Stops:", "Costs:", "Hides:")]
        assert -1 not in sections
        assert sections == sorted(sections)


@ALL
def test_memory_survives_being_saved_and_belongs_to_one_instance(kind, name, cls):
    one, other = cls(), cls()
    one.memory["x"] = 3.0
    saved = one.state_dict()
    one.memory["x"] = 4.0
    assert saved["memory"] == {"x": 3.0}
    assert other.memory == {}
    other.memory["stale"] = 1.0
    other.load_state_dict(saved)
    assert other.memory == {"x": 3.0}
    other.memory["x"] = 5.0
    assert saved["memory"] == {"x": 3.0}
    assert one == other  # settings make an intervention what it is, memory does not


@pytest.mark.parametrize(
    ("one", "name", "value", "note", "look"),
    [
        (FAULTS["stale_batch"](), "queue", make_batch(), "", lambda batch: batch.completions),
        (observers.MeasureExactKL(), "reference", torch.ones(1, 3, 4), "reference", lambda logits: logits),
    ],
)
def test_tensors_that_are_kept_survive_a_change_and_a_file(one, name, value, note, look, tmp_path):
    first, second = (make_step(note=note, batch=make_batch().rows(tensor([row]))) for row in (0, 1))
    one(value, first)
    after_a_change, from_a_file = type(one)(), type(one)()
    carry_over({one.stage: [("any", one)]}, {one.stage: [("any", after_a_change)]})
    torch.save(one.state_dict(), tmp_path / "state.pt")
    with torch.serialization.safe_globals([Batch]):  # a file that is read runs no code
        from_a_file.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    one(value, second)
    assert [len(getattr(each, name)) for each in (one, after_a_change, from_a_file)] == [2, 1, 1]
    for each in (after_a_change, from_a_file):
        kept = getattr(each, name)
        (only,) = kept.values() if isinstance(kept, dict) else kept
        assert torch.equal(look(only), look(value if name == "queue" else value[0]))


@pytest.mark.parametrize(("name", "harm"), HARMS)
def test_a_guard_that_acts_gives_its_reason_with_the_number_and_the_limit(name, harm):
    guard = GUARDS[name](**harm.settings)
    step = make_step(**harm.step)
    outcome = guard(_fresh(harm.value), step)
    assert outcome.verdict == harm.verdict
    assert harm.reason in outcome.reason
    assert re.search(r"\d|nan|inf", outcome.reason)
    if harm.mended is not None:
        assert harm.mended(outcome.value), outcome.value
    else:
        assert outcome.verdict >= Verdict.SKIP_STEP, "say in the table what the value should become"


NAMES = {"KL", "NaN", "adam", "beta", "dropout", "eps", "float", "inf", "logits", "nan", "token", "top"}
"""Words that stay in a Chinese reason."""


def is_chinese(reason: str) -> bool:
    said = messages.spoken(reason)
    same_numbers = [sorted(re.findall(r"\d[\d.e-]*", words)) for words in (said, reason)]
    return same_numbers[0] == same_numbers[1] and set(re.findall("[A-Za-z]{2,}", said)) <= NAMES


@pytest.mark.parametrize(("name", "harm"), HARMS)
def test_the_reason_of_a_guard_is_translated_with_its_numbers(monkeypatch, name, harm):
    monkeypatch.setenv(messages.VARIABLE, "zh")
    reason = GUARDS[name](**harm.settings)(_fresh(harm.value), make_step(**harm.step)).reason
    assert is_chinese(reason), messages.spoken(reason)


@pytest.mark.parametrize("name", FAULTY)
def test_the_reason_of_a_fault_is_translated_with_its_numbers(monkeypatch, name):
    monkeypatch.setenv(messages.VARIABLE, "zh")
    value, step, fault = FAULTY[name](), make_step(index=1, **NEEDS.get(name, {})), FAULTS[name]()
    reason = fault(value, step).reason or fault(value, step).reason  # the first batch is never stale
    assert is_chinese(reason), messages.spoken(reason)


def _fresh(value: Any) -> Any:
    """A value of the table that a guard may change in place without anyone else noticing."""
    if not isinstance(value, torch.nn.Module):
        return value
    model = policy(value.weight.dtype)  # type: ignore[arg-type]
    for mine, theirs in zip(model.parameters(), value.parameters(), strict=True):
        mine.grad = None if theirs.grad is None else theirs.grad.clone()
    return model


@pytest.mark.parametrize(("name", "harm"), REFUSED)
def test_a_guard_never_ends_up_accepting_what_it_refuses(name, harm):
    guard = GUARDS[name](**harm.settings)
    verdicts = []
    for index in range(100):
        verdicts.append(guard(_fresh(harm.value), make_step(**{"index": index, **harm.step})).verdict)
    assert min(verdicts) == harm.verdict >= Verdict.SKIP_STEP
    if harm.then is not None:
        patience = guard.patience  # type: ignore[attr-defined]
        assert verdicts == [harm.verdict] * patience + [harm.then] * (100 - patience)


@pytest.mark.parametrize("name", [name for name, cls in GUARDS.items() if hasattr(cls(), "patience")])
def test_a_guard_with_patience_says_what_follows_it(name):
    assert name == "rollback" or any(harm.then is not None and harm.then > harm.verdict for harm in HARM[name])


@pytest.mark.parametrize(("name", "harm"), [p for p in REFUSED if p.values[1].then is not None])  # type: ignore
def test_patience_outlives_a_save_and_a_healthy_value_restores_it(name, harm):
    guard = GUARDS[name](**harm.settings)
    patience = guard.patience  # type: ignore[attr-defined]
    refuse = lambda one, index: one(_fresh(harm.value), make_step(index, **harm.step)).verdict  # noqa: E731
    for index in range(patience):
        assert refuse(guard, index) == harm.verdict
    again = GUARDS[name](**harm.settings)
    again.load_state_dict(guard.state_dict())
    assert refuse(again, patience) == harm.then
    value, known = HEALTHY[name][0]
    assert again(value, make_step(patience + 1, **known)).verdict == Verdict.KEEP
    assert refuse(again, patience + 2) == (harm.verdict if patience else harm.then)


@pytest.mark.parametrize(("name", "harm"), [p for p in REFUSED if p.values[1].then is not None])  # type: ignore
def test_patience_counts_a_step_once_however_often_it_is_refused(name, harm):
    guard = GUARDS[name](**harm.settings)
    patience = guard.patience  # type: ignore[attr-defined]
    for index in range(patience + 1):
        verdicts = {guard(_fresh(harm.value), make_step(index, **harm.step)).verdict for _ in range(3)}
        assert verdicts == {harm.verdict if index < patience else harm.then}


@pytest.mark.parametrize(
    "name", ["check_probabilities", "skip_spikes", "skip_nonfinite", "skip_outliers", "check_weights"]
)
def test_patience_counts_steps_also_where_the_first_value_of_each_is_good(name):
    """A good first token, or a good first update, comes before the bad one in every step."""
    guard, harm, (value, known) = GUARDS[name](), HARM[name][0], HEALTHY[name][0]
    verdicts = []
    for index in range(100):
        guard(value, make_step(index, **known))
        verdicts.append(guard(_fresh(harm.value), make_step(index, **harm.step)).verdict)
    assert verdicts[-1] == harm.then


def test_without_patience_the_worse_verdict_comes_at_once():
    guard = GUARDS["skip_nonfinite"](patience=0)  # type: ignore[call-arg]
    outcome = guard(policy(), make_step(grad_norm=NAN))
    assert outcome.verdict == BACK
    assert outcome.reason == "grad norm nan is not finite; 1 steps in a row, patience 0"


@pytest.mark.parametrize(("name", "value", "known"), HEALTHY_ROWS)
def test_a_guard_is_silent_on_a_healthy_value(name, value, known):
    guard, step = GUARDS[name](), make_step(**known)
    before = [p.grad.clone() for p in value.parameters() if p.grad is not None] if hasattr(value, "parameters") else []
    for _ in range(3):
        outcome = guard(value, step)
        assert outcome.value is value
        assert outcome.verdict == Verdict.KEEP
        assert (outcome.reason, outcome.replace) == ("", {})
    after = [p.grad for p in value.parameters() if p.grad is not None] if hasattr(value, "parameters") else []
    assert all(torch.equal(old, new) for old, new in zip(before, after, strict=True))


def test_those_that_change_a_healthy_run_say_why():
    excused = {name for name, cls in GUARDS.items() if cls.changes_healthy_runs}
    # DESIGN.md, section 3, rule 2
    assert excused == {"warm_up", "safe_sampling", "clip_gradients", "adaptive_learning_rate", "adaptive_beta"}


def test_only_guards_that_can_ask_for_a_snapshot_go_back():
    for name, harms in HARM.items():
        worst = {verdict for harm in harms for verdict in (harm.verdict, harm.then)}
        assert (Verdict.ROLL_BACK in worst) == GUARDS[name].may_roll_back, name


# Faults --------------------------------------------------------------------------------------------------------------


def state_of_chance() -> tuple[Any, ...]:
    return torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]


SEEDS_TORCH = {"dropout_on"}
"""Faults that seed torch's global generator, because what they switch on draws from no other."""


@pytest.mark.parametrize("name", sorted(SEEDS_TORCH))
def test_a_fault_that_seeds_torch_does_so_by_seed_and_step(name):
    def drawn(index: int, seed: int = 0) -> list[float]:
        step = make_step(index, config=Config().with_(f"run.seed={seed}"))
        FAULTS[name]()(FAULTY[name](), step)
        return torch.rand(4).tolist()

    with torch.random.fork_rng():
        first = drawn(1)
        torch.rand(3)
        assert drawn(1) == first
        assert first not in (drawn(2), drawn(1, seed=1))


@pytest.mark.parametrize("name", sorted(set(FAULTS) - SEEDS_TORCH))
def test_a_fault_is_seen_and_leaves_the_chance_of_the_run_alone(name):
    value, step, fault = FAULTY[name](), make_step(index=1, **NEEDS.get(name, {})), FAULTS[name]()
    if name == "stale_batch":
        fault(value, step)  # the first batch has none before it
    before = state_of_chance()
    outcome = fault(value, step)
    assert state_of_chance() == before
    assert outcome.verdict == CHANGED
    assert outcome.reason


def harmed(name: str, index: int, seed: int = 0) -> str:
    """Where the fault acted."""
    fault = FAULTS[name](at_step=index)  # type: ignore[call-arg]
    step = make_step(index, config=Config().with_(f"run.seed={seed}"))
    value = fault(FAULTY[name](), step).value
    if name == "nan_gradient":
        return str([p.grad.isnan().tolist() for p in value.parameters()])
    return str(value.completions.tolist() if isinstance(value, Batch) else value.tolist())


@pytest.mark.parametrize("name", ONE_PLACE)
def test_a_fault_acts_the_same_place_for_the_same_seed_and_step_only(name):
    places = [harmed(name, index) for index in range(16)]
    torch.manual_seed(1234)
    assert places == [harmed(name, index) for index in range(16)]
    assert len(set(places)) > 1
    assert [harmed(name, index, seed=1) for index in range(16)] != places


@pytest.mark.parametrize("name", ONE_PLACE)
def test_a_fault_waits_for_its_step(name):
    value = FAULTY[name]()
    outcome = FAULTS[name](at_step=3)(value, make_step(index=2))  # type: ignore[call-arg]
    assert outcome.value is value
    assert (outcome.verdict, outcome.reason) == (Verdict.KEEP, "")


def test_shift_log_ratio_acts_where_the_advantage_is_positive():
    found = [FAULTS["shift_log_ratio"](at_step=index) for index in range(8)]  # type: ignore[call-arg]
    liked = torch.tensor([-1.0, 1.0, 0.0, 1.0])
    shifted = [fault(torch.zeros(4, 2), make_step(i, advantages=liked)).value for i, fault in enumerate(found)]
    assert {int(value[:, 0].argmax()) for value in shifted} == {1, 3}
    nobody = make_step(1, advantages=-liked.abs())
    assert FAULTS["shift_log_ratio"]()(torch.zeros(4, 2), nobody).verdict == Verdict.KEEP


def test_shift_log_ratio_shifts_one_token_by_its_nats():
    given = torch.zeros(16, 3, requires_grad=True)
    found = FAULTS["shift_log_ratio"](nats=90)(given, make_step(index=1)).value  # type: ignore[call-arg]
    assert found.requires_grad  # what is upstream must still get a gradient
    assert not given.any()
    assert sorted(found.detach().flatten().tolist())[-2:] == [0.0, 90.0]
    assert bool((found[:, 0] == 90.0).any())


def test_nan_gradient_breaks_one_element():
    model = FAULTY["nan_gradient"]()
    outcome = FAULTS["nan_gradient"]()(model, make_step(index=1))
    assert sum(int(p.grad.isnan().sum()) for p in model.parameters() if p.grad is not None) == 1
    assert outcome.reason == "1 of 6 gradients set to NaN"


def test_shift_kl_delta_moves_the_first_token_of_one_completion():
    value = FAULTS["shift_kl_delta"](nats=7.0)(torch.zeros(16, 3), make_step(1)).value  # type: ignore[call-arg]
    assert value.sum() == value[:, 0].max() == 7.0


def test_a_scale_that_nobody_takes_out_multiplies_loss_and_gradient():
    loss = tensor(0.5, requires_grad=True)
    FAULTS["scale_loss"](factor=8.0)(loss, make_step(1)).value.backward()  # type: ignore[call-arg]
    assert loss.grad == 8.0


def test_an_ignored_temperature_samples_at_one():
    logits = tensor([[1.0, 0.0, -2.0]])
    value = FAULTS["ignore_temperature"]()((logits / 0.5).softmax(-1), make_step(1, sampling=COLD)).value
    assert torch.allclose(value, logits.softmax(-1))
    assert FAULTS["ignore_temperature"]()(value, make_step(1)) == Outcome(value)  # at 1 there is nothing to ignore


def test_a_filter_spares_the_sampler_and_keeps_the_likeliest():
    logits, fault = FAULTY["filter_logits"](), FAULTS["filter_logits"](keep=3)  # type: ignore[call-arg]
    assert fault(logits, make_step(1, note="sampling")).value is logits
    for note in ("old", "reference", "current"):
        kept = fault(logits, make_step(1, note=note)).value
        assert kept.isfinite().sum() == 3 and kept[0, 0, -3:].isfinite().all()
    two_passes = kept.log_softmax(-1)[0, 0, 0] - kept.log_softmax(-1)[0, 0, 0]
    assert two_passes.isnan()


def test_a_corrupt_sample_keeps_what_was_noted_of_it():
    batch = make_batch()
    corrupt = FAULTS["corrupt_sample"]()(batch, make_step(1)).value
    assert int((corrupt.completions != batch.completions).any(dim=1).sum()) == 1
    assert corrupt.old_logprobs is batch.old_logprobs and corrupt.advantages is batch.advantages


def test_a_stale_batch_is_as_old_as_asked():
    fault = FAULTS["stale_batch"](lag=3)  # type: ignore[call-arg]
    batches = [make_batch(group=torch.full((4,), i)) for i in range(8)]
    seen = [int(fault(batch, make_step(i)).value.group[0]) for i, batch in enumerate(batches)]
    assert seen == [0, 0, 0, 0, 1, 2, 3, 4]


def test_a_nan_reward_is_one_of_all():
    value = FAULTS["nan_reward"]()(FAULTY["nan_reward"](), make_step(1)).value
    assert int(value.isnan().sum()) == 1


def test_unscored_completions_get_0_and_count():
    needs = NEEDS["unscored_as_zero"]
    outcome = FAULTS["unscored_as_zero"]()(FAULTY["unscored_as_zero"](), make_step(1, **needs))
    assert outcome.value.tolist() == [[-1.0, 0.0], [-1.0, -1.0]] and bool(outcome.replace["scorable"].all())
    value, step = FAULTY["unscored_as_zero"](), make_step(1, scorable=torch.ones(2, 2, dtype=torch.bool))
    assert FAULTS["unscored_as_zero"]()(value, step) == Outcome(value)  # where all are scored it does nothing


def test_dropout_on_turns_it_on():
    model = policy().eval()
    with torch.random.fork_rng():
        outcome = FAULTS["dropout_on"]()(make_batch(), make_step(model=model))
    assert model.training
    assert (outcome.verdict, bool(outcome.reason)) == (CHANGED, True)


# The step ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Says(Intervention):
    """Appends its name to the value and answers with its verdict."""

    stage = Stage.REWARDS
    verdict: int = 0
    reason: str = ""

    def __call__(self, value: Any, step: Step) -> Outcome:
        return Outcome([*value, self.name], Verdict(self.verdict), self.reason)


def says(name: str) -> type[Intervention]:
    return type(name, (_Says,), {"name": name})


FAULT_A, FAULT_B, GUARD_A, GUARD_B, OBSERVER = (
    says(name) for name in ("fault_a", "fault_b", "guard_a", "guard_b", "observer")
)


def arranged(*overrides: str) -> Any:
    return arrange(
        Config().with_(*overrides),
        {"fault_a": FAULT_A, "fault_b": FAULT_B},
        {"guard_a": GUARD_A, "guard_b": GUARD_B},
        [OBSERVER],
    )


def test_faults_act_first_then_observers_then_guards_in_the_configured_order():
    a_first = arranged("guards.guard_a=on", "faults.fault_a=on", "guards.guard_b=on", "faults.fault_b=on")
    found = make_attempt(interventions=a_first).apply(Stage.REWARDS, [])
    assert found == ["fault_a", "fault_b", "observer", "guard_a", "guard_b"]
    b_first = arranged("guards.guard_b=on", "guards.guard_a=on", "faults.fault_b=on", "faults.fault_a=on")
    found = make_attempt(interventions=b_first).apply(Stage.REWARDS, [])
    assert found == ["fault_b", "fault_a", "observer", "guard_b", "guard_a"]


def test_a_stage_without_interventions_hands_the_value_back():
    value = tensor([1.0])
    ctx = make_attempt(interventions=arranged())
    assert ctx.apply(Stage.ADVANTAGES, value) is value
    assert (ctx.verdict, ctx.actions) == (Verdict.KEEP, [])


@pytest.mark.parametrize(("one", "two"), [(3, 2), (2, 3), (4, 0), (0, 2)])
def test_the_worst_verdict_of_a_stage_wins_and_ends_the_step(one, two):
    on = arranged(f"guards.guard_a.verdict={one}", f"guards.guard_b.verdict={two}")
    ctx = make_attempt(interventions=on, update=3)
    with pytest.raises(Refused):
        ctx.apply(Stage.REWARDS, [])
    assert ctx.verdict == max(one, two)
    acted = [(a.name, a.kind, a.stage, a.update, a.verdict) for a in ctx.actions]
    rows = [("guard_a", one), ("guard_b", two)]
    assert acted == [(n, "guard", "rewards", 3, v) for n, v in rows if v]


def test_a_changed_value_does_not_end_the_step_and_the_worst_of_the_step_stays():
    ctx = make_attempt(interventions=arranged("guards.guard_a.verdict=1"))
    assert ctx.apply(Stage.REWARDS, []) == ["observer", "guard_a"]
    assert ctx.verdict == CHANGED
    ctx.apply(Stage.ADVANTAGES, [])
    assert ctx.verdict == CHANGED


def test_metrics_of_the_step_before_cannot_be_written():
    metrics: Any = Training(preset("smoke")).begin(1).last_metrics
    with pytest.raises(TypeError):
        metrics["kl"] = 0.0


def test_what_an_outcome_replaces_is_read_by_the_next_intervention_and_in_later_stages():
    class Replaces(Intervention):
        name = "replaces"

        def __call__(self, value: Any, step: Step) -> Outcome:
            return Outcome([*value, step.grad_norm], replace={"grad_norm": 7.0})

    ctx = make_attempt(interventions={Stage.REWARDS: [("guard", Replaces()), ("guard", Replaces())]})
    assert ctx.apply(Stage.REWARDS, []) == [None, 7.0]
    assert ctx.grad_norm == 7.0
    assert (ctx.verdict, ctx.actions) == (Verdict.KEEP, [])


def test_an_outcome_that_replaces_an_unknown_field_is_an_error():
    class Typo(Intervention):
        def __call__(self, value: Any, step: Step) -> Outcome:
            return Outcome(value, replace={"gradnorm": 7.0})

    with pytest.raises(TypeError, match="gradnorm"):
        make_attempt(interventions={Stage.REWARDS: [("guard", Typo())]}).apply(Stage.REWARDS, [])


@pytest.mark.parametrize("name", sorted(name for name, cls in GUARDS.items() if cls.stage == Stage.GRADIENTS))
def test_a_guard_of_the_gradients_that_nobody_measured_fails_loudly(name):
    on = arrange(Config().with_(f"guards.{name}=on"), FAULTS, GUARDS)  # without observers
    ctx = make_attempt(interventions=on)
    with pytest.raises(RunError, match="grad_norm is None"):
        ctx.apply(Stage.GRADIENTS, policy(torch.float32, NAN, 0.0, 0.0, 0.0))
    assert ctx.actions == []


def test_whoever_only_says_something_is_recorded_too():
    ctx = make_attempt(interventions=arranged("guards.guard_a.reason=look", "guards.guard_b=on"))
    ctx.apply(Stage.REWARDS, [])
    assert [(a.name, a.verdict, a.reason) for a in ctx.actions] == [("guard_a", Verdict.KEEP, "look")]


def test_tensors_are_noted_as_they_leave_also_when_the_step_is_refused():
    on = arrange(Config().with_("guards.clamp_log_ratio=on"), FAULTS, GUARDS)
    ctx = make_attempt(interventions=on, update=2)
    ctx.apply(Stage.LOG_RATIO, tensor([[80.0, 1.0]]), "current")
    (note,), _ = ctx.recorder.flush()
    assert (note.link, note.update, note.magnitude, note.where) == ("log_ratio", 2, 5.0, "current [0, 0]")
    on = arrange(Config().with_("guards.check_probabilities=on"), FAULTS, GUARDS)
    ctx = make_attempt(interventions=on)
    with pytest.raises(Refused):
        ctx.apply(Stage.PROBABILITIES, tensor([[NAN, 1.0]]))
    assert ctx.recorder.flush()[0][0].broken


def test_what_the_trainer_itself_leaves_out_is_recorded():
    ctx = make_attempt(update=1)
    ctx.act("trainer", Stage.REWARDS, SKIP, "none of 4 completions was scored")
    assert ctx.verdict == SKIP
    assert [(a.name, a.kind, a.update, a.verdict) for a in ctx.actions] == [("trainer", "trainer", 1, SKIP)]


def test_memory_is_carried_over_by_kind_and_name():
    old = arranged("guards.guard_a=on", "guards.guard_b=on", "faults.fault_a=on")
    for _, intervention in old[Stage.REWARDS]:
        intervention.memory["from"] = float(len(intervention.name))
    old[Stage.REWARDS][-1][1].memory.clear()
    new = arranged("guards.guard_a.verdict=1", "guards.guard_b=on", "faults.fault_b=on")
    for _, intervention in new[Stage.REWARDS]:
        intervention.memory["new"] = 1.0
    carry_over(old, new)
    found = {intervention.name: intervention.memory for _, intervention in new[Stage.REWARDS]}
    assert found == {"guard_a": {"from": 7.0}, "guard_b": {}, "fault_b": {"new": 1.0}, "observer": {"from": 8.0}}
    old[Stage.REWARDS][0][1].memory["from"] = 0.0
    assert found["guard_a"] == {"from": 7.0}


# What the observers note ---------------------------------------------------------------------------------------------


def test_the_log_ratio_is_measured_after_faults_and_before_guards():
    config = Config().with_("faults.shift_log_ratio.nats=80", "guards.clamp_log_ratio=on")
    ctx = make_attempt(1, arrange(config, FAULTS, GUARDS, observers.OBSERVERS), advantages=torch.ones(1))
    ctx.apply(Stage.LOG_RATIO, tensor([[-0.5, 0.25]]))
    metrics = ctx.recorder.flush()[1]
    assert metrics["log_ratio/max"] == 79.5
    assert metrics["ratio/max"] == pytest.approx(math.exp(79.5))


def test_gradients_are_measured_before_a_guard_touches_them():
    model = policy(torch.float32, 3.0, 0.0, 0.0, 4.0)
    on = arrange(Config().with_("guards.clip_gradients=on"), FAULTS, GUARDS, observers.OBSERVERS)
    ctx = make_attempt(1, on, update=2)
    ctx.apply(Stage.GRADIENTS, model)
    (note, after), metrics = ctx.recorder.flush()
    assert ctx.grad_norm == metrics["grad_norm"] == note.magnitude == 5.0
    assert (note.link, note.update, note.nonfinite, note.numel) == ("gradients", 2, 0, 6)
    assert note.facts == {"largest_representable": torch.finfo(torch.float32).max}
    assert (after.link, after.update, after.nonfinite) == ("clipped_gradients", 2, 0)
    assert after.magnitude == pytest.approx(1.0)
    assert gradients_are(0.6, 0.0, 0.0, 0.8)(model)


def test_broken_gradients_are_counted_before_clipping_spreads_them():
    on = arrange(
        Config().with_("guards.clip_gradients=on", "faults.nan_gradient=on"), FAULTS, GUARDS, observers.OBSERVERS
    )
    ctx = make_attempt(1, on)
    ctx.apply(Stage.GRADIENTS, policy(torch.float32, 3.0, 0.0, 0.0, 4.0))
    (note, after), metrics = ctx.recorder.flush()
    assert math.isnan(metrics["grad_norm"])
    assert (note.nonfinite, after.nonfinite) == (1, 6)


def test_gradients_that_are_not_clipped_are_not_noted_as_clipped():
    on = arrange(Config().with_("guards.clip_gradients.max_norm=5"), FAULTS, GUARDS, observers.OBSERVERS)
    ctx = make_attempt(1, on)
    ctx.apply(Stage.GRADIENTS, policy(torch.float32, 3.0, 0.0, 0.0, 4.0))
    assert [note.link for note in ctx.recorder.flush()[0]] == ["gradients"]


def test_the_largest_number_of_half_precision_gradients_is_noted():
    ctx = make_attempt(1, arrange(Config(), FAULTS, GUARDS, observers.OBSERVERS))
    ctx.apply(Stage.GRADIENTS, policy(torch.float16, 3.0, 0.0, 0.0, 4.0))
    (note,), _ = ctx.recorder.flush()
    assert note.facts == {"largest_representable": 65504.0}


def test_a_frozen_model_is_told_so():
    ctx = make_attempt(1, arrange(Config(), FAULTS, GUARDS, observers.OBSERVERS))
    with pytest.raises(GrpoLabError, match="no parameter has a gradient"):
        ctx.apply(Stage.GRADIENTS, policy())


def test_weights_are_measured_after_the_update():
    ctx = make_attempt(1, arrange(Config(), FAULTS, GUARDS, observers.OBSERVERS))
    ctx.apply(Stage.WEIGHTS, ctx.policy)
    (note,), _ = ctx.recorder.flush()
    assert ctx.weight_norms is not None
    assert ctx.weight_norms.tolist() == pytest.approx([2.0, math.sqrt(2)])
    assert (note.link, note.numel, note.where) == ("weights", 6, "weight")


def exact_kl_of(reference: Batch, current: Batch, prompts: int = 0) -> Any:
    """What MeasureExactKL notes of a step: logits are 12 numbers that depend on a token and on the pass."""
    observer, scale = observers.MeasureExactKL(), torch.linspace(0, 2, 12)
    ctx = make_attempt(
        1, {Stage.LOGITS: [("observer", observer)]}, sampling=COLD, num_tokens=current.completion_mask.sum()
    )
    ctx.apply(Stage.LOGITS, torch.zeros(4, 1, 12), "sampling")
    for note, batch, sign in (("reference", reference, 1), ("current", current, -1)):
        for part in batch.split(prompts):
            ctx.batch = part
            ctx.apply(Stage.LOGITS, sign * scale * part.completions[:, :, None], note)
    return ctx.recorder.flush()[1].get("kl/exact")


def exact_kl_by_hand(batch: Batch) -> float:
    log_p, log_q = (
        (sign * torch.linspace(0, 2, 12) * batch.completions[:, :, None] / COLD.temperature).log_softmax(-1)
        for sign in (-1, 1)
    )
    return float(((log_p.exp() * (log_p - log_q)).sum(-1) * batch.completion_mask).sum() / batch.completion_mask.sum())


@pytest.mark.parametrize("kept", [[0, 1, 2, 3], [2, 0, 3, 1], [1, 2], [3], [0, 0, 2]], ids=str)
@pytest.mark.parametrize("prompts", [0, 1])
def test_the_exact_kl_pairs_completions_by_their_tokens(kept, prompts):
    """Whatever a guard of the batch takes out or puts in another order between the two passes."""
    batch = make_batch()
    current = batch.rows(tensor(kept))
    assert exact_kl_of(batch, current, prompts) == pytest.approx(exact_kl_by_hand(current), rel=1e-5)


@pytest.mark.parametrize("prompts", [0, 1])
def test_the_exact_kl_of_a_batch_that_the_reference_has_not_seen_is_not_noted(prompts):
    batch = make_batch()
    other = batch.completions.clone()
    other[3, 0] = 5
    assert exact_kl_of(batch, replace(batch, completions=other), prompts) is None
    assert exact_kl_of(batch, replace(batch, prompt_ids=batch.prompt_ids + 1), prompts) is None
    assert exact_kl_of(batch, replace(batch, prompt_mask=tensor([[0, 1], [1, 1]])), prompts) is None
    narrow = ("completions", "completion_mask")
    assert exact_kl_of(batch, replace(batch, **{name: getattr(batch, name)[:, :2] for name in narrow}), prompts) is None


# What single guards mean ---------------------------------------------------------------------------------------------


def clipped(*gradients: float) -> torch.nn.Linear:
    model = policy(torch.float32, *gradients)
    on = arrange(Config().with_("guards.clip_gradients.max_norm=0.5"), FAULTS, GUARDS, observers.OBSERVERS)
    make_attempt(1, on).apply(Stage.GRADIENTS, model)
    return model


def test_clipping_spreads_one_nan_over_every_gradient():
    model = clipped(NAN, 1.0, 2.0, 3.0)
    assert gradients_are(NAN, NAN, NAN, NAN)(model)
    assert model.bias.grad is not None
    assert bool(model.bias.grad.isnan().all())


def test_clipping_turns_one_infinity_into_nan_and_all_else_into_0():
    model = clipped(INF, 1.0, 2.0, 3.0)
    assert gradients_are(NAN, 0.0, 0.0, 0.0)(model)


def test_clipping_finite_gradients_whose_norm_overflows_loses_them():
    assert gradients_are(0.0, 0.0, 0.0, 0.0)(clipped(2e19, 2e19, 2e19, 2e19))


def test_clipping_is_that_of_torch():
    model, other = clipped(3.0, -1.0, 2.0, 5.0), policy(torch.float32, 3.0, -1.0, 2.0, 5.0)
    torch.nn.utils.clip_grad_norm_(other.parameters(), 0.5)
    assert model.weight.grad is not None
    assert torch.equal(model.weight.grad, other.weight.grad)  # type: ignore[arg-type]


def test_the_reported_guard_steps_on_nan_and_ours_does_not():
    step = make_step(grad_norm=NAN)
    assert GUARDS["skip_spikes"](nan_passes=True)(step.policy, step) == Outcome(step.policy)  # type: ignore[call-arg]
    assert GUARDS["skip_spikes"]()(step.policy, step) == Outcome(
        step.policy, SKIP, "grad norm nan is not a number; limit 10"
    )


def test_the_reported_check_of_weights_only_says_so():
    guard = GUARDS["check_weights"](then="warn", patience=0)  # type: ignore[call-arg]
    step = make_step(weight_norms=tensor([NAN, 1.0]))
    for _ in range(3):
        outcome = guard(policy(), step)
        assert (outcome.verdict, outcome.reason) == (Verdict.KEEP, "1 of 2 weight tensors hold NaN or inf")


@pytest.mark.parametrize(("move", "verdict"), [(None, Verdict.KEEP), (0.1, Verdict.KEEP), (0.11, BACK)])
def test_a_move_is_judged_only_where_a_snapshot_tells_it(move, verdict):
    guard = GUARDS["check_weights"](max_move=0.1)  # type: ignore[call-arg]
    step = make_step(weight_norms=torch.ones(2), largest_move=lambda: move)
    assert guard(policy(), step).verdict == verdict


def test_the_move_is_not_asked_for_where_it_has_no_limit():
    def fails() -> float:
        raise AssertionError("a look at every weight that nobody needs")

    step = make_step(weight_norms=torch.ones(2), largest_move=fails)
    assert GUARDS["check_weights"]()(policy(), step).verdict == Verdict.KEEP


def test_warm_up_is_a_straight_line_to_the_full_rate():
    guard = GUARDS["warm_up"](steps=4)  # type: ignore[call-arg]
    rates = [guard(COEFFICIENTS, make_step(index)).value.learning_rate / 3e-4 for index in range(6)]
    assert rates == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0, 1.0])


def test_dual_clip_bounds_the_side_that_min_leaves_open():
    outcome = GUARDS["dual_clip"](delta=3.0)(COEFFICIENTS, make_step())  # type: ignore[call-arg]
    assert outcome.value == replace(COEFFICIENTS, delta=3.0)
    assert (outcome.verdict, outcome.reason) == (Verdict.KEEP, "")
    below = tensor([[-9.0, -0.5, 0.0, 0.5, math.log(2.99)]] * 2)
    advantages = tensor([1.0, -1.0])
    healthy = clipped_surrogate(below, advantages, delta=outcome.value.delta)
    assert torch.equal(healthy, clipped_surrogate(below, advantages))  # silent while ratios stay below delta
    log_ratio = tensor([[18.55]], requires_grad=True)
    loss = clipped_surrogate(log_ratio, tensor([-1.0]), delta=outcome.value.delta)
    (gradient,) = torch.autograd.grad(loss.sum(), log_ratio)
    assert (loss.item(), gradient.item()) == (3.0, 0.0)


def test_sanitized_rewards_are_no_longer_scorable():
    on = arrange(Config().with_("guards.sanitize_rewards=on"), FAULTS, GUARDS)
    ctx = make_attempt(interventions=on, scorable=tensor([[True, True, False]]))
    ctx.apply(Stage.REWARDS, tensor([[1.0, NAN, 0.0]]))
    assert ctx.scorable is not None
    assert ctx.scorable.tolist() == [[True, False, False]]


@pytest.mark.parametrize("column", ["sampling_logprobs", "old_logprobs", "ref_logprobs"])
@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_a_broken_completion_leaves_whichever_of_its_numbers_broke(column, value):
    batch = make_batch(**{column: with_element(value, 2, 2)})
    assert finite_rows(batch).tolist() == [True, True, False, True]
    found = GUARDS["drop_nonfinite_samples"]()(batch, make_step()).value
    assert found.completions[:, 0].tolist() == [0, 3, 9]
    assert len(found.advantages) == len(found.entropy) == len(found.ref_logprobs) == 3
    assert torch.equal(found.prompt_ids, batch.prompt_ids)


@pytest.mark.parametrize("name", ["clamp_logits", "clamp_log_ratio", "clamp_kl"])
def test_a_clamp_lets_nan_through_and_passes_no_gradient_outside(name):
    value = tensor([[NAN, 1e6, -1e6, 1.0]], requires_grad=True)
    limit = GUARDS[name]().limit  # type: ignore[attr-defined]
    found = GUARDS[name]()(value.view(1, 1, 4) if name == "clamp_logits" else value, make_step()).value
    assert is_tensor(NAN, limit, -limit, 1.0)(found.detach().flatten())
    (gradient,) = torch.autograd.grad(found.flatten()[1:].sum(), value)
    assert gradient.tolist() == [[0.0, 0.0, 0.0, 1.0]]


def test_a_nan_does_not_take_other_advantages_past_the_clamp():
    found = GUARDS["clamp_advantages"]()(tensor([[NAN, 1000.0]]), make_step()).value
    assert is_tensor([NAN, 10.0])(found)


@pytest.mark.parametrize("row", [[0.0, 0.0], [-0.5, 1.5]])
def test_the_reason_for_refusing_finite_probabilities_is_true(row):
    outcome = GUARDS["check_probabilities"]()(tensor([row, [0.5, 0.5]]), make_step())
    assert "1 of 2 rows" in outcome.reason
    assert "not finite" not in outcome.reason


def verdicts_of(guard: Any, *last: Verdict) -> list[tuple[Verdict, float]]:
    """What rollback answers when these were the verdicts of the steps before, and the factor on the learning rate."""
    found = []
    for verdict in last:
        outcome = guard(COEFFICIENTS, make_step(last_verdict=verdict))
        found.append((outcome.verdict, outcome.value.learning_rate / COEFFICIENTS.learning_rate))
    return found


def test_rollback_halves_the_rate_after_each_and_stops_when_they_go_on():
    guard = GUARDS["rollback"](max_rollbacks=3)  # type: ignore[call-arg]
    assert verdicts_of(guard, *[BACK] * 5) == [
        (CHANGED, 0.5),
        (CHANGED, 0.25),
        (CHANGED, 0.125),
        (STOP, 1.0),
        (STOP, 1.0),
    ]


def test_rollback_turns_refused_steps_in_a_row_into_a_rollback():
    guard = GUARDS["rollback"](patience=3)  # type: ignore[call-arg]
    assert verdicts_of(guard, SKIP, SKIP, Verdict.KEEP, SKIP, SKIP, SKIP, BACK) == [
        *[(Verdict.KEEP, 1.0)] * 5,
        (BACK, 1.0),
        (CHANGED, 0.5),
    ]


def test_a_healthy_step_between_rollbacks_starts_their_count_again_but_keeps_the_rate():
    guard = GUARDS["rollback"](max_rollbacks=2)  # type: ignore[call-arg]
    assert verdicts_of(guard, BACK, Verdict.KEEP, BACK, CHANGED, BACK)[-1] == (CHANGED, 0.125)


def test_refused_steps_between_rollbacks_do_not_start_their_count_again():
    guard = GUARDS["rollback"](max_rollbacks=1, patience=9)  # type: ignore[call-arg]
    assert verdicts_of(guard, BACK, SKIP, BACK)[-1][0] == STOP


def test_the_rate_recovers_after_healthy_steps():
    guard = GUARDS["rollback"](recovery=3)  # type: ignore[call-arg]
    found = verdicts_of(guard, BACK, BACK, *[Verdict.KEEP] * 7)
    assert [factor for _, factor in found] == [0.5, 0.25, 0.25, 0.25, 0.5, 0.5, 0.5, 1.0, 1.0]
    assert found[-1][0] == Verdict.KEEP


@pytest.mark.parametrize(("changed", "limited"), [({"top_k": 0}, 40), ({"top_k": 50}, 40), ({"top_k": 5}, 5)])
def test_safe_sampling_caps_top_k_where_0_means_all(changed, limited):
    assert GUARDS["safe_sampling"]()(SamplingConfig(**changed), make_step()).value.top_k == limited


# Snapshots -----------------------------------------------------------------------------------------------------------


def test_going_back_without_a_snapshot_says_how_to_get_one():
    model = policy()
    snapshots = Snapshots(list(model.parameters()), torch.optim.AdamW(model.parameters()), every=0)
    snapshots.take(0, updates=0)
    with pytest.raises(GrpoLabError, match=r"run\.snapshot_every.*may_roll_back"):
        snapshots.restore()


def test_the_first_snapshot_is_taken_at_once():
    """A guard that may roll back can be switched on in the middle of a run."""
    model = policy()
    snapshots = Snapshots(list(model.parameters()), torch.optim.AdamW(model.parameters()), every=10)
    snapshots.take(13, updates=26)
    torch.nn.init.zeros_(model.weight)
    snapshots.take(14, updates=28)  # not due
    assert snapshots.restore() == 26
    assert model.weight.tolist() == [[1.0, 1.0], [1.0, 1.0]]


def test_a_second_snapshot_is_copied_into_the_memory_of_the_first():
    model = policy(torch.float32, 1.0, 2.0, 3.0, 4.0)
    optimizer = torch.optim.AdamW(model.parameters())
    snapshots = Snapshots(list(model.parameters()), optimizer, every=1)
    snapshots.take(0, updates=0)
    optimizer.step()
    assert snapshots.largest_move(0) == pytest.approx(1e-3 + 1e-5, rel=1e-3)
    assert snapshots.restore() == 0
    assert model.weight.tolist() == [[1.0, 1.0], [1.0, 1.0]]
    assert not any(value.any() for state in optimizer.state.values() for value in state.values())
    snapshots.take(1, updates=0)
    kept = {key: value.data_ptr() for key, value in snapshots._kept.items()}
    assert len(kept) == 2 * 4, "of each parameter the weight, the step and two moments"
    optimizer.step()
    moments = [value.clone() for state in optimizer.state.values() for value in state.values()]
    snapshots.take(2, updates=1)
    assert {key: value.data_ptr() for key, value in snapshots._kept.items()} == kept
    optimizer.step()
    assert snapshots.restore() == 1
    again = [value for state in optimizer.state.values() for value in state.values()]
    assert all(torch.equal(a, b) for a, b in zip(moments, again, strict=True))


# The batch -----------------------------------------------------------------------------------------------------------


def test_micro_batches_hold_whole_groups_and_together_everything():
    batch = make_batch()
    parts = list(batch.split(1))
    assert [part.completions[:, 0].tolist() for part in parts] == [[0, 3], [6, 9]]
    assert [part.group.tolist() for part in parts] == [[0, 0], [0, 0]]
    assert [part.prompt_ids.tolist() for part in parts] == [[[0, 1]], [[2, 3]]]
    assert list(batch.split(0)) == [batch]
    assert list(batch.split(2)) == [batch]


@pytest.mark.parametrize(("at_once", "parts"), [(1, 2), (15, 2), (16, 1), (10**6, 1)])
def test_a_large_batch_is_split_by_its_tokens(monkeypatch, at_once, parts):
    monkeypatch.setattr("grpo_lab.core.batch.AT_ONCE", at_once)
    batch = make_batch()
    assert batch.prompt_ids.numel() + batch.completions.numel() == 16
    assert len(list(batch.split(0))) == parts
    assert list(batch.split(2)) == [batch]


def test_a_group_that_has_left_makes_no_micro_batch():
    batch = make_batch().rows(tensor([2]))
    (part,) = batch.split(1)
    assert (part.completions[:, 0].tolist(), part.group.tolist(), part.prompt_ids.tolist()) == ([6], [0], [[2, 3]])
