"""The checks of lab 8 accept what is right, on any seed, and tell every bug of the broken trainer apart."""

import pytest
import torch

from grpo_lab.grading import checking, mysteries, trials
from grpo_lab.grading.checks import cases_08_mystery_runs as cases
from grpo_lab.grading.checks import exercise, lab_page
from grpo_lab.grading.checks.lab_08_mystery_runs import HARMS, NAMES, denominator
from grpo_lab.scenarios import preset

SEEDS = range(5)
KEY = mysteries.key()


def findings(name, seed=0, **answer):
    return checking.check(exercise("08_mystery_runs", name), answer, seed)


def right_on_every_seed(name, **answer):
    return all(checking.all_right(findings(name, seed, **answer)) for seed in SEEDS)


def wrong_on_every_seed(name, **answer):
    found = [findings(name, seed, **answer) for seed in SEEDS]
    return all(not checking.all_right(one) and all(f.why for f in one if not f.right) for one in found)


def test_any_prediction_will_do_that_has_the_form():
    assert checking.all_right(findings("by_hand", answer=dict.fromkeys(range(1, 9), "healthy")))


@pytest.mark.parametrize(
    "answer",
    ["healthy", dict.fromkeys(range(1, 8), "healthy"), dict.fromkeys(range(1, 9), "sick"), ["healthy"] * 8, {1: {}}],
    ids=["one", "seven", "no name", "a list", "a table"],
)
@pytest.mark.parametrize("name", ["by_hand", "verdicts"])
def test_a_list_without_the_form(name, answer):
    (found,) = findings(name, answer=answer)
    assert not found.right and found.why


def test_the_key_is_right():
    assert checking.all_right(findings("verdicts", answer=dict(KEY)))


@pytest.mark.parametrize("number", KEY)
def test_every_other_name_is_wrong_and_the_right_one_is_not_said(number):
    for name in set(NAMES) - {KEY[number]}:
        found = findings("verdicts", answer={**KEY, number: name})
        assert [one.what for one in found if not one.right] == [f"mystery-{number}"]
        said = next(f"{one.expected} {one.why}" for one in found if not one.right)
        assert KEY[number] not in said and said.endswith(("?", ".", "!"))


def objective(logprobs, old_logprobs, ref_logprobs, advantages, mask, **bugs):
    """The right objective, or one with a bug by name."""
    advantages, inside = advantages[:, None], mask != 0
    log_ratio = logprobs - (ref_logprobs if "reference" in bugs else old_logprobs)
    delta = ref_logprobs - logprobs
    if "mask_late" not in bugs:
        log_ratio, delta = log_ratio.masked_fill(~inside, 0.0), delta.masked_fill(~inside, 0.0)
    ratio = log_ratio.exp().clamp(max=148.0) if "clamp_late" in bugs else log_ratio.clamp(-5, 5).exp()
    delta = delta if "delta_unbounded" in bugs else delta.clamp(-10, 10)
    surrogate = -torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
    kl = delta.clamp(0, 10) if "hinge" in bugs else torch.expm1(delta) - delta
    per_token = (surrogate + 0.05 * kl) * mask
    if "plus" in bugs:
        per_token = (surrogate - 0.05 * kl) * mask
    return per_token.mean() if "mean_over_padding" in bugs else per_token.sum() / mask.sum()


def test_the_objective():
    assert right_on_every_seed("objective", objective=objective)


@pytest.mark.parametrize(
    "bug", ["reference", "clamp_late", "mask_late", "delta_unbounded", "hinge", "plus", "mean_over_padding"]
)
def test_bugs_of_the_objective(bug):
    assert wrong_on_every_seed("objective", objective=lambda **inputs: objective(**inputs, **{bug: True}))


def set_gradients(copy=True, add=True):
    def set_them(parameters, gradients):
        for p, g in zip(parameters, gradients, strict=True):
            if p.grad is None:
                p.grad = g.clone() if copy else g
            elif add:
                p.grad.add_(g)
            else:
                p.grad.copy_(g)

    return set_them


def test_accumulation():
    assert right_on_every_seed("gradients", set_gradients=set_gradients())


@pytest.mark.parametrize(
    "wrong", [set_gradients(add=False), set_gradients(copy=False)], ids=["copy_ for add_", "no clone"]
)
def test_bugs_of_the_accumulation(wrong):
    assert wrong_on_every_seed("gradients", set_gradients=wrong)


def update(parameters, optimizer, losses, max_norm=1.0, **bugs):
    """The right update, or one with a bug by name."""
    optimizer.zero_grad()
    for loss in losses:
        if "zero_inside" in bugs:
            optimizer.zero_grad()
        (loss() / (1 if "sum" in bugs else len(losses))).backward()
        if "step_inside" in bugs:
            optimizer.step()
    clip = torch.inf if "no_clip" in bugs else max_norm
    norm = torch.nn.utils.clip_grad_norm_(parameters, clip)
    if "threshold" in bugs and not norm > 10:
        optimizer.step()
    elif "zero_and_step" in bugs:
        if not norm.isfinite():
            optimizer.zero_grad(set_to_none=False)
        optimizer.step()
    elif norm.isfinite() and "step_inside" not in bugs:
        optimizer.step()
    return float(min(norm, torch.tensor(max_norm)) if "norm_after" in bugs else norm)


def test_the_update():
    assert right_on_every_seed("update", update=update)
    assert right_on_every_seed("update", update=cases.update)


@pytest.mark.parametrize(
    "bug", ["zero_inside", "step_inside", "sum", "no_clip", "threshold", "zero_and_step", "norm_after"]
)
def test_bugs_of_the_update(bug):
    assert wrong_on_every_seed("update", update=lambda *given: update(*given, **{bug: True}))


RIGHT = {
    "overrides": ("loss.log_ratio=old", "optimizer.learning_rate=3e-4"),
    "guards": ("representable_epsilon", "skip_nonfinite", "clamp_kl"),
}


def test_a_stable_configuration():
    assert checking.all_right(findings("stable", seed=1, **RIGHT))


def test_the_right_denominator_at_the_reported_rate_teaches_nothing():
    config = preset("original").with_("loss.log_ratio=old").with_guards(trials.guards_of(RIGHT["guards"]))
    assert not next(trials.learns(config, seed=1)).right


@pytest.mark.parametrize("rate", ["1e-5", "3e-4"])
@pytest.mark.parametrize("log_ratio", ["old", "reference"])
def test_the_wrong_denominator_is_seen_at_any_rate(log_ratio, rate):
    config = preset("original").with_(f"loss.log_ratio={log_ratio}", f"optimizer.learning_rate={rate}")
    for seed in range(3):
        assert denominator(config, seed).right is (log_ratio == "old")


@pytest.mark.parametrize("what", HARMS)
def test_every_harm_is_one(what):
    config = preset("original").with_(*RIGHT["overrides"]).with_guards({})
    harmed = config.with_("data.num_prompts=4", "run.num_steps=6", *HARMS[what])
    assert not trials.survives(harmed, what, seed=1, why="").right


@pytest.mark.parametrize("overrides", [("data.num_prompts=1",), ("loss.bet=1",), "loss.beta=1"])
def test_overrides_that_are_no_answer(overrides):
    (found,) = findings("stable", overrides=overrides, guards=())
    assert not found.right and found.why


def test_the_page():
    page = lab_page("08_mystery_runs")
    assert len(page.questions) == 3 and sum(e.minutes for e in page.exercises.values()) <= page.minutes
