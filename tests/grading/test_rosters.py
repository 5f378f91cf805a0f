"""Class lists: names in any order and platform, groups, namesakes, and errors that name the row."""

import dataclasses
import unicodedata
from pathlib import Path

import pytest

from grpo_lab.errors import DataError
from grpo_lab.grading import repeats, rosters
from grpo_lab.grading.results import RIGHT, Mark, Result
from grpo_lab.grading.submissions import Found

CANVAS = """\
Student,ID,SIS User ID,SIS Login ID,Section,05_kl (99)
    Points Possible,,,,,17
"Lovelace, Ada",12345,s1,ada@x.edu,A,
"Núñez de la Cruz, Zoë",12346,s2,zoe@x.edu,A,
"""
CLASSROOM = '"identifier","github_username","github_id","name"\n"Ada Lovelace","adalovelace","77",""\n'
MOODLE = (
    "First name;Last name;ID number;Email address;Groups\nAda;Lovelace;0815;ada@x.edu;Red\nBob;Lee;0816;b@x.edu;Red\n"
)


def read(tmp_path, text):
    path = tmp_path / "class.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return rosters.read(path)


def names(found):
    return [student.student for student in found]


@pytest.mark.parametrize(
    ("text", "name", "identity", "expected"),
    [
        (CANVAS, "lovelaceada", "12345", ["Lovelace, Ada"]),
        (CANVAS, "Ada Lovelace", "", ["Lovelace, Ada"]),
        (CANVAS, "nunezdelacruzzoe", "", ["Núñez de la Cruz, Zoë"]),
        (CANVAS, "zo", "12346", ["Núñez de la Cruz, Zoë"]),  # by the number, where the name is unknown
        (CANVAS, "pointspossible", "", []),
        (MOODLE, "Ada Lovelace", "123456", ["Ada Lovelace"]),
        (MOODLE, "ada", "", ["Ada Lovelace"]),  # by the e-mail address
        (MOODLE, "red", "", ["Ada Lovelace", "Bob Lee"]),
        (MOODLE, "Participant_123", "123", []),
        ("Identifier,Full name\nParticipant 123,Ada\n", "Participant_123", "123", ["Ada"]),
    ],
)
def test_exports_of_platforms_are_class_lists(tmp_path, text, name, identity, expected):
    assert names(read(tmp_path, text).senders(name, identity)) == expected


def test_a_name_of_github_is_nobodys_real_name_or_login(tmp_path):
    list_ = read(tmp_path, CLASSROOM + '"Bob Lee","ada-lovelace","78","Bob Lee"\n')
    assert names(list_.senders("AdaLovelace", "", "classroom")) == ["Ada Lovelace"]
    assert names(list_.senders("ada-lovelace", "", "classroom")) == ["Bob Lee"]
    assert list_.senders("bob-lee", "", "classroom") == []  # whoever registered that name
    (told,) = rosters.applied(*handed_in(("bob-lee", "classroom", "", False)), list_)[1]
    assert told.student == "bob-lee" and "no row of the class list" in told.warnings[0]


def test_namesakes_are_told_apart_by_their_numbers(tmp_path):
    both = read(tmp_path, "student,id\nAda,1\nAda,2\n")
    assert names(both.students) == ["Ada (1)", "Ada (2)"]
    assert names(both.senders("Ada", "2")) == ["Ada (2)"] and names(both.senders("Ada")) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "nickname,age\nada,7\n",
            r"no column of names: its first row is 'nickname', 'age'; name one of them student or",
        ),
        ("student,id\nada,1\n,\n,,\n", r"row 4: 3 cells, not 2"),
        ("student,email\nada,\n,b@x\n", r"row 3: no name; fill in student"),
        ("student,id\nada,1\nada,1\n", r"row 3: 'ada' is already in row 2; delete one"),
        ("student,section\nada,A\nada,B\n", r"row 3: 'ada' is already in row 2; delete one"),
        ("student,name\nada,ada\n", r"'student' and 'name' both mean student; delete one column"),
        ("student,github\nada,a\nada,b\n", r"'ada' is in two rows; give both an id"),
        ("student,id\nada,7\nbob,7\n", r"row 3: 'bob' has the id '7', as 'ada' has in row 2; correct one of the two"),
        ("student\n", r"names no student"),
        ("", r"is empty; save it as CSV, with a first row of headings"),
        ("\n , \n", r"is empty; save it as CSV, with a first row of headings"),
        ("sep=;\n", r"is empty; save it as CSV, with a first row of headings"),
        (b"PK\x03\x04\x14\x00", r"is an Excel workbook; save it as CSV in UTF-8"),
        (b"\xd0\xcf\x11\xe0\xa1", r"is an Excel workbook; save it as CSV in UTF-8"),
        (b"student\n\xff\xfe\n", r"is not UTF-8"),
    ],
)
def test_a_bad_class_list_is_explained(tmp_path, text, said):
    with pytest.raises(DataError, match=rf"class\.csv.*{said}"):
        read(tmp_path, text)


