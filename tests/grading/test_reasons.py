"""A reason names the kind of a value first, then the mistake that was made, and each mistake once."""

import pytest

from grpo_lab.course import evaluate
from grpo_lab.course.exercises import Finding, Function
from grpo_lab.course.registry import exercise
from tests.grading import fairness, mutants


def wrong(place, changes, load, seed=0):
    """The wrong findings about a changed reference solution, or about a whole cell; `place` is lab/exercise."""
    lab, _, name = place.partition("/")
    source = changes if isinstance(changes, str) else mutants.changed(mutants.solution(lab, name), changes)
    return [found for found in evaluate.check(exercise(lab, name), load(source), seed) if not found.right]


KINDS = [
    ("00_start/reading", {"906": '"906"'}, "This is a text; a number is wanted."),
    ("00_start/reading", {"= False": "= 0"}, "This is a number; True or False is wanted."),
    ("00_start/learning_rate", 'learning_rate = "3e-4"', "This is a text; a number is wanted."),
    ("00_start/saved", {"acted = 20": 'acted = "20"'}, "This is a text; a number is wanted."),
    ("00_start/guess", "answer = 3", "This is a number; a text is wanted."),
    ("01_grpo_by_hand/by_hand", {"right_one = 1.5": 'right_one = "1.5"'}, "This is a text; a number is wanted."),
    ("01_grpo_by_hand/by_hand", {"right_one = 1.5": "right_one = (1.5,)"}, "This is a tuple; a number is wanted."),
    ("01_grpo_by_hand/by_hand", {"right_one = 1.5": "right_one = True"}, "This is True or False; a number is wanted."),
    ("02_explosion/reported", 'nats = "18.55"', "This is a text; a number is wanted."),
    ("02_explosion/reported", "nats = (18.55,)", "This is a tuple; a number is wanted."),
    (
        "02_explosion/bounded",
        {"return torch": "return (0.0,)\n    return torch"},
        "This is a tuple; a tensor is wanted.",
    ),
    ("03_error_chain/epsilon", {"1e-4": '"1e-4"'}, "This is a text; a number is wanted."),
    ("03_error_chain/order", "order = 8", "This is a number; a tuple or a list is wanted."),
    ("04_guards/alone", 'answer = "skip_spikes"', "This is a text; a dictionary is wanted."),
    ("04_guards/hides", "answer = 3", "This is a number; a text is wanted."),
    ("04_guards/minimal_set", 'guards = "skip_spikes"', "This is a text; a tuple or a list is wanted."),
    ("05_kl/pulls", "k1, k2, k3, hinge = 3, 1, 2, 4", "This is a number; a text is wanted."),
    ("05_kl/review", "answer = 3", "This is a number; a text is wanted."),
    ("07_precision_and_verl/cures", "cures = None", "This is None; a tuple or a list or a text is wanted."),
    ("08_mystery_runs/by_hand", 'answer = ["healthy"] * 8', "This is a list; a dictionary is wanted."),
]


@pytest.mark.parametrize(("place", "changes", "why"), KINDS)
def test_the_kind_of_a_value_comes_first(load, place, changes, why):
    """Before: `right_one = "1.5"` was told how to compute the std."""
    assert wrong(place, changes, load)[0].why.startswith(why)


MISTAKES = [
    ("01_grpo_by_hand/by_hand", {"right_one = 1.5": "right_one = 1.732"}, "divides the sum of squares by 4"),
    ("01_grpo_by_hand/by_hand", {"wrong_one = -0.5": "wrong_one = -0.577"}, "divides the sum of squares by 4"),
    ("01_grpo_by_hand/by_hand", {"wrong_one = -0.5": "wrong_one = 0.5"}, "the sign is not"),
    ("01_grpo_by_hand/by_hand", {"loss_right = -1.8": "loss_right = 1.8"}, "the sign is not"),
    ("01_grpo_by_hand/by_hand", {"loss_right = -1.8": "loss_right = -2.473"}, "not clipped"),
    ("02_explosion/reported", "nats = 18.6", "Give two decimals"),
    ("02_explosion/reported", "nats = -18.55", "the sign is not"),
    ("02_explosion/bounded", {"clamp(-limit, limit)": "clamp(max=limit)"}, "missing below -10"),
    ("02_explosion/bounded", {"clamp(-limit, limit)": "clamp(min=-limit)"}, "missing above 10"),
    ("02_explosion/bounded", {"delta = delta": "delta = -delta"}, "the other way round"),
]


