"""The rules of the seam, held against every registered guard and fault, and what each of them does.

A registered guard or fault without a row in HARM, HEALTHY or FAULTY fails here: adding one adds its tests.
"""

import dataclasses
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
from grpo_lab.config.schema import Config
from grpo_lab.config.sections import SamplingConfig
from grpo_lab.core.batch import Batch
from grpo_lab.core.hooks import Refused, Stage, Verdict
from grpo_lab.core.loss import clipped_surrogate
from grpo_lab.errors import GrpoLabError
from grpo_lab.models import loading
from grpo_lab.training import observers
from grpo_lab.training.faults import FAULTS
from grpo_lab.training.guards import GUARDS, finite_rows
from grpo_lab.training.interventions import Coefficients, Intervention, Outcome, Step, known
from grpo_lab.training.passes import plain_pass
from grpo_lab.training.registry import arrange, carry_over
from grpo_lab.training.snapshots import Snapshots
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
    ],
    "adaptive_beta": [
        Harm(
            COEFFICIENTS,
            "beta 0.0204 = 0.02 x 1.02: KL 0.2, target 0.1",
            step={"last_metrics": {"kl": 0.2}},
            mended=lambda value: value.beta == pytest.approx(0.0204),
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
        Harm(tensor([[0.0, 0.0], [1.0, 0.0]]), "1 of 2 rows of probabilities sum to 0 or less", BACK, then=STOP),
        Harm(tensor([[-0.5, 1.5]]), "1 of 1 rows of probabilities hold a number below 0", BACK, then=STOP),
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
        Harm(tensor([[NAN, 1e3]]), "advantages nan is not a number; limit 10", mended=is_tensor([NAN, 10.0])),
    ],
    "clamp_logits": [Harm(tensor([[[1.0, -101.0]]]), "logits 101 > 100", mended=is_tensor([[1.0, -100.0]]))],
    "drop_nonfinite_samples": [
        Harm(
            make_batch(old_logprobs=with_element(NAN, 1, 1)),
            "1 of 4 completions were not finite",
            mended=lambda value: value.completions[:, 0].tolist() == [0, 6, 9] and value.group.tolist() == [0, 1, 1],
        ),
        Harm(make_batch(advantages=torch.full((4,), NAN)), "4 of 4 completions were not finite", SKIP),
    ],
    "clamp_log_ratio": [
        Harm(tensor([[1.0, -89.0]]), "log-ratio 89 > 5", mended=is_tensor([1.0, -5.0])),
    ],
    "clamp_kl": [Harm(tensor([[11.0, 1.0]]), "kl-delta 11 > 10", mended=is_tensor([10.0, 1.0]))],
    "skip_nonfinite": [
        Harm(policy(), f"grad norm {norm} is not finite", SKIP, step={"grad_norm": norm}, then=BACK)
        for norm in (NAN, INF)
    ],
    "skip_spikes": [
        Harm(policy(), "grad norm 812.4 > 10", SKIP, step={"grad_norm": 812.4}, then=BACK),
        Harm(policy(), "grad norm nan is not a number; limit 10", SKIP, step={"grad_norm": NAN}, then=BACK),
        Harm(policy(), "grad norm inf > 10", SKIP, {"nan_passes": True, "patience": 2}, {"grad_norm": INF}, then=BACK),
    ],
    "skip_outliers": [
        Harm(policy(), f"grad norm {norm} is not finite", SKIP, step={"grad_norm": norm}, then=BACK)
        for norm in (NAN,)  # one that is finite needs others to stand out from: see test_adaptive_guards.py
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
    "router_noise": SamplingConfig,
    "filter_logits": lambda: torch.arange(24.0).view(1, 1, 24),
    "corrupt_sample": make_batch,
    "stale_batch": make_batch,
    "nan_reward": lambda: torch.rand(4, 4, generator=torch.Generator().manual_seed(0)),
    "unscored_as_zero": lambda: tensor([[-1.0, 9.0], [-1.0, -1.0]]),
    "padded_positions": lambda: torch.zeros(4, 3, 258),
    "large_activations": lambda: torch.zeros(4, 3, 258),
}
COLD = SamplingConfig(temperature=0.5)
NEEDS: dict[str, dict[str, Any]] = {
    "ignore_temperature": {"sampling": COLD},
    "filter_logits": {"note": "current"},
    "unscored_as_zero": {"scorable": tensor([[True, False], [True, True]])},
}
"""What a step must be like for a fault to act."""
PASSES_ANEW = ["padded_positions", "large_activations"]
"""Faults that compute the logits of a pass once more."""
ONE_PLACE = ["corrupt_sample", "nan_gradient", "nan_reward", "shift_kl_delta", "shift_log_ratio"]
"""Faults that change one element in one step."""


# The rules -----------------------------------------------------------------------------------------------------------


def test_every_guard_and_every_fault_has_its_rows_here():
    assert set(HARM) == set(HEALTHY) == set(GUARDS)
    assert set(FAULTY) == set(FAULTS)


@ALL
def test_an_intervention_says_what_it_is_called_and_where_it_acts(kind, name, cls):
    assert cls.name == name and isinstance(cls.stage, Stage) and issubclass(cls, Intervention)
    names = [each for _, each, _ in REGISTERED] + [observer.name for observer in observers.OBSERVERS]
    assert names.count(name) == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        cls().name = "other"  # type: ignore[misc]


@ALL
def test_the_docstring_says_what_it_stops_costs_and_hides(kind, name, cls):
    assert cls.__doc__
    if kind == "guard":
        sections = [cls.__doc__.find(word) for word in ("Stops:", "Costs:", "Hides:")]
        assert -1 not in sections and sections == sorted(sections)


@ALL
def test_memory_survives_being_saved_and_belongs_to_one_instance(kind, name, cls):
    one, other = cls(), cls()
    one.memory["x"] = 3.0
    other.load_state_dict(one.state_dict())
    other.memory["y"] = 5.0
    assert (one.memory, other.memory) == ({"x": 3.0}, {"x": 3.0, "y": 5.0})
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


NAMES = {"KL", "NaN", "adam", "beta", "dropout", "eps", "float", "inf", "logits", "nan", "token", "top"}
"""Words that stay in a Chinese reason."""


def assert_chinese(monkeypatch: pytest.MonkeyPatch, reason: str) -> None:
    """A reason is translated, with its numbers."""
    monkeypatch.setenv(messages.VARIABLE, "zh")
    said = messages.spoken(reason)
    numbers = [sorted(re.findall(r"\d[\d.e-]*", words)) for words in (said, reason)]
    assert numbers[0] == numbers[1] and set(re.findall("[A-Za-z]{2,}", said)) <= NAMES, said


@pytest.mark.parametrize(("name", "harm"), HARMS)
def test_a_guard_that_acts_gives_its_reason_with_the_number_and_the_limit(name, harm, monkeypatch):
    guard = GUARDS[name](**harm.settings)
    outcome = guard(_fresh(harm.value), make_step(**harm.step))
    assert outcome.verdict == harm.verdict and harm.reason in outcome.reason
    assert re.search(r"\d|nan|inf", outcome.reason)
    assert_chinese(monkeypatch, outcome.reason)
    if harm.mended is not None:
        assert harm.mended(outcome.value), outcome.value
    else:
        assert outcome.verdict >= Verdict.SKIP_STEP, "say in the table what the value should become"


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
    """A step that is refused several times, as by micro-batches, counts once for patience."""
    guard = GUARDS[name](**harm.settings)
    verdicts = []
    for index in range(100):
        step = {"index": index, **harm.step}
        (verdict,) = {guard(_fresh(harm.value), make_step(**step)).verdict for _ in range(3)}
        verdicts.append(verdict)
    assert min(verdicts) == harm.verdict >= Verdict.SKIP_STEP
    if harm.then is not None:
        patience = guard.patience  # type: ignore[attr-defined]
        assert verdicts == [harm.verdict] * patience + [harm.then] * (100 - patience)


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


# Faults --------------------------------------------------------------------------------------------------------------


def state_of_chance() -> tuple[Any, ...]:
    return torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]