@pytest.mark.parametrize(
    "text",
    [
        "sep=;\nstudent;id\nLee, Ada;7\n",
        "SEP=\t\r\nstudent\tid\r\nLee, Ada\t7\r\n",
        "\n;\nstudent;id\nLee, Ada;7\n",
        "sep=|\nstudent|id\nLee, Ada|7\n",
    ],
)
def test_a_first_line_with_the_separator_and_blank_lines_are_passed_over(tmp_path, text):
    (ada,) = read(tmp_path, text).students
    assert (ada.student, ada.id) == ("Lee, Ada", "7")


def test_a_row_keeps_its_number_behind_blank_lines(tmp_path):
    with pytest.raises(DataError, match="row 6: no name"):
        read(tmp_path, "sep=,\n\nstudent,id,email\n\nada,1,\n,,x@y\n")


def test_a_missing_class_list_is_explained(tmp_path):
    with pytest.raises(DataError, match=r"nowhere\.csv cannot be read: No such file .* name the CSV file"):
        rosters.read(tmp_path / "nowhere.csv")


def handed_in(*senders, lab="05_kl"):
    """Files and results of these senders: (student, system, identity, late)."""
    every = [
        Found(student, Path(f"/class/{place}.ipynb"), Path("/class"), system=system, identity=identity, late=late)
        for place, (student, system, identity, late) in enumerate(senders)
    ]
    return every, [Result(each.student, lab, each.path, each.path, 2, "") for each in every]


def test_results_get_the_name_and_the_group_of_the_list(tmp_path):
    every, results = handed_in(("Ada Lovelace", "moodle", "1", True), ("eve", "", "", False))
    files, (ada, eve) = rosters.applied(every, results, read(tmp_path, MOODLE))
    assert files == every
    assert (ada.student, ada.group, ada.late, ada.identity, ada.warnings) == (
        "Ada Lovelace",
        "Red",
        True,
        "1",
        [rosters.LATE],
    )
    assert eve.student == "eve" and "no row of the class list" in eve.warnings[0]


def test_a_notebook_of_a_group_counts_for_each_member(tmp_path):
    every, results = handed_in(("red", "canvas", "55", False))
    files, both = rosters.applied(every, results, read(tmp_path, MOODLE))
    assert names(both) == ["Ada Lovelace", "Bob Lee"] and files == every * 2


def test_two_students_of_one_name_keep_a_row_each():
    every, results = handed_in(("Ada", "moodle", "1", False), ("Ada", "moodle", "2", False))
    files, told = rosters.applied(every, results, None)
    kept = repeats.one_each(files, told)
    assert names(kept) == ["Ada (1)", "Ada (2)"] and all("another student" in each.warnings[0] for each in kept)
    again, same = rosters.applied(*handed_in(("Ada", "moodle", "1", False), ("Ada", "moodle", "1", False)), None)
    assert names(repeats.one_each(again, same)) == ["Ada"]


LOVELACE = "Name,ID\nAda Lovelace,1001\nBob Lee,1010\n"
ADA_1, ADA_2 = ("Ada Lovelace", "moodle", "1001", False), ("ada lovelace", "moodle", "1010", False)


def test_of_two_submissions_of_one_name_the_list_gets_the_one_with_its_number(tmp_path):
    _, (first, second) = rosters.applied(*handed_in(ADA_1, ADA_2), read(tmp_path, LOVELACE))
    assert (first.student, first.warnings) == ("Ada Lovelace", ())
    assert second.student == "ada lovelace (1010)" and rosters.OTHER_NUMBER in second.warnings


