"""`grpo-lab grade` on a class: full marks for each reference, none for untouched notebooks, and reports."""

import csv
import dataclasses
import io
import json
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import typer

from grpo_lab import cli
from grpo_lab.cli import grade as grade_command
from grpo_lab.course.editions import build
from grpo_lab.course.registry import course_labs, lab_page
from grpo_lab.grading.reports import marking
from grpo_lab.grading.results import FAILED, Mark, Result
from grpo_lab.grading.sandbox import box
from grpo_lab.grading.submissions import NOT_READ
from tests.grading import mutants

LABS = course_labs()

SOURCES = Path(__file__).parents[2] / "labs"
SHADOWS = ("json", "random", "torch", "numpy", "typing_extensions")
"""Names of modules that a student could hand in, to be imported by a Python started in that folder."""
WRONG = {
    "k3": "sign flipped",
    "expected_gradient": "policy minus reference",
    "straight": "clamp after exp",
    "next_beta": "nan > limit",
}
"""Mistakes in the notebook of one student, by exercise of lab 5."""


def notebook(lab, edition=build.REFERENCE, **answers):
    """A lab's notebook as text, with these sources in the cells of its exercises."""
    made = json.loads(build.notebook(SOURCES, lab, edition))
    for cell in made["cells"]:
        if (name := cell["id"].removeprefix(f"{lab}-")) in answers:
            cell["source"] = f"%%exercise {name}\n{answers[name]}"
    return json.dumps(made)


SMALL = ("05_kl",)
"""Labs of the class that `make test` grades; the others are graded with the slow tests."""


def hand_in(folder, student, lab, text):
    (folder / student).mkdir(parents=True, exist_ok=True)
    (folder / student / f"{lab}.ipynb").write_text(text)


def hand_in_both_editions(home, labs):
    for lab in labs:
        hand_in(home / "submitted", "solved", lab, notebook(lab))
        hand_in(home / "submitted", "blank", lab, notebook(lab, build.LEARNER))


