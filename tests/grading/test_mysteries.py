"""The anonymous runs that ship agree with their key, and contain no more than a log."""

import json
import re

import pytest

from grpo_lab.analysis.diagnosis import diagnose
from grpo_lab.config.catalog import scenario_names
from grpo_lab.course import evaluate, mysteries
from grpo_lab.course.registry import lab_page
from grpo_lab.events import Stepped
from grpo_lab.runs.recordings import find
from grpo_lab.runs.session import Session
from grpo_lab.training.faults import FAULTS
from grpo_lab.training.guards import GUARDS

KEY = mysteries.key()
VERDICTS = lab_page("08_mystery_runs").exercises["verdicts"]


def test_one_of_each_cause_in_an_order_of_the_seed():
    assert sorted(KEY) == list(range(1, 9)) and sorted(KEY.values()) == sorted(mysteries.CAUSES)
    assert len({tuple(mysteries.key(seed).values()) for seed in range(5)}) == 5


@pytest.mark.parametrize("number", KEY)
def test_the_recording_is_what_the_key_says(number):
    verdict = diagnose(find(mysteries.name(number))).verdict
    # The curves of this one do not identify the cause, on purpose: see the lab.
    assert verdict == ("reward-collapse" if KEY[number] == "kl-hidden" else KEY[number])


@pytest.mark.parametrize("number", KEY)
def test_nothing_gives_the_cause_away(number):
    folder = find(mysteries.name(number))
    text = (folder / "events.jsonl").read_text() + (folder / "config.json").read_text()
    telling = {*FAULTS, *GUARDS, *scenario_names(), "fault", "precision", "kl_estimator", "kl/exact", "adam_eps="}
    assert [word for word in sorted(telling) if re.search(rf"\b{re.escape(word)}\b", text)] == []
    config = json.loads((folder / "config.json").read_text())
    assert config["run"]["name"] == mysteries.name(number) and sorted(config) == ["data", "run"]
    steps = [event for event in Session.open(folder).events if isinstance(event, Stepped)]
    assert steps and not any(step.actions or step.verdict for step in steps)


@pytest.mark.slow
def test_others_can_be_made(tmp_path, monkeypatch):
    monkeypatch.setattr(mysteries, "key", lambda seed: {1: "explosion", 2: "optimizer-overflow"})
    mysteries.make(tmp_path, seed=7)
    assert diagnose(tmp_path / "mystery-1").verdict == "explosion"
    assert diagnose(tmp_path / "mystery-2").verdict == "optimizer-overflow"
    assert sorted(path.name for path in (tmp_path / "mystery-2").iterdir()) == [
        "config.json",
        "environment.json",
        "events.jsonl",
    ]


def right(seed):
    """The number of right findings about the key of a seed, given as an answer, and the number of all findings."""
    findings = evaluate.check(VERDICTS, {"answer": mysteries.key(seed)})
    return sum(found.right for found in findings), len(findings)


def test_a_grader_says_whose_key_counts():
    assert right(mysteries.SHIPPED) == (8, 8)
    with mysteries.of_seed(731):
        assert right(731) == (8, 8)
        assert right(mysteries.SHIPPED)[0] < 8
    assert right(731)[0] < 8


def test_a_learner_with_other_runs_is_asked_for_the_form_alone(tmp_path, monkeypatch):
    (tmp_path / "mystery-1").mkdir()
    monkeypatch.chdir(tmp_path)
    assert right(731) == (1, 1)
    assert "your instructor has the key of these runs" in evaluate.check(VERDICTS, {"answer": mysteries.key(5)})[0].what
    with mysteries.of_seed(mysteries.SHIPPED):
        assert right(731)[1] == 8
    with mysteries.of_seed(731):
        assert right(mysteries.SHIPPED)[0] < 8