def test_numbers_of_canvas_tell_namesakes_apart_in_different_labs(tmp_path):
    """Canvas gives a student one number, Moodle another one in each assignment."""
    for system, student in (("canvas", "Ada Lovelace (1010)"), ("moodle", "Ada Lovelace")):
        two = [
            handed_in(("Ada Lovelace", system, number, False), lab=lab)
            for number, lab in (("1001", "05_kl"), ("1010", "04_guards"))
        ]
        every, results = ([*first, *second] for first, second in zip(*two, strict=True))
        assert names(rosters.applied(every, results, read(tmp_path, LOVELACE))[1]) == ["Ada Lovelace", student]


def test_files_of_no_lab_from_two_assignments_of_moodle_are_one_students(tmp_path):
    both = handed_in(("Ada Lovelace", "moodle", "7", False), ("Ada Lovelace", "moodle", "8", False), lab="")
    for list_ in (None, read(tmp_path, LOVELACE)):
        assert names(rosters.applied(*both, list_)[1]) == ["Ada Lovelace"] * 2


def test_another_name_with_the_students_number_makes_no_namesake(tmp_path):
    both = handed_in(("Zed", "moodle", "1001", False), ("Ada Lovelace", "moodle", "9", False))
    assert names(rosters.applied(*both, read(tmp_path, LOVELACE))[1]) == ["Ada Lovelace"] * 2


def test_two_submissions_of_one_name_without_a_known_number_keep_a_row_each(tmp_path):
    strangers = [(*ADA_1[:2], number, False) for number in ("7", "8")]
    files, told = rosters.applied(*handed_in(*strangers), read(tmp_path, LOVELACE))
    assert names(repeats.one_each(files, told)) == ["Ada Lovelace (7)", "Ada Lovelace (8)"]
    assert all(rosters.OTHER_NUMBER in each.warnings for each in told)


def test_a_class_list_writes_its_accents_as_submissions_do(tmp_path):
    decomposed, composed = (unicodedata.normalize(form, "Zoë") for form in ("NFD", "NFC"))
    list_ = read(tmp_path, f"name,group\n{decomposed},{decomposed}\n")
    assert [(each.student, each.group) for each in list_.students] == [(composed, composed)]


def test_a_number_of_no_namesake_in_the_list_is_nobodys(tmp_path):
    both = read(tmp_path, "student,id\nAda,1\nAda,2\nBob,3\n")
    assert names(both.senders("Ada", "3")) == []


def test_a_name_in_one_row_and_a_login_in_another_is_in_no_row(tmp_path):
    both = read(tmp_path, "name,login\nada,x\nbob,ada\n")
    (told,) = rosters.applied(*handed_in(("ada", "", "", False)), both)[1]
    assert told.student == "ada (unlisted)" and rosters.NOT_LISTED in told.warnings


def test_a_sender_who_is_not_in_the_list_never_shares_a_row_of_it(tmp_path):
    """A name of GitHub is its owner's choice, and may be the name of a student."""
    list_ = read(tmp_path, "name,github_username\nbob,robert\n")
    (told,) = rosters.applied(*handed_in(("bob", "classroom", "", False)), list_)[1]
    assert told.student == "bob (classroom)"


@pytest.mark.parametrize("cell", ["Red, Blue", "Red;Blue", " blue ; red "])
def test_a_member_of_several_groups_gets_the_notebook_of_each(tmp_path, cell):
    list_ = read(tmp_path, f'student,groups\n小明,"{cell}"\nAda,Red\n')
    assert names(list_.senders("red")) == ["小明", "Ada"] and names(list_.senders("Blue")) == ["小明"]
    assert names(list_.senders(cell)) == ["小明"]
    every, results = handed_in(("Red", "", "", False), ("Blue", "", "", False))
    marks = [[Mark("k3", "k3", "code", points, 2, RIGHT)] for points in (2.0, 1.0)]
    results = [dataclasses.replace(each, marks=mark) for each, mark in zip(results, marks, strict=True)]
    files, told = rosters.applied(every, results, list_)
    kept = {each.student: each.score for each in repeats.one_each(files, told, "best")}
    assert kept == {"小明": 2.0, "Ada": 2.0}
    assert {each.student: each.score for each in repeats.one_each(files, told)} == {"小明": 1.0, "Ada": 2.0}
