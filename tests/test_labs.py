"""What the cells of a lab call: answers are kept, looked at and answered; runs, questions and export."""

import json
import shutil
import zipfile
from pathlib import Path

import pytest
from IPython.lib.pretty import pretty

from grpo_lab.config.catalog import preset
from grpo_lab.course.exercises import Finding
from grpo_lab.errors import ConfigError, DataError, NotYet, Unanswered
from grpo_lab.runs import child_pool, recordings
from grpo_lab.runs.session import Session
from grpo_lab.ui.notebook import Lab, feedback_view, questions

RIGHT = "def double(x):\n    return x + x\n"


@pytest.fixture
def lab(sample_lab):
    return Lab("sample")


def test_a_right_answer_is_kept_and_said(lab, capsys):
    lab.exercise("double", RIGHT)
    assert capsys.readouterr().out == "Double it: right\n✓ right: three numbers\n"
    assert lab.answer("double").double(2) == 4
    assert lab.path("double") == "answers/sample/double.py:double"
    assert lab.path("double", "Other") == "answers/sample/double.py:Other"


def test_a_wrong_answer_is_shown_and_stops_the_notebook(lab, capsys):
    with pytest.raises(NotYet, match=r"Double it: 0 of 1 right so far; change the cell and run it again"):
        lab.exercise("double", "def double(x):\n    return x\n")
    out = capsys.readouterr().out
    assert "✗ not yet: three numbers" in out
    assert out.index("got ") < out.index("expected ") < out.index("why ")
    lab.exercise("double", RIGHT)
    assert lab.answer("double").double(3) == 6  # read anew


def test_lines_have_the_numbers_they_have_in_the_cell(lab, capsys):
    with pytest.raises(NotYet):
        lab.exercise("double", "def double(x):\n    return 1 / 0\n")  # below the magic's own line
    assert "ZeroDivisionError: division by zero (line 3)" in capsys.readouterr().out


def test_an_unanswered_cell(lab):
    with pytest.raises(Unanswered, match="double: no answer yet; run the cell that begins with %%exercise double"):
        lab.answer("double")
    with pytest.raises(Unanswered, match="double: waits for your answer in line 3"):
        lab.exercise("double", "def double(x):\n    ...  # your answer")
    with pytest.raises(Unanswered, match="line 3"):
        lab.path("double")


@pytest.mark.parametrize("ask", ["exercise", "answer", "path"])
def test_an_exercise_that_does_not_exist(lab, ask):
    words = ("doubel", "1") if ask == "exercise" else ("doubel",)
    with pytest.raises(ConfigError, match="unknown exercise of sample 'doubel'; did you mean 'double'"):
        getattr(lab, ask)(*words)


def test_the_first_prediction_stays(lab, capsys):
    with pytest.raises(NotYet):
        lab.exercise("guess", "answer = 'z'")
    lab.exercise("guess", "answer = 'b'")
    assert "Locked in: answer = 'b'" in capsys.readouterr().out
    for later in ("c", "b"):
        lab.exercise("guess", f"answer = '{later}'")
        out = capsys.readouterr().out
        assert ("Your first prediction stays: answer = 'b'" in out) == (later == "c")
        assert "right" not in out  # nobody knows yet
    assert json.loads((lab.answers / "locked.json").read_text()) == {"guess": {"answer": "b"}}
    (lab.answers / "locked.json").write_text("{")
    with pytest.raises(DataError, match=r"locked\.json cannot be read any more; delete it"):
        lab.exercise("guess", "answer = 'b'")


def test_nothing_of_a_learners_is_html(lab):
    evil = "<script>alert(1)</script>"
    found = [Finding(False, evil, evil, evil, evil), Finding(True, evil, evil, evil, evil)]
    exercise = lab.page.exercises["double"]
    html = feedback_view.as_html(exercise, found, evil)
    assert "<script" not in html
    assert html.count("&lt;script&gt;") == 9
    assert "✗ not yet" in html
    assert "✓ right" in html
    assert "Double it: not yet, 1 of 2 right" in html
    assert "Double it: not yet, 1 of 2 right" in feedback_view.as_text(exercise, found)


