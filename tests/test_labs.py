"""What the cells of a lab call: answers are kept, looked at and answered; runs, questions and export."""

import dataclasses
import json
import shutil
import zipfile
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from IPython.core.events import EventManager
from IPython.lib.pretty import pretty

from grpo_lab.config.catalog import preset
from grpo_lab.course import trials
from grpo_lab.course.exercises import Finding, Question, Values
from grpo_lab.errors import ConfigError, DataError, NotYet, Unanswered
from grpo_lab.runs import child as child_pool
from grpo_lab.runs import recordings
from grpo_lab.runs.session import Session
from grpo_lab.ui import html
from grpo_lab.ui.notebook import Lab, feedback_view
from grpo_lab.ui.notebook.lab import buttons

RIGHT = "def double(x):\n    return x + x\n"


@pytest.fixture
def lab(sample_lab):
    return Lab("sample")


def test_a_right_answer_is_kept_and_said(lab, capsys):
    lab.exercise("double", RIGHT)
    assert capsys.readouterr().out == "Double it: right\n"  # one line
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
    with pytest.raises(NotYet):
        lab.exercise("double", "def double(x):\n    return 1 / 0\n")  # below the magic's own line
    assert "ZeroDivisionError: division by zero (line 3)" in capsys.readouterr().out


@pytest.mark.parametrize("cell", ["def double(x):\n    return math.fsum([x, x])\n", "double = math.fsum\n"])
def test_a_name_of_another_cell_is_said_to_be_missing_in_the_file_of_this_one(lab, capsys, cell):
    with pytest.raises(NotYet) as raised:
        lab.exercise("double", cell)
    out = f"{capsys.readouterr().out}{raised.value}"
    assert "NameError: name 'math' is not defined (line " in out
    assert "Each exercise is a file of its own" in out and "import or define math in this cell" in out


def test_right_rows_are_folded_and_wrong_ones_are_open(lab):
    exercise = lab.page.exercises["double"]
    rights = [Finding(True, f"right {n}", "", "", "") for n in range(5)]
    wrong = Finding(False, "the wrong one", "1", "2", "Twice.")
    text = feedback_view.as_text(exercise, rights)
    assert "\n" not in text
    text = feedback_view.as_text(exercise, [*rights, wrong])
    assert "✗ not yet: the wrong one" in text and "right 3" not in text and text.endswith("✓ 5 right")
    for findings in (rights, [*rights, wrong]):
        html = feedback_view.as_html(exercise, findings)
        opened, folded = html.partition("<details>")[::2]
        assert folded.count("<tr>") == 1 + 5 and "right 3" in folded and "right 3" not in opened
        assert ("the wrong one" in opened) == (wrong in findings) and "the wrong one" not in folded
        assert opened.count("<table") == (wrong in findings)


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


GUESS = "# What happens?\n#   a  It grows < fast.\n#   b  It shrinks.\nanswer = 'b'"


def test_the_verdict_on_a_prediction_comes_after_the_run(lab, capsys, monkeypatch):
    (lab.runs / "earlier").mkdir(parents=True)
    Session(preset("smoke"), lab.runs / "earlier").run()
    lab.exercise("guess", GUESS)
    capsys.readouterr()
    lab.show_verdicts()
    assert capsys.readouterr().out == ""  # the run before it decides nothing
    Session(preset("smoke"), lab.runs / "later").run()
    lab.show_verdicts()
    assert capsys.readouterr().out == (
        "Guess first.\n    you predicted  b: It shrinks.\n    it was         a: It grows < fast.\n"
    )
    lab.show_verdicts()
    assert capsys.readouterr().out == ""  # once
    monkeypatch.setitem(lab.page.exercises, "guess", _about(lab, runs=2))
    lab.exercise("guess", GUESS.replace("'b'", "'a'"))
    capsys.readouterr()
    for number, said in ((1, False), (2, True)):
        Session(preset("smoke"), lab.runs / f"of-{number}").run()
        lab.show_verdicts()
        assert ("    you predicted  b: It shrinks.\n" in capsys.readouterr().out) is said  # the first prediction counts


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        ("answer = 'a'", "Guess first. You predicted a, and it was a.\n"),  # its options stand elsewhere
        (GUESS.replace("'b'", "'B'"), "    you predicted  b: It shrinks.\n"),
    ],
)
def test_a_prediction_that_came_true_and_one_with_a_capital_letter(lab, capsys, cell, said):
    lab.exercise("guess", cell)
    Session(preset("smoke"), lab.runs / "later").run()
    capsys.readouterr()
    lab.show_verdicts()
    assert said in capsys.readouterr().out


