"""Lab 0: its recording ships, and each reading has a finding of its own."""

from types import SimpleNamespace

import pytest

from grpo_lab.course import trials
from grpo_lab.course.exercises import Finding
from grpo_lab.runs.recordings import recording_names
from tests.grading import mutants


def test_what_is_read_is_a_recording():
    assert mutants.checks("00_start").RECORDING in recording_names()


@pytest.mark.parametrize("name", ["spike_step", "spike_norm", "reward_noticed"])
def test_each_reading_has_a_finding_of_its_own(findings, name):
    read = {"spike_step": 5, "spike_norm": 906.0, "reward_noticed": False, name: None}
    assert [finding.what for finding in findings("reading", **read) if not finding.right] == [name]


@pytest.mark.parametrize("name", ["spike_step", "spike_norm", "reward_noticed"])
def test_a_value_in_quotes_is_told_that_it_is_a_text(findings, name):
    read = {"spike_step": 5, "spike_norm": 906.0, "reward_noticed": False}
    (found,) = [each for each in findings("reading", **{**read, name: str(read[name])}) if not each.right]
    assert "without quotes" in found.why
    assert "slider" not in found.why and "axis" not in found.why and "Compare" not in found.why


def test_norms_in_place_of_steps_are_not_told_to_count_from_0(findings):
    wrong = findings("out_of_range", steps_out_of_range=lambda norms, limit: [n for n in norms if not n <= limit])
    assert [each.right for each in wrong] == [True, False, True, *[False] * 4]
    assert all("step" in each.why for each in wrong if not each.right)
    assert not any("Count steps from 0" in each.why for each in wrong)


def test_an_error_is_not_explained_by_the_test_input(findings):
    for wrong in (lambda norms, limit: norms.index(limit, "x"), lambda norms, limit: None, lambda norms, limit: 3):
        for each in findings("out_of_range", steps_out_of_range=wrong):
            assert "Nothing is above the limit" not in each.why and "NaN" not in each.why


@pytest.mark.parametrize(("after", "said"), [(0.02, "fell"), (0.31, "hardly"), (0.29, "hardly")])
def test_a_rate_is_told_its_direction_and_nothing_of_refused_steps(findings, monkeypatch, after, said):
    kept = {"survived": True, "fate": "", "updates": 12, "finished": 12, "refused": 0}
    outcome = SimpleNamespace(before=0.3, after=after, gained=after - 0.3, **kept)
    monkeypatch.setattr(trials, "run", lambda config, seed: seed)
    monkeypatch.setattr(trials, "judged", lambda session: outcome)
    (found,) = findings("learning_rate", learning_rate=1e-3)
    assert not found.right and said in found.why and "refused" not in found.why


def test_a_rate_has_the_same_lesson_in_the_notebook_and_in_grading(findings, monkeypatch):
    asked = []

    def lesson(config, seed, what):
        asked.append(seed)
        yield Finding(True, what, "", "", "")

    monkeypatch.setattr(trials, "learns", lesson)
    assert all(findings("learning_rate", seed, learning_rate=1e-3)[0].right for seed in (0, 1, 2**31))
    assert len(asked) == 3 and len({*asked}) == 1
