"""Guards that set their own limits: by hand, on real runs, and how refusing escalates to a stop."""

import copy
import json
import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import grpo_lab as gl
from grpo_lab.core.hooks import Stage, Verdict
from grpo_lab.events import Ended, Stepped
from grpo_lab.models import loading
from grpo_lab.training.guards import GUARDS
from grpo_lab.training.interventions import Coefficients, Outcome

NAN, INF = math.nan, math.inf
COEFFICIENTS = Coefficients(3e-4, 0.02, 0.2, None, 1e-8)
KEEP, CHANGED, SKIP, BACK = Verdict.KEEP, Verdict.CHANGED, Verdict.SKIP_STEP, Verdict.ROLL_BACK


def guard(name: str, **settings: Any) -> Any:
    return GUARDS[name](**settings)


def after(one: Any, verdict: Verdict = KEEP, value: Coefficients = COEFFICIENTS, **metrics: float) -> Outcome:
    """What a guard of the coefficients answers after a step with these metrics."""
    return one(value, SimpleNamespace(last_metrics=metrics, last_verdict=verdict))


def share(outcome: Outcome) -> float:
    return outcome.value.learning_rate / COEFFICIENTS.learning_rate


def judged(one: Any, *norms: float, first: int = 0, advantages: Any = None) -> list[Verdict]:
    """What a guard of the gradients answers to these norms, one a step."""
    steps = [SimpleNamespace(index=first + i, grad_norm=norm, advantages=advantages) for i, norm in enumerate(norms)]
    return [one(None, step).verdict for step in steps]


# --- adaptive_learning_rate ----------------------------------------------------------------------------------------


def test_the_rate_backs_off_to_its_floor_and_comes_back_to_the_configured_one_and_no_further():
    one = guard("adaptive_learning_rate", factor=0.5, recovery=2, floor=0.2)
    shares = [share(after(one, kl=kl)) for kl in (0.1, 3.0, 3.0, 3.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0)]
    root = 2**0.5
    assert shares == pytest.approx([1, 0.5, 0.25, 0.2, 0.2 * root, 0.4, 0.4 * root, 0.8, 1, 1])
    assert after(one, kl=1.0) == Outcome(COEFFICIENTS)


def test_a_spike_is_judged_against_the_median_of_committed_norms():
    one = guard("adaptive_learning_rate", spike=5, warm_up=3)
    for norm in (1e4, 2.0, 2.0):  # too few to judge by; one of them a spike, which the median forgets
        assert after(one, grad_norm=norm) == Outcome(COEFFICIENTS)
    for norm in (400.0, 500.0):
        after(one, SKIP, grad_norm=norm)
    for norm in (600.0, 700.0):
        after(one, grad_norm=norm, frac_reward_zero_std=1.0)
    assert "grad norm 10.1 > 10" in after(one, grad_norm=10.1).reason


@pytest.mark.parametrize("metrics", [{"kl": NAN}, {"kl": INF}, {"grad_norm": NAN}, {"grad_norm": INF}])
def test_what_is_not_finite_lowers_the_rate_and_is_forgotten(metrics):
    one = guard("adaptive_learning_rate", warm_up=1)
    assert share(after(one, **metrics)) == 0.5
    assert all(math.isfinite(number) for number in one.memory.values())
    assert share(after(one, kl=0.1, grad_norm=1.0)) == pytest.approx(0.5 * 2 ** (1 / 20))


# --- adaptive_beta -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kl", "factor"), [(0.11, 1.01), (0.09, 0.99), (0.1, 1.0), (0.5, 1.02), (1e30, 1.02), (0.0, 0.98), (-3.0, 0.98)]
)
def test_beta_follows_the_formula(kl, factor):
    one = guard("adaptive_beta", target=0.1, gain=0.1)
    assert after(one, kl=kl).value.beta == pytest.approx(0.02 * factor)
    assert after(one, kl=kl).value.beta == pytest.approx(0.02 * factor**2)


def test_one_nan_ends_the_naive_controller_and_not_this_one():
    kls = [0.3, NAN, 0.3, INF, 0.3]
    naive, betas = 0.02, []
    for kl in kls:
        naive *= 1 + 0.1 * float(np.clip(kl / 0.1 - 1, -0.2, 0.2))
        betas.append(naive)
    assert [math.isnan(beta) for beta in betas] == [False, True, True, True, True]
    one = guard("adaptive_beta")
    assert [after(one, kl=kl).value.beta / 0.02 for kl in kls] == pytest.approx([1.02, 1.02, 1.02**2, 1.02**2, 1.02**3])


