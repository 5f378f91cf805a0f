"""Students with one name: their numbers tell them apart, and a warning says so."""

from pathlib import Path

from grpo_lab.grading import repeats
from grpo_lab.grading.results import Result
from grpo_lab.grading.submissions import Found


def handed_in(*senders):
    """Files and results of these senders: (student, number, lab); `per_assignment` with Moodle's numbers."""
    every = [
        Found(student, Path(f"/class/{place}.ipynb"), Path("/class"), identity=number, per_assignment=moodle)
        for place, (student, number, _, moodle) in enumerate(senders)
    ]
    results = [
        Result(found.student, lab, found.path, found.path, 2, "")
        for found, (_, _, lab, _) in zip(every, senders, strict=True)
    ]
    return every, results


def names(*senders):
    return [each.student for each in repeats.told_apart(*handed_in(*senders))]


def test_two_students_of_one_name_keep_a_row_each():
    every, results = handed_in(("Ada", "1", "05_kl", True), ("Ada", "2", "05_kl", True), ("Ada", "", "05_kl", False))
    kept = repeats.one_each(every, repeats.told_apart(every, results))
    assert [each.student for each in kept] == ["Ada (1)", "Ada (2)", "Ada"]
    assert [list(each.warnings) for each in kept] == [[repeats.NAMESAKE], [repeats.NAMESAKE], []]


def test_one_student_with_one_number_is_one_student():
    every, results = handed_in(("Ada", "1", "05_kl", True), ("Ada", "1", "05_kl", True))
    assert [each.student for each in repeats.one_each(every, repeats.told_apart(every, results))] == ["Ada"]


def test_numbers_of_a_student_tell_namesakes_apart_in_different_labs_and_those_of_an_assignment_do_not():
    for moodle, expected in ((False, ["Ada (1)", "Ada (2)"]), (True, ["Ada", "Ada"])):
        assert names(("Ada", "1", "05_kl", moodle), ("Ada", "2", "04_guards", moodle)) == expected


def test_files_of_no_lab_from_two_assignments_are_one_students():
    assert names(("Ada", "7", "", True), ("Ada", "8", "", True)) == ["Ada", "Ada"]


def test_lateness_is_a_warning():
    every, results = handed_in(("Ada", "1", "05_kl", False))
    (told,) = repeats.told_apart([every[0]._replace(late=True)], results)
    assert told.late and told.identity == "1" and list(told.warnings) == [repeats.LATE]
