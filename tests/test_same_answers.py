"""A part of benchmarks/answers is what this checkout answers, and every difference is listed."""

import pytest

from benchmarks import same_answers
from benchmarks.same_answers import PARTS, WITH_INPUTS, differences, rounded, stored, tasks

EVERY = {"findings": 60, "cases": 6, "diagnosis": 25, "panel": 8, "attack": 1000}
"""Of so many tasks of a kind one is computed here."""


def some():
    """Some of the tasks that take no time."""
    wanted = [task for task in tasks() if not task.slow and task.file != WITH_INPUTS]
    for name, every in EVERY.items():
        yield from [task for task in wanted if task.name == name][::every]


def test_some_answers_are_the_committed_ones():
    committed, wanted, found = stored(PARTS), list(some()), []
    assert {"findings", "cases", "diagnosis", "panel"} == {task.name for task in wanted}
    for task in wanted:
        for place, value in task.answers():
            old, new = committed[task.file], rounded(value)
            for key in map(rounded, place):
                old = old.get(key, {})
            # The value of a line of text is the first log that has it, which may be another one than here.
            found += [] if place[0].startswith("lines") and old else differences(old, new, (task.file, *place))
    assert found == []


def test_exactly_these_answers_attacks_and_recordings_are_committed():
    """One that is new needs `python -m benchmarks.same_answers --write`."""
    committed, wanted = stored(PARTS), tasks()
    of_labs = {file: tree for file, tree in committed.items() if file.startswith("findings")}
    answers = {
        (file, name, key)
        for file, tree in of_labs.items()
        for name in {*tree} - {"zh"}
        for key in tree[name]["answers"]
    }
    assert answers == {(task.file, *map(rounded, task.args[1:3])) for task in wanted if task.name == "findings"}
    assert {*committed["panels"]} == {task.args[0] for task in wanted if task.name == "panel"}
    attacks = {(tier, name) for tier, tree in committed["attacks"].items() for name in tree}
    assert attacks == {(f"tier {task.args[0]}", task.args[1]) for task in wanted if task.name == "attack"}


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ({"a": {"b": "norm 1.234"}}, {"a": {"b": "norm 1.236"}}, ["a > b: 'norm 1.234' -> 'norm 1.236'"]),
        ({"a": ["x", "step 4"]}, {"a": ["x", "step 5"]}, ["a > 1: 'step 4' -> 'step 5'"]),
        ({"a": "x"}, {"b": "x"}, ["a: 'x' -> None", "b: None -> 'x'"]),
        ({"a": ["x"]}, {"a": ["x", "y"]}, ["a > 1: None -> 'y'"]),
        ({"a": "norm 1.234 > 1", "b": "0.9999"}, {"a": "norm 1.235 > 1", "b": "1"}, []),
    ],
)
def test_a_difference_is_named_by_its_place(old, new, said):
    assert list(differences(old, new)) == said


def test_the_command_lists_differences_and_writes(monkeypatch, tmp_path, capsys):
    of_panel = [task for task in tasks(("panels",)) if task.args == ("mystery-1",)]
    monkeypatch.setattr(same_answers, "tasks", lambda *_: of_panel)
    monkeypatch.setattr(same_answers, "computed", lambda wanted, jobs: {"panels": {"mystery-1": {"status": now[0]}}})
    monkeypatch.setattr(same_answers, "FOLDER", tmp_path)
    now = ["healthy"]
    assert same_answers.main(["--write", "--only", "panels"]) == 0
    assert same_answers.main(["--only", "panels"]) == 0
    now[0] = "spiking"
    assert same_answers.main(["--only", "panels"]) == 1
    assert "panels > mystery-1 > status: 'healthy' -> 'spiking'" in capsys.readouterr().out