def test_dropout_is_on_and_drawn_by_seed_and_step():
    def drawn(index: int, seed: int = 0) -> list[float]:
        model = policy().eval()
        step = make_step(index, model, config=Config().with_(f"run.seed={seed}"))
        outcome = FAULTS["dropout_on"]()(make_batch(), step)
        assert model.training and outcome.verdict == CHANGED and outcome.reason
        return torch.rand(4).tolist()

    with torch.random.fork_rng():
        first = drawn(1)
        torch.rand(3)
        assert drawn(1) == first
        assert first not in (drawn(2), drawn(1, seed=1))


def passing(index: int = 1) -> Step:
    """A step of the tiny model in its differentiable pass; the first of its prompts has a column of padding."""
    batch = make_batch(prompt_mask=tensor([[0, 1], [1, 1]]))
    return make_step(index, loading.load("tiny", "fp32")[0].eval(), batch=batch, note="current")


@pytest.mark.parametrize("name", sorted(set(FAULTS) - {"dropout_on"}))
def test_a_fault_is_seen_and_leaves_the_chance_of_the_run_alone(name, monkeypatch):
    step = passing() if name in PASSES_ANEW else make_step(index=1, **NEEDS.get(name, {}))
    value, fault = FAULTY[name](), FAULTS[name]()
    if name == "stale_batch":
        fault(value, step)  # the first batch has none before it
    before = state_of_chance()
    outcome = fault(value, step)
    assert state_of_chance() == before
    assert outcome.verdict == CHANGED
    assert_chinese(monkeypatch, outcome.reason)


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