def test_runs_lie_in_the_labs_folder_and_share_a_child(lab, capsys, monkeypatch):
    config = preset("smoke")
    try:
        first = lab.run(config, "unguarded")
        child = child_pool.take()
        child_pool.give_back(child)
        monkeypatch.setenv("GRPO_LAB_FAST", "1")
        again = lab.run(config.with_("run.num_steps=50"), "unguarded")
        assert again._lent_child is first._lent_child is child
    finally:
        child_pool._close_all()
    assert first.directory == lab.runs / "unguarded"
    assert again.directory == lab.runs / "unguarded-2"
    assert first.config.run.name == "unguarded"
    assert (len(first.records), len(again.records)) == (3, 12)
    assert Session.open(first.directory).status == "done"
    assert capsys.readouterr().out.count("unguarded: first break: none") == 2


def test_a_run_is_followed_in_one_place(lab, monkeypatch):
    """Seen by somebody, it is one line that changes."""
    said = []
    monkeypatch.setattr(feedback_view, "headless", lambda: False)
    monkeypatch.setattr(
        feedback_view, "show", lambda text, **where: said.append((text, where["display_id"], where["update"]))
    )
    monkeypatch.setattr(feedback_view, "_INTERVAL", 0.0)
    session = Session(preset("smoke").with_("run.threads=1"), lab.runs / "seen")
    session.views.append(feedback_view.RunLine(session.config))
    session.run()
    assert [text.split(",")[0] for text, *_ in said[:-1]] == [f"smoke: step {n} of 3" for n in (1, 2, 3)]
    assert said[-1][0].startswith("smoke: first break")
    assert len({place for _, place, _ in said}) == 1
    assert [update for *_, update in said] == [False, True, True, True]


def test_a_check_that_trains_says_so_while_it_does(lab, monkeypatch):
    said = []
    monkeypatch.setattr(feedback_view, "headless", lambda: False)
    monkeypatch.setattr(feedback_view, "show", lambda text, *_, **where: said.append((text, where.get("display_id"))))
    lab.exercise("guards", "guards = ('warm_up',)")
    assert said[0][0].startswith("Checking: ")
    assert said[1] == ("", said[0][1])
    assert said[2][0].startswith("Guard it: right")
    with pytest.raises(Unanswered):
        lab.exercise("guards", "guards = ...  # your answer")
    assert said[-1][0] == ""
    said.clear()
    lab.exercise("double", RIGHT)
    assert len(said) == 1


def test_questions_explain_what_was_chosen(lab, monkeypatch):
    monkeypatch.setattr(questions, "headless", lambda: False)
    (box,) = lab.questions().children
    title, buttons, reply = box.children
    assert "Is 1 &lt; 2?" in title.value
    assert buttons.value is None
    assert reply.value == ""
    buttons.value = 0
    assert reply.value == "<strong>Not this one.</strong> It is."
    buttons.value = 1
    assert reply.value == "<strong>Right.</strong> So it is, &amp; always."


def test_questions_without_anybody(lab, capsys):
    assert lab.questions() is None
    assert capsys.readouterr().out == "1. Is 1 < 2?\n   ( ) no\n   ( ) yes\n"


def test_the_export_holds_answers_and_runs(lab):
    lab.exercise("double", RIGHT)
    (lab.runs / "a").mkdir(parents=True)
    (lab.runs / "a" / "events.jsonl").write_text("{}\n")
    (lab.runs.parent / "other").mkdir()
    (lab.runs.parent / "other" / "events.jsonl").write_text("{}\n")
    for _ in range(2):
        with zipfile.ZipFile(lab.export()) as archive:
            assert archive.namelist() == ["answers/sample/double.py", "runs/sample/a/events.jsonl"]


def test_the_export_holds_a_figure_of_every_run_and_is_named_in_a_sentence(lab):
    """The zip file once promised figures and held none, and a notebook showed a PosixPath."""
    shutil.copytree(recordings.find("lecture-healthy"), lab.runs / "a")
    path = lab.export()
    with zipfile.ZipFile(path) as archive:
        assert archive.read("runs/sample/a/figure.png").startswith(b"\x89PNG")
    assert pretty(path) == f"Written to {path}"
    assert Path(path).exists()


def test_the_public_name():
    import grpo_lab

    assert grpo_lab.Lab is Lab
