"""Students with one name, and several notebooks of one student for a lab."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from grpo_lab.grading import repeats
from grpo_lab.grading.reports import words
from grpo_lab.grading.results import RIGHT, Mark, Result
from grpo_lab.grading.submissions import NOT_READ, Found

ANN = Result("ann", "05_kl", "ann.ipynb", "a1" * 32, 2, "", marks=[Mark("k3", "k3", "code", 2.0, 2, RIGHT)])


def handed_in(*senders):
    """Files and results of these senders: student, number, lab, and whether the number is of one assignment."""
    every = [
        Found(student, Path(f"/class/{place}.ipynb"), Path("/class"), identity=number, per_assignment=moodle)
        for place, (student, number, _, moodle) in enumerate(senders)
    ]
    return every, [
        replace(ANN, student=student, lab=lab, file=f"{n}") for n, (student, _, lab, _) in enumerate(senders)
    ]


@pytest.mark.parametrize(
    ("senders", "students"),
    [
        ([("Ada", "1", "05_kl", True), ("Ada", "2", "05_kl", True), ("Ada", "", "05_kl", False)], ["(1)", "(2)", ""]),
        ([("Ada", "1", "05_kl", True), ("Ada", "1", "05_kl", True)], ["", ""]),
        ([("Ada", "1", "05_kl", False), ("Ada", "2", "04_guards", False)], ["(1)", "(2)"]),
        ([("Ada", "1", "05_kl", True), ("Ada", "2", "04_guards", True)], ["", ""]),
        ([("Ada", "7", "", True), ("Ada", "8", "", True)], ["", ""]),
    ],
    ids=["namesakes", "one number", "numbers of a student", "numbers of an assignment", "files of no lab"],
)
def test_two_students_of_one_name_are_told_apart_by_their_numbers(senders, students):
    told = repeats.told_apart(*handed_in(*senders))
    assert [each.student for each in told] == [f"Ada {number}".strip() for number in students]
    assert [list(each.warnings) for each in told] == [[repeats.NAMESAKE] if number else [] for number in students]


def test_lateness_is_a_warning():
    every, results = handed_in(("Ada", "1", "05_kl", False))
    (told,) = repeats.told_apart([every[0]._replace(late=True)], results)
    assert told.late and told.identity == "1" and list(told.warnings) == [repeats.LATE]


@pytest.mark.parametrize(("rule", "counts"), [("latest", "new.ipynb"), ("best", "old.ipynb")])
def test_one_notebook_counts_for_a_student_and_a_lab(tmp_path, rule, counts):
    old, new = replace(ANN, file="old.ipynb"), replace(ANN, file="new.ipynb", marks=())
    broken = replace(new, file="zz.ipynb", problem="not a notebook")
    pdf, ben = replace(broken, lab="", file="r.pdf"), replace(ANN, student="ben", file="ben.ipynb")
    results = [broken, new, ben, old, pdf]
    for time, result in enumerate((old, new, broken, pdf, ben), start=1):
        (tmp_path / result.file).touch()
        os.utime(tmp_path / result.file, (time, time))
    every = [Found(each.student, tmp_path / each.file, tmp_path) for each in results]
    kept = repeats.one_each(every, results, rule)
    assert sorted(each.file for each in kept) == sorted([counts, ben.file, pdf.file])
    (warning,) = next(each for each in kept if each.file == counts).warnings
    assert f"3 notebooks of this lab: {counts} counts (rule: {rule})" in warning
    assert "zz.ipynb (could not be graded: not a notebook)" in warning
    said = words.Words("zh").said(warning)
    assert ".ipynb（得分 " in said and "zz.ipynb（无法评分：" in said
    alone = repeats.one_each(every, results, rule, alone=True)  # else one submission earned its points twice
    assert len([each for each in alone if each.lab]) == 1


def test_other_files_in_a_zip_of_a_lab_are_no_notebooks_of_it(tmp_path):
    runs = [replace(ANN, file=f"ann_05_kl.zip/runs/{name}.json", marks=(), problem=NOT_READ) for name in "ab"]
    notebook = replace(ANN, file="ann_05_kl.zip/05_kl.ipynb")
    every = [Found("ann", tmp_path / "ann_05_kl.zip", tmp_path)] * 3
    counts, *others = repeats.one_each(every, [notebook, *runs])
    assert counts == notebook and [(each.file, each.lab) for each in others] == [(each.file, "") for each in runs]
    first, second = repeats.one_each(every[1:], runs)  # no notebook at all: the lab is not graded, and says why
    assert sorted((first.lab, second.lab)) == ["", "05_kl"] and not [*first.warnings, *second.warnings]