def test_shift_log_ratio_acts_where_the_advantage_is_positive():
    found = [FAULTS["shift_log_ratio"](at_step=index) for index in range(8)]  # type: ignore[call-arg]
    liked = torch.tensor([-1.0, 1.0, 0.0, 1.0])
    shifted = [fault(torch.zeros(4, 2), make_step(i, advantages=liked)).value for i, fault in enumerate(found)]
    assert {int(value[:, 0].argmax()) for value in shifted} == {1, 3}
    nobody = make_step(1, advantages=-liked.abs())
    assert FAULTS["shift_log_ratio"]()(torch.zeros(4, 2), nobody).verdict == Verdict.KEEP


@pytest.mark.parametrize(("name", "column"), [("nan_gradient", None), ("nan_reward", None), ("shift_kl_delta", 0)])
def test_one_element_is_harmed(name, column):
    before, after = FAULTY[name](), FAULTS[name]()(FAULTY[name](), make_step(1)).value
    if name == "nan_gradient":
        before, after = (torch.cat([p.grad.flatten() for p in each.parameters()]) for each in (before, after))
    (place,) = (before != after).nonzero()
    assert column is None or place[1] == column


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


def test_padded_positions_are_those_of_a_call_without_position_ids():
    step, fault = passing(), FAULTS["padded_positions"]
    batch, value = known(step.batch, "batch"), FAULTY["padded_positions"]()
    ids = torch.cat([batch.prompt_ids[batch.group], batch.completions], dim=1)
    mask = torch.cat([batch.prompt_mask[batch.group], torch.ones(4, 3, dtype=torch.long)], dim=1)
    bare = step.policy(input_ids=ids, attention_mask=mask, use_cache=False).logits[:, 1:-1]
    right, _ = plain_pass(step.policy, batch)
    wrong, farther = fault()(value, step).value, fault(more=3)(value, step).value  # type: ignore[call-arg]
    assert torch.allclose(wrong, bare, atol=1e-4) and torch.equal(wrong[2:], right[2:]), (
        "nothing pads the second prompt"
    )
    assert (wrong - right)[:2].abs().amin(dim=0).max() > 0.1 and (farther - right)[2:].abs().max() > 0.1
    assert torch.equal(plain_pass(step.policy, batch)[0], right), "the policy is as it was"
    assert fault()(value, make_step(1, note="sampling")).value is value


def test_large_activations_overflow_in_fp16_alone():
    step, fault = passing(), FAULTS["large_activations"]()
    batch = known(step.batch, "batch")
    right, _ = plain_pass(step.policy, batch)
    assert torch.allclose(fault(right, step).value, right, atol=1e-4)
    for dtype, finite in ((torch.bfloat16, True), (torch.float16, False)):
        with torch.autocast("cpu", dtype=dtype):
            usual, large = plain_pass(step.policy, batch)[0], fault(right, step).value
        assert usual.isfinite().all() and bool(large.isfinite().all()) is finite
        assert not finite or torch.allclose(large.float(), right, atol=0.3)
    assert torch.equal(plain_pass(step.policy, batch)[0], right), "the policy is as it was"
    assert fault(right, make_step(1, note="sampling")).value is right


def test_a_stale_batch_is_as_old_as_asked():
    fault = FAULTS["stale_batch"](lag=3)  # type: ignore[call-arg]
    batches = [make_batch(group=torch.full((4,), i)) for i in range(8)]
    seen = [int(fault(batch, make_step(i)).value.group[0]) for i, batch in enumerate(batches)]
    assert seen == [0, 0, 0, 0, 1, 2, 3, 4]


def test_unscored_completions_get_0_and_count():
    needs = NEEDS["unscored_as_zero"]
    outcome = FAULTS["unscored_as_zero"]()(FAULTY["unscored_as_zero"](), make_step(1, **needs))
    assert outcome.value.tolist() == [[-1.0, 0.0], [-1.0, -1.0]] and bool(outcome.replace["scorable"].all())
    value, step = FAULTY["unscored_as_zero"](), make_step(1, scorable=torch.ones(2, 2, dtype=torch.bool))
    assert FAULTS["unscored_as_zero"]()(value, step) == Outcome(value)  # where all are scored it does nothing


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


def test_what_an_outcome_replaces_is_read_by_the_next_intervention_and_in_later_stages():
    class Replaces(Intervention):
        name = "replaces"

        def __call__(self, value: Any, step: Step) -> Outcome:
            return Outcome([*value, step.grad_norm], replace={"grad_norm": 7.0})

    ctx = make_attempt(interventions={Stage.REWARDS: [("guard", Replaces()), ("guard", Replaces())]})
    assert ctx.apply(Stage.REWARDS, []) == [None, 7.0]
    assert ctx.grad_norm == 7.0
    assert (ctx.verdict, ctx.actions) == (Verdict.KEEP, [])


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


