"""Class lists: names in any order and platform, groups, namesakes, and errors that name the row."""

from pathlib import Path

import pytest

from grpo_lab.errors import DataError
from grpo_lab.grading import repeats, rosters
from grpo_lab.grading.results import Result
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
        ("student\n", r"names no student"),
        ("", r"is not a table"),
        (b"student\n\xff\xfe\n", r"is not UTF-8"),
    ],
)
def test_a_bad_class_list_is_explained(tmp_path, text, said):
    with pytest.raises(DataError, match=rf"class\.csv.*{said}"):
        read(tmp_path, text)


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