def grade(home, *options):
    command = [sys.executable, "-P", "-m", "grpo_lab", "grade", "submitted", "--jobs", "2", *options]
    env = {**os.environ, "COLUMNS": "150", "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=home, env=env, capture_output=True, text=True, timeout=1800)


@pytest.fixture(scope="module")
def whole_course(tmp_path_factory, contained):
    """The end of grading every other lab of the course, and its gradebook."""
    contained(2)
    home = tmp_path_factory.mktemp("course")
    hand_in_both_editions(home, [lab for lab in LABS if lab not in SMALL])
    return grade(home), gradebook(home)


@pytest.fixture(scope="module")
def graded(tmp_path_factory, contained):
    """The folder of a class, graded twice, the second time with a mark entered by hand; the output of both runs."""
    contained(2)
    home = tmp_path_factory.mktemp("class")
    wrong = {
        each.exercise: each.source
        for each in mutants.wrong()
        if WRONG.get(each.exercise) == each.name and each.lab == "05_kl"
    }
    assert set(wrong) == set(WRONG)
    hand_in_both_editions(home, SMALL)
    hand_in(home / "submitted", "mistaken", "05_kl", notebook("05_kl", **wrong))
    hand_in(home / "submitted", "broken", "05_kl", notebook("05_kl")[:-9])
    hand_in(home / "submitted", "05_kl/Ada King_7_assignsubmission_file_", "05_kl", notebook("05_kl", k3=wrong["k3"]))
    for name in SHADOWS:
        (home / f"{name}.py").write_text("open('shadowed', 'w').close()\nraise SystemExit(0)\n")
    first = grade(home)
    kept = {path: path.stat().st_mtime_ns for path in (home / "grades" / "results").iterdir()}
    sheet = home / "grades" / marking.TO_MARK
    rows = list(csv.DictReader(io.StringIO(sheet.read_text(encoding="utf-8-sig"))))
    before = gradebook(home)
    row = next(row for row in rows if (row["student"], row["lab"]) == ("solved", "05_kl"))
    row |= {"mark": "1.5", "comment": "the gradient is missing"}
    with sheet.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    second = grade(home)
    return home, first, second, kept, before


def gradebook(home):
    """Rows by student and lab."""
    rows = csv.DictReader(io.StringIO((home / "grades" / "grades.csv").read_text(encoding="utf-8")))
    return {(row["student"], row["lab"]): row for row in rows}


def automatic(lab):
    return sum(task.points for task in lab_page(lab).exercises.values() if task.kind != "text")


@pytest.mark.parametrize("lab", [lab if lab in SMALL else pytest.param(lab, marks=pytest.mark.slow) for lab in LABS])
def test_the_reference_earns_all_and_an_untouched_notebook_nothing(request, lab):
    if lab in SMALL:  # one notebook of that class cannot be read
        _, ended, _, _, marks = request.getfixturevalue("graded")
    else:
        ended, marks = request.getfixturevalue("whole_course")
    assert ended.returncode == (1 if lab in SMALL else 0), ended.stderr
    solved, blank = marks["solved", lab], marks["blank", lab]
    assert float(solved["score"]) == float(solved["max_score"]) == automatic(lab)
    assert float(blank["score"]) == 0 < float(blank["max_score"])


def test_mistakes_cost_exactly_their_exercises(graded):
    home, *_ = graded
    (file,) = (home / "grades" / "gradescope").glob("mistaken-*.json")
    tests = json.loads(file.read_text())["tests"]
    titles = {task.title: name for name, task in lab_page("05_kl").exercises.items()}
    scores = {titles[test["name"]]: (test["score"], test["max_score"]) for test in tests if "score" in test}
    lost = {name for name, (score, most) in scores.items() if score < most}
    assert lost == set(WRONG) and all(scores[name][0] == 0 for name in lost)


def test_what_is_no_notebook_is_accounted_for(graded):
    home, first, *_ = graded
    row = next(row for (student, _), row in gradebook(home).items() if student == "broken")
    assert (row["score"], "not a notebook" in row["problem"]) == ("0.0", True)
    assert "broken" in first.stdout and f"broken: {row['problem']}\n" in first.stderr
    assert first.stderr.endswith("not graded, or not in full: 1 of 5 notebooks; the reports say where and why\n")


def test_a_mark_by_hand_counts_and_nothing_is_graded_twice(graded):
    home, _, second, kept, before = graded
    assert second.returncode == 1, second.stderr
    unreadable = {path for path in kept if "broken" in path.read_text()}
    assert {path: path.stat().st_mtime_ns for path in kept if path not in unreadable} == {
        path: kept[path] for path in kept if path not in unreadable
    }
    after = gradebook(home)
    assert float(after["solved", "05_kl"]["score"]) == float(before["solved", "05_kl"]["score"]) + 1.5
    assert float(after["solved", "05_kl"]["max_score"]) == float(before["solved", "05_kl"]["max_score"]) + 2
    assert "the gradient is missing" in (home / "grades" / marking.TO_MARK).read_text(encoding="utf-8-sig")


def test_the_table_of_the_class_has_students_ids_and_points(graded):
    home, *_ = graded
    rows = csv.DictReader(io.StringIO((home / "grades" / "class.csv").read_text(encoding="utf-8")))
    found = {row["student"]: row for row in rows}
    assert list(found) == ["Ada King", "blank", "broken", "mistaken", "solved"]
    assert (found["Ada King"]["id"], found["blank"]["id"]) == ("7", "")
    assert (found["blank"]["05_kl"], found["broken"]["05_kl"]) == ("0.0", "not graded")


def test_nothing_is_imported_from_the_folder_it_was_started_in(graded):
    home, *_ = graded
    assert not (home / "shadowed").exists()


def test_the_secret_is_made_once_and_only_its_owners(graded):
    home, first, second, *_ = graded
    assert (home / "grading.secret").stat().st_mode & 0o077 == 0
    assert "is new" in first.stderr and "is new" not in second.stderr
    secret = (home / "grading.secret").read_text().strip()
    assert [path for path in (home / "grades").rglob("*") if path.is_file() and secret in path.read_text()] == []


def test_every_report_names_the_tier(graded):
    home, first, *_ = graded
    assert first.stderr.startswith("tier 2: bubblewrap\n")
    pages = list((home / "grades" / "pages").iterdir())
    assert len(pages) == 2 * len(SMALL) + 3  # broken, mistaken and Ada
    assert all("<dd>2." in page.read_text() for page in pages)


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Runs a command line in this process, in an empty folder: exit code, standard output and error."""
    monkeypatch.chdir(tmp_path)

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["grpo-lab", "grade", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        said = capsys.readouterr()
        return end.value.code or 0, said.out, said.err

    return call


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ([], 2, "name a folder of notebooks"),
        (["nowhere"], 2, "nowhere: no such file or folder"),
        ([".", "--rules", "none.toml"], 2, "--print-rules"),
        ([".", "--rules", "bad.toml"], 2, "did you mean 'seconds'"),
        ([".", "--jobs", "0"], 2, "--jobs"),
        ([".", "--lab", "05"], 2, "did you mean '05_kl'"),
        ([".", "--keep", "first"], 2, "--keep"),
        ([".", "--require-tier", "3"], 2, "--require-tier"),
    ],
)
def test_bad_usage_is_said_in_a_line(run, tmp_path, words, code, said):
    (tmp_path / "bad.toml").write_text("secnds = 3\n")
    ended, _, complained = run(*words)
    assert ended == code and said in complained and "Traceback" not in complained
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.toml"]


def test_the_rules_printed_are_the_rules(run, tmp_path):
    code, text, _ = run("--print-rules", "--attempt", "3", "--lab", "05_kl", "--lab", "04_guards")
    (tmp_path / "grading.toml").write_text(text)
    assert code == 0 and "attempt = 3" in text and 'labs = ["05_kl", "04_guards"]' in text
    assert run("--rules", "grading.toml", "--print-rules")[1] == text


def row(**about):
    return dataclasses.replace(Result("ann", "05_kl", "ann/05_kl.ipynb", "", 2, ""), **about)


FAILED_ONE = row(marks=[Mark("k3", "k3", "code", 0.0, 2, FAILED)])


@pytest.mark.parametrize(
    ("result", "code"),
    [
        (row(), 0),
        (row(lab="", file="r.pdf", problem=NOT_READ), 0),
        (row(problem="not a notebook"), 1),
        (row(lab="", file="ann.zip", problem="a zip that cannot be read"), 1),
        (FAILED_ONE, 1),
        (row(problem="the lab 05_kl, which is not graded here", settings={"labs": ["04_guards"]}), 0),
    ],
)
def test_the_exit_code_tells_of_notebooks_that_were_not_graded(capsys, result, code):
    with pytest.raises(typer.Exit) if code else nullcontext() as end:
        grade_command._say([row(), result], Path("out"))
    assert end is None or end.value.exit_code == code
    assert ("not graded, or not in full: 1 of 2 notebooks" in capsys.readouterr().err) == bool(code)


def test_the_table_in_the_terminal_marks_an_exercise_that_was_not_graded_and_cuts_long_names(capsys):
    with pytest.raises(typer.Exit):
        grade_command._say([FAILED_ONE, row(student="w" * 200, lab="", file="v" * 200)], Path("out"))
    said = capsys.readouterr().out
    assert "1 exercise not graded" in said
    assert f"{'w' * 39}… " in said and f"{'v' * 39}…" in said and "w" * 40 not in said


def test_it_explains_what_a_grade_is_worth(run, monkeypatch):
    monkeypatch.setattr(box, "unusable", lambda tier, limits: "")  # Python may be in a folder that is closed
    code, text, _ = run("--explain", "--require-tier", "0", "--no-isolation")
    text = " ".join(text.split())
    assert code == 0
    assert "self-assessment" in text and "Here: tier 0. " in text and "Not contained" in text


def test_a_plain_process_needs_another_word_from_an_ordinary_user_and_is_announced_loudly(run, monkeypatch, tmp_path):
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    monkeypatch.setattr(box, "unusable", lambda tier, limits: "")
    (tmp_path / "rules.toml").write_text("tier = 0\nno_isolation = true\n")
    code, text, complained = run("--explain", "--require-tier", "0")
    assert code == 2 and "Here: tier" not in text
    assert "refused for user 1000" in complained and "--no-isolation" in complained and "Traceback" not in complained
    for words in (("--require-tier", "0", "--no-isolation"), ("--rules", "rules.toml")):
        code, _, complained = run("--explain", *words)
        assert code == 0 and "WARNING: NO ISOLATION. Every answer runs as you." in complained


def test_where_there_is_no_linux_it_says_so(run, monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    code, _, complained = run("somewhere")
    assert code == 2 and "not possible on darwin" in complained and "container with --require-tier 0" in complained
