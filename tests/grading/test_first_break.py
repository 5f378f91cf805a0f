"""The check of `first_break` accepts the right answer on runs of any seed, and refuses the usual wrong ones."""

import math

import pytest

from grpo_lab.course import answers, evaluate
from grpo_lab.course.registry import exercise
from tests.grading import mutants

chains = mutants.checks("08_mystery_runs")

EXERCISE = exercise("08_mystery_runs", "first_break")
SEEDS = range(2)


def notes_of(steps):
    return [(step, *note) for step, notes in enumerate(steps) for note in notes]


def right(steps):
    for step, link, update, finite, largest in notes_of(steps):
        losses = [share for name, when, share, _ in steps[step] if (name, when) == ("loss", update)]
        absorbed = link == "ratio" and losses == [1]
        if finite < 1 and not absorbed and not (link == "logits" and largest == math.inf):
            return step, link
    return None


def broken(notes):
    """The links of a step that are not finite, without the two exceptions."""
    found = [
        link for link, _, finite, largest in notes if finite < 1 and not (link == "logits" and largest == math.inf)
    ]
    return [link for link in found if link != "ratio"]


def in_the_first_broken_step(choose):
    def wrong(steps):
        return next(((step, choose(broken(notes))) for step, notes in enumerate(steps) if broken(notes)), None)

    return wrong


def first_where(holds):
    def wrong(steps):
        return next(((note[0], note[1]) for note in notes_of(steps) if holds(note, steps)), None)

    return wrong


def largest(steps):
    step, link, *_ = max(notes_of(steps), key=lambda note: note[4] if note[4] == note[4] else -1.0)
    return step, link


def changed(by):
    """The right answer, changed where there is a break."""
    return lambda steps: by(*found) if (found := right(steps)) else None


def every_loss_finite(note, steps):
    step, link, _, finite, size = note
    absorbed = link == "ratio" and all(share == 1 for name, _, share, _ in steps[step] if name == "loss")
    return finite < 1 and not absorbed and not (link == "logits" and size == math.inf)


WRONG = {
    "the last link": (in_the_first_broken_step(lambda links: links[-1]), "Later links inherit it"),
    "links in the order of the alphabet": (in_the_first_broken_step(min), "in the order in which they came"),
    "larger than 10": (first_where(lambda note, _: note[4] > 10), "not by their size"),
    "larger than fp16 holds": (first_where(lambda note, _: note[4] > 65504), "not by their size"),
    "not up to a limit": (first_where(lambda note, _: not note[4] <= 1e4), "absorbed"),
    "the largest number": (largest, "not by their size"),
    "only NaN": (first_where(lambda note, _: math.isnan(note[4])), "An inf counts there as much as a NaN"),
    "always step 0": (changed(lambda _, link: (0, link)), "the first whose share is below 1"),
    "never": (lambda steps: None, "whose share is below 1"),
    "where it crashed": (changed(lambda step, _: (step, "probabilities")), "only where it was noticed"),
    "one step late": (changed(lambda step, link: (step + 1, link)), "the number differs"),
    "absorbed ratios too": (
        first_where(lambda note, _: note[3] < 1 and not (note[1] == "logits" and note[4] == math.inf)),
        "there it was absorbed",
    ),
    "every infinite ratio passed over": (
        first_where(lambda note, _: note[3] < 1 and not (note[1] in ("logits", "ratio") and note[4] == math.inf)),
        "nothing absorbed the overflow",
    ),
    "filtered logits too": (first_where(lambda note, _: note[3] < 1 and note[1] != "ratio"), "a filter took out"),
    "absorbed where every loss of the step is finite": (first_where(every_loss_finite), "losses of other updates"),
}


def findings(function, seed):
    return evaluate.check(EXERCISE, {"first_break": function}, seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_learners_are_told_is_what_the_chain_says(seed):
    assert [found.got for found in findings(right, seed) if not found.right] == []


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_answer_is_told_on_every_seed(name):
    function, said = WRONG[name]
    told = [[found.why for found in findings(function, seed) if not found.right] for seed in SEEDS]
    assert all(told) and all(why for row in told for why in row)
    assert any(said in why for row in told for why in row)


@pytest.mark.parametrize("seed", SEEDS)
def test_runs_are_plain_data_and_no_reason_names_the_link(seed):
    for case in chains.first_break_cases(seed):
        steps = case.inputs["steps"]
        assert repr(answers.plain(steps)) == repr(steps) and 0 < len(steps) <= 6
        assert case.expected is None or case.expected[1] not in case.why


def test_runs_are_others_with_another_seed():
    first, second = ([case.inputs["steps"] for case in chains.first_break_cases(seed)] for seed in (0, 1))
    assert not any(repr(one) == repr(other) for one in first for other in second)
    assert {case.expected is None for seed in SEEDS for case in chains.first_break_cases(seed)} == {True, False}
