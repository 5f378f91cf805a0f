"""Progress over all labs: each check leaves a line, and one page shows every exercise."""

import json
from pathlib import Path

import pytest

from grpo_lab.course import progress, registry
from grpo_lab.errors import DataError, NotYet, Unanswered
from grpo_lab.ui.notebook import Lab, feedback_view

LABS = Path(__file__).parents[1] / "labs"
WRONG = "def steps_out_of_range(norms, limit):\n    return []"
RIGHT = "def steps_out_of_range(norms, limit):\n    return [i for i, norm in enumerate(norms) if not norm <= limit]"

BEGUN = f"0. Start here: 1 of {len(registry.lab_page('00_start').exercises)} passed"


@pytest.fixture
def learner(tmp_path, monkeypatch, capsys):
    """The folder of a learner who gave a prediction, failed one exercise, and opened another."""
    monkeypatch.chdir(tmp_path)
    lab = Lab("00_start")
    lab.exercise("guess", "answer = 'a'")
    with pytest.raises(NotYet):
        lab.exercise("out_of_range", WRONG)
    with pytest.raises(Unanswered):
        lab.exercise("reading", "spike_step = ...  # your answer")
    capsys.readouterr()
    return tmp_path


def of_lab_0(folder):
    return {row.exercise.name: row.status for row in progress.rows(folder) if row.lab.name == "00_start"}


def test_each_exercise_of_each_lab_has_a_status(learner):
    begun = {"guess": "passed", "out_of_range": "attempted"}
    assert of_lab_0(learner) == {**dict.fromkeys(registry.lab_page("00_start").exercises, "open"), **begun}
    rows = progress.rows(learner)
    assert len(rows) == sum(len(registry.lab_page(name).exercises) for name in registry.course_labs())
    assert {row.status for row in rows if row.lab.name != "00_start"} == {"open"}


def test_what_was_passed_once_stays_passed(learner):
    lab = Lab("00_start")
    lab.exercise("out_of_range", RIGHT)
    with pytest.raises(NotYet):
        lab.exercise("out_of_range", WRONG)
    assert of_lab_0(learner)["out_of_range"] == "passed"


def test_a_line_that_was_cut_off_is_left_out_and_another_is_named(learner):
    file = learner / progress.FILE
    with file.open("a") as end:
        end.write('{"lab": "00_st')
    assert of_lab_0(learner)["guess"] == "passed"
    with file.open("a") as end:
        end.write("\n")
    with pytest.raises(DataError, match=r"progress\.jsonl:3: .*delete that line"):
        progress.rows(learner)


def test_the_page_in_a_notebook(learner, monkeypatch):
    shown = []
    monkeypatch.setattr(feedback_view, "show", lambda text, html="", **_: shown.append((text, html)))
    Lab("00_start").progress()
    ((text, html),) = shown
    assert f"{BEGUN}\n  ○ open       Read a run\n  ✓ passed     What will happen?\n" in text
    assert "◐ attempted  A first function" in text and "The explosion: 0 of " in text
    assert html.count("<details") == len(registry.course_labs())
    assert html.count("<details open") == 1  # the lab that was begun
    assert BEGUN in html


def test_the_first_lab_ends_with_the_page():
    cells = json.loads((LABS / "00_start" / "00_start.ipynb").read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert code[-2:] == ["lab.progress()", "lab.export()"]


def test_the_command_finds_the_folder_of_the_learner(learner, call):
    assert BEGUN in call("labs", "progress")[1]
    (learner / "work").mkdir()
    (learner / "answers").rename(learner / "work" / "answers")
    assert BEGUN in call("labs", "progress")[1]
    (learner / "work").rename(learner / "elsewhere")
    assert BEGUN in call("labs", "progress", learner / "elsewhere")[1]
    code, out, said = call("labs", "progress")
    assert code == 2 and not out and "no answers/progress.jsonl" in said and "name the folder" in said
