"""Metamorphic relations: right answers stay right, and answers that fit the first cases alone fail."""

import math
import random

import pytest
import torch
from torch import tensor

from grpo_lab.course import evaluate, relations
from grpo_lab.course.compare import differs
from grpo_lab.course.exercises import Case, Function
from tests.grading import mutants
from tests.grading.mutants import FUNCTIONS

TRAINED = "08_mystery_runs-first_break"
"""The one exercise whose cases take seconds, because they are runs."""
WITHOUT = {"07_precision_and_verl-largest"}
"""Exercises without a relation: the input is the name of a dtype."""
CHECKS = {identity: each.check for identity, each in FUNCTIONS.items() if isinstance(each.check, Function)}


def drawn(*names):
    return random.Random(" ".join(map(str, names)))


def right_answers(identity):
    """The names that the reference solution of an exercise defines."""
    lab, _, name = identity.rpartition("-")
    defined = {}
    exec(mutants.solution(lab, name), defined)
    return defined


def wrong(identity, answer, cases):
    """The findings that are wrong for an answer, given by the name of its function."""
    each = FUNCTIONS[identity]
    given = evaluate.run(each, answer, [case.inputs for case in cases])
    return [finding for finding in evaluate.judged(each, given, cases, 0) if not finding.right]


@pytest.mark.parametrize("identity", FUNCTIONS)
def test_what_is_right_stays_right(identity):
    """Under every relation of the exercise, in every case to which it applies, on several seeds."""
    check, answer = CHECKS[identity], right_answers(identity)
    for seed in (0,) if identity == TRAINED else (0, 1, 12345):
        for place, relation in enumerate(check.relations):
            draw = drawn(identity, seed, place)
            others = [(case, relation(case, draw)) for case in check.cases(seed)]
            made = [other for case, other in others if other is not case]
            assert made, f"relation {place} of {identity} applies to no case"
            assert wrong(identity, answer, made) == []


@pytest.mark.parametrize("identity", sorted(FUNCTIONS.keys() - WITHOUT))
def test_a_case_is_made_into_another_one_and_says_so(identity):
    each = FUNCTIONS[identity]
    before, after = (evaluate.asked(each, 0, transformed) for transformed in (False, True))
    made = [(case, other) for case, other in zip(before, after, strict=True) if other.what != case.what]
    for case, other in made:
        assert other.what.startswith(f"{case.what}, ") and other.why == case.why
        assert set(other.inputs) == set(case.inputs)
    assert any(differs(other.inputs[name], case.inputs[name]) for case, other in made for name in case.inputs)


def test_what_is_asked_follows_the_seed_alone():
    for identity in sorted(FUNCTIONS.keys() - {TRAINED}):
        for transformed in (False, True):
            cases, same = (evaluate.asked(FUNCTIONS[identity], 12345, transformed) for _ in range(2))
            assert [case.what for case in cases] == [case.what for case in same]
            assert not differs([dict(case.inputs) for case in cases], [dict(case.inputs) for case in same])


# Answers that fit the first cases alone -------------------------------------------------------------------------------


def two_rows(logprobs, old_logprobs, advantages, epsilon, epsilon_high):
    ratio, a = (logprobs - old_logprobs).exp(), advantages.reshape(2, 1)
    return -torch.min(ratio * a, ratio.clamp(1 - epsilon, 1 + epsilon_high) * a)


def ends_with_9(tokens, end):
    return (tokens == 9).cumsum(dim=1) - (tokens == 9).int() == 0


def flat(delta, limit=10.0):
    delta = delta.clamp(-limit, limit)
    return torch.stack([torch.expm1(one) - one for one in delta.unbind()]).reshape(len(delta))


ONLY_BEFORE = {
    "01_grpo_by_hand-policy_loss": {"policy_loss": two_rows},
    "02_explosion-bounded": {"k3": flat},
    "06_silent_failures-completion_mask": {"completion_mask": ends_with_9},
}


@pytest.mark.parametrize("identity", ONLY_BEFORE)
def test_an_answer_that_fits_only_what_was_asked_before_is_found(identity):
    """On nearly every seed, because the relations of a case are drawn."""
    found = 0
    for seed in range(20):
        before, after = (evaluate.asked(FUNCTIONS[identity], seed, transformed) for transformed in (False, True))
        assert wrong(identity, ONLY_BEFORE[identity], before) == []
        found += bool(wrong(identity, ONLY_BEFORE[identity], after))
    assert found >= 15