def _about(lab, runs):
    guess = lab.page.exercises["guess"]
    return dataclasses.replace(guess, check=dataclasses.replace(guess.check, runs=runs))


def test_a_notebook_shows_a_verdict_once_though_its_lab_was_made_again(sample_lab, monkeypatch, capsys):
    shell = SimpleNamespace(register_magic_function=lambda *_: None)
    shell.events = EventManager(shell, ["post_run_cell"])  # type: ignore[arg-type]
    monkeypatch.setattr(feedback_view, "ipython", lambda: shell)
    for _ in range(2):
        Lab("sample").exercise("guess", GUESS)
    lab = Lab("sample")  # the open prediction is not forgotten
    Session(preset("smoke"), lab.runs / "later").run()
    capsys.readouterr()
    shell.events.trigger("post_run_cell")
    assert capsys.readouterr().out.count("text/plain") == 1


@pytest.fixture
def watched(monkeypatch):
    """A notebook that somebody watches: the HTML shown so far."""
    shown = []
    monkeypatch.setattr(feedback_view, "headless", lambda: False)
    monkeypatch.setattr(feedback_view, "show", lambda text, html="", **_: shown.append(html))
    return shown


@pytest.mark.parametrize("right", [True, False])
def test_a_model_answer_is_folded_below_the_feedback_on_an_attempt(watched, monkeypatch, tmp_path, right):
    monkeypatch.chdir(tmp_path)
    lab, name = Lab("00_start"), "out_of_range"
    with nullcontext() if right else pytest.raises(NotYet):
        found = "not norm <= limit" if right else "norm > limit"
        steps = f"[step for step, norm in enumerate(norms) if {found}]"
        lab.exercise(name, f"def steps_out_of_range(norms, limit):\n    return {steps}")
    assert "<details><summary>Show a model answer</summary>" in watched[-1]
    assert "if not norm &lt;= limit]" in watched[-1]