@pytest.mark.parametrize("kept", [[2, 0, 3, 1], [1, 2]], ids=str)
@pytest.mark.parametrize("prompts", [0, 1])
def test_the_exact_kl_pairs_completions_by_their_tokens(kept, prompts):
    """Whatever a guard of the batch takes out or puts in another order between the two passes."""
    batch = make_batch()
    current = batch.rows(tensor(kept))
    assert exact_kl_of(batch, current, prompts) == pytest.approx(exact_kl_by_hand(current), rel=1e-5)


# What single guards mean ---------------------------------------------------------------------------------------------


def clipped(*gradients: float) -> torch.nn.Linear:
    model = policy(torch.float32, *gradients)
    on = arrange(Config().with_("guards.clip_gradients.max_norm=0.5"), FAULTS, GUARDS, observers.OBSERVERS)
    make_attempt(1, on).apply(Stage.GRADIENTS, model)
    return model


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((NAN, 1.0, 2.0, 3.0), (NAN, NAN, NAN, NAN)),
        ((INF, 1.0, 2.0, 3.0), (NAN, 0.0, 0.0, 0.0)),
        ((2e19, 2e19, 2e19, 2e19), (0.0, 0.0, 0.0, 0.0)),
    ],
    ids=["one NaN spreads", "one infinity loses the rest", "a norm that overflows loses all"],
)
def test_clipping_does_not_stop_what_is_broken(before, after):
    assert gradients_are(*after)(clipped(*before))


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


KEEP = Verdict.KEEP
ROLLBACKS = {
    "it halves the rate after each and stops when they go on": (
        {"max_rollbacks": 3},
        [BACK] * 5,
        [(CHANGED, 0.5), (CHANGED, 0.25), (CHANGED, 0.125), (STOP, 1.0), (STOP, 1.0)],
    ),
    "refused steps in a row become a rollback": (
        {"patience": 3},
        [SKIP, SKIP, KEEP, SKIP, SKIP, SKIP, BACK],
        [*[(KEEP, 1.0)] * 5, (BACK, 1.0), (CHANGED, 0.5)],
    ),
    "a healthy step starts the count again and keeps the rate": (
        {"max_rollbacks": 2},
        [BACK, KEEP, BACK, CHANGED, BACK],
        [(CHANGED, 0.5), (CHANGED, 0.5), (CHANGED, 0.25), (CHANGED, 0.25), (CHANGED, 0.125)],
    ),
    "a refused step does not start the count again": (
        {"max_rollbacks": 1, "patience": 9},
        [BACK, SKIP, BACK],
        [(CHANGED, 0.5), (CHANGED, 0.5), (STOP, 1.0)],
    ),
    "the rate recovers after healthy steps": (
        {"recovery": 3},
        [BACK, BACK, *[KEEP] * 7],
        [(CHANGED, 0.5), *[(CHANGED, 0.25)] * 3, *[(CHANGED, 0.5)] * 3, *[(KEEP, 1.0)] * 2],
    ),
}
"""Settings, the verdicts of the steps before, and the guard's answers: its verdict and the factor on the rate."""


@pytest.mark.parametrize("case", ROLLBACKS)
def test_rollback(case):
    settings, before, expected = ROLLBACKS[case]
    guard, found = GUARDS["rollback"](**settings), []
    for verdict in before:
        outcome = guard(COEFFICIENTS, make_step(last_verdict=verdict))
        found.append((outcome.verdict, outcome.value.learning_rate / COEFFICIENTS.learning_rate))
    assert found == expected


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


# The batch -----------------------------------------------------------------------------------------------------------


def test_micro_batches_hold_whole_groups_and_together_everything():
    batch = make_batch()
    parts = list(batch.split(1))
    assert [part.completions[:, 0].tolist() for part in parts] == [[0, 3], [6, 9]]
    assert [part.group.tolist() for part in parts] == [[0, 0], [0, 0]]
    assert [part.prompt_ids.tolist() for part in parts] == [[[0, 1]], [[2, 3]]]
    assert list(batch.split(0)) == [batch]
    assert list(batch.split(2)) == [batch]


@pytest.mark.parametrize(("at_once", "parts"), [(15, 2), (16, 1)])
def test_a_large_batch_is_split_by_its_tokens(monkeypatch, at_once, parts):
    monkeypatch.setattr("grpo_lab.core.batch.AT_ONCE", at_once)
    batch = make_batch()
    assert batch.prompt_ids.numel() + batch.completions.numel() == 16
    assert len(list(batch.split(0))) == parts
    assert list(batch.split(2)) == [batch]
