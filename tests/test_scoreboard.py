"""The scoreboard of lab 4: every tried set of guards is kept, with what it stopped and what it cost."""

import dataclasses

import pytest

from grpo_lab.config.catalog import preset
from grpo_lab.course import trials
from grpo_lab.course.exercises import Finding, Values
from grpo_lab.errors import NotYet
from grpo_lab.ui.notebook import Lab


def judge(values, seed):
    """Short runs of lab 4's kind: a failure that `skip_spikes` stops, and a healthy run."""
    guards = trials.guards_of(values["guards"])
    yield Finding(len(guards) <= 1, "a small set", "", "", "")
    yield trials.stops("bad-batch", guards, seed, "", "run.num_steps=7")
    healthy = trials.run(preset("smoke").with_("run.num_eval=8").with_guards(guards), seed)
    yield Finding(healthy.status == "done", "a healthy run", "", "", "")


@pytest.fixture
def lab(sample_lab, monkeypatch):
    lab = Lab("sample")
    choice = dataclasses.replace(lab.page.exercises["letter"], check=Values(("guards",), judge, scoreboard=True))
    monkeypatch.setitem(lab.page.exercises, "letter", choice)
    return lab


def attempt(lab, guards):
    lab.exercise("letter", f"guards = {guards!r}")


def test_every_tried_set_is_kept_with_what_it_stopped_and_cost_and_the_fewest_guards_are_first(lab, capsys):
    with pytest.raises(NotYet):
        attempt(lab, ("skip_spikes", "warm_up"))
    with pytest.raises(NotYet):
        attempt(lab, ())
    attempt(lab, {"skip_spikes": {"threshold": 11.0}})
    attempt(lab, {"skip_spikes": {"threshold": 11.0}})  # the cell runs again
    with pytest.raises(NotYet):
        attempt(lab, ("skip_spike",))  # there is no such guard, so nothing was tried
    _, none, one, two = lab.scoreboard().rows()
    steps = 7 + preset("smoke").run.num_steps
    assert none[:3] == ["0: –", "0/1: –", f"0/{steps}"] and none[4] == "✗ 2/3"
    assert one[:3] == ["1: skip_spikes(threshold=11.0)", "1/1: bad-batch", f"1/{steps}"] and one[4] == "✓ 3/3"
    assert two[:3] == ["2: skip_spikes, warm_up", "1/1: bad-batch", f"1/{steps}"] and two[4] == "✗ 2/3"
    before, after = one[3].split(" → ")
    assert 0 <= float(before) <= 1 and 0 <= float(after) <= 1
    board = Lab("sample").scoreboard()  # a new kernel
    assert repr(board).splitlines()[2].startswith("1: skip_spikes(threshold=11.0)")
    assert "<td" in board._repr_html_() and repr(board) in capsys.readouterr().out


def test_a_board_without_a_try_has_its_header_alone(lab):
    assert len(lab.scoreboard().rows()) == 1 == len(repr(lab.scoreboard()).splitlines())