@pytest.mark.parametrize("by_tokens", [True, False])
def test_accumulation_must_equal_one_batch_however_it_is_cut(by_tokens):
    """Equal shares are right for equal micro-batches only."""

    def one_update(parts, loss_of, optimizer):
        optimizer.zero_grad()
        for part in parts:
            share = part.mask.sum() / sum(each.mask.sum() for each in parts) if by_tokens else 1 / len(parts)
            (share * loss_of(part)[part.mask].mean()).backward()
        optimizer.step()

    identity = "06_silent_failures-one_update"
    for seed in (0, 1, 12345):
        alike, *_ = CHECKS[identity].cases(seed)
        assert wrong(identity, {"one_update": one_update}, [alike]) == []
        cut = CHECKS[identity].relations[0](alike, drawn(seed))
        if len({*cut.inputs["sizes"].tolist()}) > 1:
            assert (wrong(identity, {"one_update": one_update}, [cut]) == []) is by_tokens


# The relations that many share ---------------------------------------------------------------------------------------

ROWS = tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
CASE = Case(
    "a case", {"x": ROWS, "a": tensor([1.0, 2.0]), "mask": torch.ones(2, 3).bool()}, {"y": ROWS * 2, "n": 5}, ""
)


def test_permuted_rows_go_together():
    other = relations.permuted("x", "a")(CASE, drawn())
    assert other.inputs["x"].tolist() == ROWS[[1, 0]].tolist() and other.inputs["a"].tolist() == [2, 1]
    assert other.expected["y"].tolist() == (2 * ROWS[[1, 0]]).tolist() and other.expected["n"] == 5
    assert relations.permuted("x", result=False)(CASE, drawn()).expected == CASE.expected


def test_permuted_columns():
    other = relations.permuted("x", dim=1)(CASE, drawn())
    order = [int(column) - 1 for column in other.inputs["x"][0]]
    assert sorted(order) == [0, 1, 2] != order
    assert other.expected["y"].tolist() == (2 * ROWS[:, order]).tolist()


def test_one_row_has_no_other_order():
    one = CASE._replace(inputs={"x": ROWS[:1]})
    assert relations.permuted("x")(one, drawn()) is one
    assert relations.applied((relations.permuted("x"),), one, drawn()) is one
    assert relations.applied((), one, drawn()) is one


def test_padding_is_masked_and_the_right_answer_is_0_there():
    other = relations.padded(mask="mask", x=math.nan)(CASE, drawn())
    more = other.inputs["x"].shape[1] - 3
    assert more > 0 and other.inputs["x"][:, 3:].isnan().all()
    assert other.inputs["mask"].dtype == torch.bool and other.inputs["mask"].sum() == 6
    assert other.expected["y"].shape == (2, 3 + more) and (other.expected["y"][:, 3:] == 0).all()


@pytest.mark.parametrize("power", [0, 1, 2])
def test_a_scale_goes_in_and_comes_out_to_a_power(power):
    other = relations.scaled("x", power=power)(CASE, drawn())
    factor = float(other.inputs["x"][0, 0])
    assert factor in relations.FACTORS
    assert other.expected["y"].tolist() == (2 * factor**power * ROWS).tolist() and other.expected["n"] == 5


def test_elements_in_another_order_and_shape():
    case = Case("six", {"x": torch.arange(6.0)}, torch.arange(6.0) * 2, "")
    made = [relations.elementwise("x")(case, drawn(place)) for place in range(20)]
    assert {tuple(other.expected.shape) for other in made} == {(6,), (6, 1), (1, 6), (2, 3)}
    assert all((other.expected == 2 * other.inputs["x"]).all() for other in made)


def test_every_row_twice():
    other = relations.repeated("x", "a")(CASE, drawn())
    assert other.inputs["x"].tolist() == ROWS.tolist() * 2 and other.expected["y"].tolist() == (2 * ROWS).tolist() * 2


def test_what_only_differences_see_and_what_nobody_reads():
    shifted = relations.shifted("x", "a")(CASE, drawn())
    assert (
        len({*(shifted.inputs["x"] - ROWS).flatten().tolist(), *(shifted.inputs["a"] - CASE.inputs["a"]).tolist()}) == 1
    )
    assert relations.without_use("a")(CASE, drawn()).inputs["a"].isnan().all()
    assert shifted.expected is CASE.expected
