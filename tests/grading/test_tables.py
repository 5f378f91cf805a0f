"""Tables that a person wrote: separators, blank rows, and errors that name the file and the row."""

import pytest

from grpo_lab.errors import DataError
from grpo_lab.grading import tables


def read(path):
    return tables.read(path, "name the file", "with a first row of headings")


def write(tmp_path, text):
    path = tmp_path / "marks.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("student,id\nada,1\n,\n,,\n", r"row 4: 3 cells, not 2"),
        ("", r"is empty; save it as CSV, with a first row of headings"),
        ("\n , \n", r"is empty; save it as CSV, with a first row of headings"),
        ("sep=;\n", r"is empty; save it as CSV, with a first row of headings"),
        (b"PK\x03\x04\x14\x00", r"is an Excel workbook; save it as CSV in UTF-8"),
        (b"\xd0\xcf\x11\xe0\xa1", r"is an Excel workbook; save it as CSV in UTF-8"),
        (b"student\n\xff\xfe\n", r"is not UTF-8"),
    ],
)
def test_a_bad_table_is_explained(tmp_path, text, said):
    with pytest.raises(DataError, match=rf"marks\.csv.*{said}"):
        read(write(tmp_path, text))


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
    ((_, row),) = read(write(tmp_path, text)).rows
    assert row == {"student": "Lee, Ada", "id": "7"}


def test_a_row_keeps_its_number_behind_blank_lines(tmp_path):
    assert [place for place, _ in read(write(tmp_path, "sep=,\n\nstudent,id\n\nada,1\n,\nbob,2\n")).rows] == [5, 7]


def test_a_missing_table_is_explained(tmp_path):
    with pytest.raises(DataError, match=r"nowhere\.csv cannot be read: No such file .* name the file"):
        read(tmp_path / "nowhere.csv")