@pytest.mark.parametrize(("place", "changes", "why"), MISTAKES)
def test_a_known_mistake_is_named(load, place, changes, why):
    found = wrong(place, changes, load)
    assert found and all(why in each.why for each in found), found


ACCUSES = {
    "00_start/saved": {"It is a share": {"a percentage", "above 1"}},
    "01_grpo_by_hand/by_hand": {
        "This std divides the sum of squares by 4": {"std over G", "population std"},
        "The size is right and the sign is not: a wrong one": {"the sign of a wrong one"},
        "The size is right and the sign is not: a loss": {"sign flipped", "the sign of the loss"},
        "This is the log-ratio": {"no exp"},
        "This ratio is not clipped": {"not clipped"},
        "This is the clipped product": {"clipped where the minimum is not"},
    },
    "01_grpo_by_hand/advantages": {
        "The std divides by the size of the group": {"biased std"},
        "This is reward - mean": {"loss.advantage_scale=none"},
    },
    "02_explosion/reported": {
        "This is the logarithm to base 10": {"base 10"},
        "This is the logarithm to base 2": {"base 2"},
        "The size is right and the sign is not": {"sign flipped", "negative"},
        "Nearly": {"nearly", "one decimal", "18.58"},
    },
    "02_explosion/bounded": {
        "The bound is missing below -10": {"one side"},
        "The bound is missing above 10": {"the other side"},
        "The exponent is bounded, and the term - delta is not": {"the exponent alone"},
        "This is k3 of -delta": {"sign flipped"},
    },
    "08_mystery_runs/verdicts": {
        "In an explosion KL or ratio": {"two swapped"},
        "The KL is low, and so is the reward": {"healthy, all of them", "a low KL is healthy", "one wrong"},
    },
}
"""Reasons that say which mistake was made, and the names of the wrong answers of the tables that make it."""


@pytest.mark.parametrize("place", ACCUSES)
def test_no_reason_describes_another_mistake(load, place):
    told = {why: set() for why in ACCUSES[place]}
    for answer in [*mutants.all(), *fairness.NEAR]:
        if f"{answer.lab}/{answer.exercise}" == place:
            for seed in (0, 1):
                reasons = [found.why for found in wrong(place, answer.source, load, seed)]
                for why, names in told.items():
                    names |= {answer.name} if any(why in each for each in reasons) else set()
    assert told == ACCUSES[place]


def test_a_population_std_is_named_wherever_it_can_be_told(load):
    std = "rewards.std(dim=1, keepdim=True)"
    found = wrong("01_grpo_by_hand/advantages", {std: std.replace("True", "True, correction=0")}, load)
    assert len(found) >= 2 and all("one less" in each.why for each in found), found


@pytest.mark.parametrize("seed", range(1, 6))
def test_known_mistakes_are_wrong_and_named_on_fresh_inputs(load, seed):
    """A mistake's function is no right answer, and every finding that it causes names it."""
    for lab, name in (("01_grpo_by_hand", "advantages"), ("02_explosion", "bounded")):
        task = exercise(lab, name)
        assert isinstance(task.check, Function)
        for mistake in task.check.mistakes:
            found = evaluate.check(task, {task.check.name: mistake.function}, seed)
            wrong = [each.why for each in found if not each.right]
            assert wrong and all(mistake.why in why for why in wrong), mistake.why


def test_the_same_reason_is_given_once():
    def finding(what, why, right=False, got="1"):
        return Finding(right, what, got, "2", why)

    told = [finding("a", "Twice."), finding("b", "", True), finding("c", "Twice.", got="3"), finding("d", "Other.")]
    assert [each.what for each in evaluate.folded(told)] == ["a, and 1 more like it", "b", "d"]
    errors = [finding("a", evaluate.NO_VALUE, got="E (line 1)"), finding("b", evaluate.NO_VALUE, got="F (line 2)")]
    assert evaluate.folded(errors) == errors
    assert evaluate.folded([finding("a", "", True), finding("b", "", True)])[1].what == "b"