def test_a_model_answer_comes_after_an_attempt_and_only_there(watched, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    lab = Lab("00_start")
    with pytest.raises(Unanswered):
        lab.exercise("out_of_range", "def steps_out_of_range(norms, limit):\n    ...  # your answer")
    lab.exercise("guess", "answer = 'a'")  # a prediction has an outcome, which comes after the run
    with pytest.raises(NotYet):
        lab.exercise("learning_rate", "learning_rate = 'high'")
    assert ["Show a model answer" in html for html in watched] == [False, True]


@pytest.mark.parametrize("setting", ["GRPO_LAB_NO_ANSWERS", "headless", "no checkout"])
def test_model_answers_can_be_hidden(watched, monkeypatch, tmp_path, setting):
    monkeypatch.chdir(tmp_path)
    if setting == "headless":  # nbgrader's runs too
        monkeypatch.setattr(feedback_view, "headless", lambda: True)
    elif setting == "no checkout":
        monkeypatch.setattr(feedback_view, "is_installed", lambda path: True)
    else:
        monkeypatch.setenv(setting, "1")
    with pytest.raises(NotYet):
        Lab("00_start").exercise("reading", "spike_step = 1\nspike_norm = 2\nreward_noticed = True")
    assert "feedback" in watched[-1] and "Show a model answer" not in watched[-1]


def test_nothing_of_a_learners_is_html(lab):
    evil = "<script>alert(1)</script>"
    found = [Finding(False, evil, evil, evil, evil), Finding(True, evil, evil, evil, evil)]
    exercise = lab.page.exercises["double"]
    html = feedback_view.as_html(exercise, found, evil)
    assert "<script" not in html
    assert html.count("&lt;script&gt;") == 8  # a right row has no reason
    assert "✗ not yet" in html
    assert "✓ right" in html
    assert "Double it: not yet, 1 of 2 right" in html
    assert "Double it: not yet, 1 of 2 right" in feedback_view.as_text(exercise, found)


@pytest.mark.slow
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
    out = capsys.readouterr().out
    assert out.count("unguarded: result: ") == out.count("first break: none") == 2


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
    assert said[-1][0].startswith("smoke: result: too short to say")
    assert len({place for _, place, _ in said}) == 1
    assert [update for *_, update in said] == [False, True, True, True]


@pytest.mark.parametrize(
    ("steps", "said"), [(1, ' · <span style="white-space:nowrap">1 step</span>'), (3, ">3 steps<"), (8, "reward 0.")]
)
def test_a_run_ends_in_a_card_of_one_line(lab, monkeypatch, steps, said):
    """JupyterLab broke the plain summary inside words; five runs were five blocks."""
    shown = []
    monkeypatch.setattr(feedback_view, "headless", lambda: False)
    monkeypatch.setattr(feedback_view, "show", lambda text, html, **where: shown.append(html))
    config = preset("smoke").with_("run.threads=1", "run.name=<me>", f"run.num_steps={steps}")
    session = Session(config, lab.runs / "card")
    session.views.append(feedback_view.RunLine(session.config))
    session.run()
    line, _, told = shown[-1].partition("</summary>")
    assert "<strong>&lt;me&gt;</strong> · done, " in line and said in line and "first break" not in line
    assert ("reward 0." in line) is (steps == 8), "below eight steps a mean is that of one step"
    assert steps == 1 or sum(mark in line for mark in "▁▂▃▄▅▆▇█") > 1
    assert "<div" in told and "first break: none" in told and "<pre" not in shown[-1]


def test_a_check_that_trains_shows_each_run_while_it_does(lab, monkeypatch):
    def trains(values, seed):
        runs = [trials.run(preset("smoke"), seed) for seed in (1, 2)]
        yield Finding(all(run.status == "done" for run in runs), "two runs", "", "", "")

    said = []
    monkeypatch.setattr(feedback_view, "headless", lambda: False)
    monkeypatch.setattr(feedback_view, "show", lambda text, *_, **where: said.append((text, where)))
    monkeypatch.setattr(feedback_view, "_INTERVAL", 0.0)
    choice = dataclasses.replace(lab.page.exercises["letter"], check=Values(("answer",), trains))
    monkeypatch.setitem(lab.page.exercises, "letter", choice)  # of any kind, as in lab 4
    lab.exercise("letter", "answer = 'b'")
    *line, empty, feedback = said
    assert [text for text, _ in line] == [
        f"Checking: short run {run} (smoke), step {step} of 3" for run in (1, 2) for step in (1, 2, 3)
    ]
    assert [where["update"] for _, where in line] == [False, *[True] * 5]
    assert len({where["display_id"] for _, where in [*line, empty]}) == 1
    assert empty[0] == "" and empty[1]["update"]
    assert feedback[0].startswith("Which one: right")
    said.clear()
    lab.exercise("double", RIGHT)
    assert len(said) == 1  # a check that does not train
    trials.run(preset("smoke"), 1)
    assert len(said) == 1  # a run that belongs to no check


def test_questions_explain_what_was_chosen(lab, capsys):
    (box,) = buttons(lab.page.questions).children
    title, radio, reply = box.children
    assert "Is 1 &lt; 2?" in title.value and radio.value is None and reply.value == ""
    radio.value = 0
    assert reply.value == "<strong>Not this one.</strong> It is."
    radio.value = 1
    assert reply.value == "<strong>Right.</strong> So it is, &amp; always."
    lab.questions()  # without a notebook they are text
    assert capsys.readouterr().out == "1. Is 1 < 2?\n   ( ) no\n   ( ) yes\n"


def test_code_in_a_question_is_marked():
    asked = Question("Does `a < b` hold?", (("no", "`b` is 1."), ("yes", "It does.")), 1)
    title, *_ = buttons([asked]).children[0].children
    assert "<code>a &lt; b</code>" in title.value and "<code>b</code> is 1." in html.fill("explanation", asked, 0)
    assert "`" not in html.fill("questions", [asked])


def test_the_export_holds_answers_and_runs_with_a_figure_and_is_named_in_a_sentence(lab):
    lab.exercise("double", RIGHT)
    shutil.copytree(recordings.find("lecture-healthy"), lab.runs / "a")
    (lab.runs.parent / "other").mkdir()
    (lab.runs.parent / "other" / "events.jsonl").write_text("{}\n")
    lab.export()
    path = lab.export()
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        assert archive.read("runs/sample/a/figure.png").startswith(b"\x89PNG")
    assert {"answers/sample/double.py", "runs/sample/a/events.jsonl"} <= {*names}
    assert len(names) == len({*names}) and not any("other" in name for name in names)
    assert pretty(path) == f"Written to {path}" and Path(path).exists()


@pytest.fixture
def by_clicks(monkeypatch, lab):
    """Runs an exercise's cell before a learner's eyes; returns the widget with which it asks, or None."""
    monkeypatch.setattr("grpo_lab.ui.notebook.lab.headless", lambda: False)
    shown = []
    monkeypatch.setattr("grpo_lab.ui.notebook.lab._display", shown.append)

    def run(of, exercise, cell):
        shown.clear()
        with pytest.raises(Unanswered, match="choose above and press the button"):
            of.exercise(exercise, cell)
        (form,) = shown
        return form

    return run


def part(widget, css):
    """The widgets of this CSS class within a widget."""
    own = [widget] if f"grpo-lab-{css}" in getattr(widget, "_dom_classes", ()) else []
    return [*own, *(each for child in getattr(widget, "children", ()) for each in part(child, css))]


def of_kind(widget, kind):
    own = [widget] if type(widget).__name__ == kind else []
    return [*own, *(each for child in getattr(widget, "children", ()) for each in of_kind(child, kind))]


STUB_OF_GUESS = GUESS.replace("'b'", "...  # your answer")


def test_a_prediction_is_chosen_by_radio_buttons_and_written_into_its_cell(lab, by_clicks, capsys):
    form = by_clicks(lab, "guess", STUB_OF_GUESS)
    (radio,), (button,), (cell,) = (of_kind(form, kind) for kind in ("RadioButtons", "Button", "CellText"))
    assert "What happens?" in part(form, "asked")[0].value
    assert [value for _, value in radio.options] == ["a", "b"] and radio.value is None
    assert button.disabled, "nothing is locked in before a choice"
    radio.value = "b"
    assert not button.disabled and not (lab.answers / "locked.json").exists(), "a choice can be changed"
    button.click()
    assert json.loads((lab.answers / "locked.json").read_text()) == {"guess": {"answer": "b"}}
    assert cell.source == "%%exercise guess\n" + GUESS.replace("'b'", '"b"') and cell.source.startswith(cell.begins)
    assert 'answer = "b"' in cell.otherwise, "where the page cannot write into the cell, the learner copies the line"
    assert "Locked in" in part(form, "reply")[0].value and radio.disabled and button.disabled
    Session(preset("smoke"), lab.runs / "later").run()
    lab.show_verdicts()
    assert "    you predicted  b: It shrinks.\n" in capsys.readouterr().out
    lab.exercise("guess", cell.source.partition("\n")[2])  # as a grader runs the cell of the saved notebook


def test_a_prediction_without_options_in_its_cell_is_typed(lab, monkeypatch):
    monkeypatch.setattr("grpo_lab.ui.notebook.lab.headless", lambda: False)
    with pytest.raises(Unanswered, match="waits for your answer in line 2"):
        lab.exercise("guess", "answer = ...  # your answer")


@pytest.mark.slow
def test_mystery_runs_are_named_in_a_gallery(by_clicks, lab):
    """`lab` is in a folder of its own; the first list begins the second."""
    mysteries = Lab("08_mystery_runs")
    form = by_clicks(mysteries, "by_hand", "answer = ...  # your answer")
    menus, (button,) = of_kind(form, "Dropdown")[:8], part(form, "give")
    assert len(part(form, "card")) == 8 and all("<img" in of_kind(card, "HTML")[0].value for card in part(form, "card"))
    for number, look in ((1, None), (4, part(form, "look")[3])):
        if look:
            look.click()
        assert f">Run {number}<" in part(form, "shown")[0].value
        marked = [each.description for each in part(form, "look") if each.button_style]
        assert marked == [f"Run {number}: show it below"]
    for menu in menus:
        assert button.disabled
        menu.value = "healthy"
    button.click()
    assert "answer = {1: &#39;healthy&#39;, 2: " in part(form, "reply")[0].value, "the keys are numbers, as in the cell"
    (cell,) = of_kind(form, "CellText")
    assert mysteries.answer("by_hand").answer == dict.fromkeys(range(1, 9), "healthy")
    assert '    8: "healthy",\n}' in cell.source
    form = by_clicks(mysteries, "verdicts", "answer = ...  # your answer")
    menus, (button,) = of_kind(form, "Dropdown")[:8], part(form, "give")
    assert {menu.value for menu in menus} == {"healthy"} and not button.disabled
    button.click()
    assert "1 of 8 right" in part(form, "reply")[0].value and not button.disabled