def test_beta_stays_between_its_limits_and_comes_back_from_them_at_once():
    one = guard("adaptive_beta", gain=1.0, lowest=0.01, highest=0.03)
    high = [after(one, kl=9.0).value.beta for _ in range(9)]
    assert max(high) == high[-1] == pytest.approx(0.03)
    low = [after(one, kl=0.0).value.beta for _ in range(9)]
    assert low[0] == pytest.approx(0.024) and min(low) == low[-1] == pytest.approx(0.01)


# --- skip_outliers -------------------------------------------------------------------------------------------------


def test_the_spread_is_the_scaled_median_deviation_of_logs():
    one = guard("skip_outliers", limit=4, warm_up=5, least_spread=0.01)
    edge = 4 * 1.4826 * 1.0  # logs -2, -1, 0, 1, 2: median 0, median deviation 1
    norms = [math.exp(log) for log in (-2, -1, 0, 1, 2)]
    assert judged(one, *norms, math.exp(edge + 0.01)) == [KEEP] * 5 + [SKIP]
    assert judged(one, math.exp(edge - 0.01), first=9) == [KEEP]


def test_a_spike_while_there_is_nothing_to_judge_by_does_not_hide_the_next():
    logs = np.log([1.0] * 9 + [1e6])
    assert (math.log(1e6) - logs.mean()) / logs.std() < 4  # what a plain z-score would have accepted
    assert judged(guard("skip_outliers"), *[1.0] * 9, 1e6, 1e6) == [KEEP] * 10 + [SKIP]


def test_a_trend_is_followed_and_a_jump_is_refused_until_it_asks_for_a_rollback():
    one = guard("skip_outliers", patience=3)
    growing = [1.05**i for i in range(200)]
    assert set(judged(one, *growing, *reversed(growing))) == {KEEP}
    assert judged(one, *[1000.0] * 50, first=400) == [SKIP] * 3 + [BACK] * 47


def test_what_is_refused_or_teaches_nothing_leaves_no_trace_in_the_window():
    one = guard("skip_outliers")
    judged(one, *[1.0] * 20)
    before = dict(one.memory)
    assert judged(one, 1e9, NAN, 1e9, first=20) == [SKIP] * 3
    judged(one, *[1e-6] * 60, first=23, advantages=torch.zeros(4))
    judged(one, *[0.0] * 60, first=83)
    assert {name: value for name, value in one.memory.items() if name in before} == before


def test_the_window_forgets_and_survives_json_and_a_change_of_its_size():
    one = guard("skip_outliers", window=10)
    judged(one, *[1.0] * 25, *[3.0] * 10)
    for again in (guard("skip_outliers", window=10), guard("skip_outliers", window=50)):
        again.load_state_dict(json.loads(json.dumps(one.state_dict())))
        assert judged(again, 3 * math.exp(1.9), 3 * math.exp(2.1)) == [KEEP, SKIP]
    shorter = guard("skip_outliers", window=5, warm_up=5)
    shorter.load_state_dict(one.state_dict())
    assert judged(shorter, 3 * math.exp(1.9), 3 * math.exp(2.1)) == [KEEP, SKIP]


# --- real runs -----------------------------------------------------------------------------------------------------

SMALL = gl.preset("smoke").with_("run.threads=1")


def weights(policy: Any) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in policy.parameters()]


def trained(config: Any, base: Any) -> tuple[list[Stepped], Ended, Any]:
    """Every step, the end, and the weights: at first and as each step left them."""
    policy, tokenizer = base
    steps, left, ended = [], [weights(policy)], None
    for event in gl.train(config, (policy, tokenizer)):
        if isinstance(event, Stepped):
            steps.append(event)
            left.append(weights(policy))
        elif isinstance(event, Ended):
            ended = event
    assert ended is not None
    return steps, ended, left


@pytest.fixture
def base():
    return loading.load("tiny")


def scaled_gradients(by: float, steps: Any) -> Any:
    def act(policy, step):
        if step.index not in steps:
            return None
        for parameter in policy.parameters():
            parameter.grad.mul_(by)
        return Outcome(policy, CHANGED, f"gradients x {by:g}")

    return act


def test_skip_outliers_skips_exactly_the_spike(fault, base):
    switch = fault(Stage.GRADIENTS, scaled_gradients(100, {13}))
    config = SMALL.with_(switch, "guards.skip_outliers=on", "run.num_steps=18", "data.num_generations=8")
    steps, _, left = trained(config, base)
    assert [step.step for step in steps if step.verdict.name == "SKIP_STEP"] == [13]
    assert all(torch.equal(old, new) for old, new in zip(left[13], left[14], strict=True))
    assert sum(step.updates for step in steps) == 17


@pytest.mark.slow
def test_adaptive_beta_brings_down_a_kl_that_is_too_high(base):
    """It needs thirty steps for it and a beta twenty times the one that was set: it steers drift, it stops no spike."""
    config = SMALL.with_("loss.beta=0.05", "run.num_steps=40", "data.num_prompts=8", "data.num_generations=8")
    plain, _, _ = trained(config, (copy.deepcopy(base[0]), base[1]))
    guarded, _, _ = trained(config.with_("guards.adaptive_beta.gain=1", "guards.adaptive_beta.target=0.05"), base)
    betas = [step.metrics["beta"] for step in guarded]
    rises = [step.metrics["kl"] > 0.05 for step in guarded]
    for old, new, rise in zip(betas, betas[1:], rises, strict=False):
        assert (new > old or new == 1.0) if rise else new < old
    last_kl = [sum(step.metrics["kl"] for step in steps[-5:]) / 5 for steps in (plain, guarded)]
    assert betas[0] == 0.05 and last_kl[1] < 0.6 * last_kl[0]


# --- refusing escalates: skip, roll back, stop ----------------------------------------------------------------------

FIRST = 3
"""The step from which a fault strikes every time."""


def broken_gradients(policy, step):
    return scaled_gradients(NAN, range(FIRST, 999))(policy, step)


def huge_gradients(policy, step):
    return scaled_gradients(1e6, range(FIRST, 999))(policy, step)


def broken_weights(policy, step):
    if step.index >= FIRST:
        with torch.no_grad():
            next(policy.parameters()).view(-1)[0] = NAN
    return Outcome(policy, CHANGED, "poisoned")


def broken_probabilities(probabilities, step):
    return Outcome(probabilities * NAN if step.index >= FIRST else probabilities)


def broken_batch(batch, step):
    return Outcome(replace(batch, old_logprobs=batch.old_logprobs * NAN) if step.index >= FIRST else batch)


PERSISTENT = [  # where, what, who refuses it
    (Stage.GRADIENTS, broken_gradients, "skip_nonfinite"),
    (Stage.GRADIENTS, huge_gradients, "skip_outliers"),
    (Stage.BATCH, broken_batch, "drop_nonfinite_samples"),
    (Stage.PROBABILITIES, broken_probabilities, "check_probabilities"),
    (Stage.WEIGHTS, broken_weights, "check_weights"),
]


@pytest.mark.parametrize(
    ("stage", "act", "name"), PERSISTENT, ids=[f"{row[2]}-{row[1].__name__}" for row in PERSISTENT]
)
def test_whoever_refuses_a_fault_that_stays_ends_in_a_stop_with_the_last_healthy_weights(fault, base, stage, act, name):
    switches = ["guards.rollback.patience=3", "guards.rollback.max_rollbacks=2", "guards.adaptive_learning_rate=on"]
    switches += ["guards.adaptive_beta=on", f"guards.{name}=on", fault(stage, act), "run.num_steps=40"]
    switches += ["guards.skip_outliers.warm_up=2"] if name == "skip_outliers" else []
    steps, ended, left = trained(SMALL.with_(*switches), base)
    assert ended.status == "stopped"
    verdicts = [step.verdict.name for step in steps]
    skips = 0 if "ROLL_BACK" in verdicts[FIRST : FIRST + 1] else 3
    assert verdicts[FIRST:] == ["SKIP_STEP"] * skips + [*["ROLL_BACK", *["SKIP_STEP"] * skips] * 2, "ROLL_BACK", "STOP"]
    assert [step.updates for step in steps] == [1] * FIRST + [0] * (len(steps) - FIRST)
    for now in left[FIRST:]:
        assert all(torch.equal(old, new) for old, new in zip(left[FIRST], now, strict=True))
    assert all(bool(weight.isfinite().all()) for weight in left[-1])
