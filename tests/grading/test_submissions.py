"""Students and their notebooks: folder layouts, links that are not followed, and other files among them."""

import os
import pickle
import stat
import struct
import tracemalloc
import unicodedata
import zipfile
from pathlib import Path

import pytest

from grpo_lab.errors import DataError
from grpo_lab.grading import archives, intake, notebooks
from grpo_lab.grading.submissions import EMPTY, LINK, NOT_READ, found


def put(root, *files):
    for file in files:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_text("{}")


def seen(*paths):
    return [(each.student, each.path, each.problem) for each in found(paths)]


@pytest.mark.parametrize(
    ("file", "student"),
    [
        ("ann/05_kl/05_kl.ipynb", "ann"),  # nbgrader's
        ("ann/05_kl.ipynb", "ann"),
        ("ann/a/b/c/any.ipynb", "ann"),
        ("ann_05_kl.ipynb", "ann"),
        ("05_kl-ann.ipynb", "ann"),
        ("05_kl - Ann Lee.IPYNB", "Ann Lee"),
        ("lee_ann_1234_07_precision_and_verl.ipynb", "lee_ann_1234"),
        ("05_kl.ipynb", "bob"),  # the root is a student's own folder
        ("ann.ipynb", "ann"),
        ("05_klaus.ipynb", "05_klaus"),
    ],
)
def test_students_are_named_by_folder_or_file(tmp_path, file, student):
    root = tmp_path / "bob"
    put(root, file)
    assert seen(root) == [(student, file, "")]


ADA = "Ada Lovelace_123456_assignsubmission_file_"


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        (f"{ADA}/05_kl.ipynb", ("Ada Lovelace", "123456", False)),
        (f"{ADA}05_kl.ipynb", ("Ada Lovelace", "123456", False)),  # downloaded without folders
        (f"05_kl/{ADA}/05_kl.ipynb", ("Ada Lovelace", "123456", False)),  # a folder for each lab
        ("Zoë 王_de la Cruz_7_assignsubmission_onlinetext_/t.html", ("Zoë 王_de la Cruz", "7", False)),
        ("Participant_8812_assignsubmission_file_/05_kl.ipynb", ("Participant_8812", "8812", False)),
        ("lovelaceada_LATE_12345_67890_05_kl-1.ipynb", ("lovelaceada", "12345", True)),
        ("lovelaceada_12345_67890_05_kl.ipynb", ("lovelaceada", "12345", False)),
        ("lab-05-adalovelace/05_kl.ipynb", ("adalovelace", "", False)),
        ("05-kl-ada-lovelace/05_kl.ipynb", ("ada-lovelace", "", False)),
        # A student chooses the end of a name, and all deeper names: neither makes the file somebody else's.
        (f"{ADA}Bob_9_assignsubmission_file_05_kl.ipynb", ("Ada Lovelace", "123456", False)),
        ("evemallory_111_22222_bob_333_44444_05_kl.ipynb", ("evemallory", "111", False)),
        ("eve/bob_333_44444_05_kl.ipynb", ("eve", "", False)),
        ("eve/05_kl/lab-05-bob/05_kl.ipynb", ("eve", "", False)),
        ("lee_ann_1234_07_precision_and_verl.ipynb", ("lee_ann_1234", "", False)),  # no platform's
    ],
)
def test_names_of_platforms_tell_student_id_and_lateness(tmp_path, file, expected):
    put(tmp_path, file)
    (one,) = found([tmp_path])
    assert (one.student, one.identity, one.late) == expected


def test_a_clone_of_a_github_classroom_names_its_assignment(tmp_path):
    root = tmp_path / "kl-divergence-submissions"
    put(root, "kl-divergence-ada-l/05_kl.ipynb")
    assert [each.student for path in (tmp_path, root, root / "kl-divergence-ada-l") for each in found([path])] == [
        "ada-l",
        "ada-l",
        "ada-l",
    ]


@pytest.mark.parametrize("rule", [{"pattern": "(?P<student>"}, {"pattern": "a"}, {}])
def test_a_wrong_rule_of_names_is_an_error_in_a_line(monkeypatch, rule):
    monkeypatch.setattr(intake, "data_tables", lambda name: {"names": [rule]})
    with pytest.raises(DataError, match=r"data/intake\.toml: the rule"):
        intake._patterns.__wrapped__()


def test_files_are_found_once_in_order(tmp_path):
    put(tmp_path, "b/2.ipynb", "b/1.ipynb", "a/x.ipynb", "a/notes.txt", "c.ipynb")
    expected = [
        ("a", "a/notes.txt", NOT_READ),
        ("a", "a/x.ipynb", ""),
        ("b", "b/1.ipynb", ""),
        ("b", "b/2.ipynb", ""),
        ("c", "c.ipynb", ""),
    ]
    assert seen(tmp_path) == expected
    assert seen(tmp_path, tmp_path / "a", tmp_path / "b" / ".." / "c.ipynb") == expected


def test_paths_may_be_seen_from_the_current_folder(tmp_path, monkeypatch):
    put(tmp_path, "ann/x.ipynb", "05_kl_bob.ipynb")
    monkeypatch.chdir(tmp_path)
    assert [student for student, *_ in seen(Path("."))] == ["bob", "ann"]
    assert seen(Path("05_kl_bob.ipynb")) == [("bob", "05_kl_bob.ipynb", "")]


def test_hidden_files_were_not_handed_in(tmp_path):
    put(tmp_path, "ann/.ipynb_checkpoints/x-checkpoint.ipynb", "ann/._x.ipynb", ".git/x.ipynb", "ann/x.ipynb")
    assert [file for _, file, _ in seen(tmp_path)] == ["ann/x.ipynb"]


def test_links_are_reported_and_not_followed(tmp_path):
    class_, elsewhere = tmp_path / "class", tmp_path / "elsewhere"
    put(class_, "ann/x.ipynb")
    put(elsewhere, "right.ipynb")
    for name, target in {
        "bob/x.ipynb": elsewhere / "right.ipynb",
        "cleo/x.ipynb": class_ / "ann" / "x.ipynb",  # inside, but another student's
        "dan/x.ipynb": tmp_path / "nowhere",
        "eve": elsewhere,
        "fay/all": class_,  # a loop
        "gus/x.ipynb": elsewhere,
        "hal/data.csv": elsewhere / "right.ipynb",
        "ivy/itself": class_ / "ivy" / "itself",
    }.items():
        (class_ / name).parent.mkdir(exist_ok=True)
        (class_ / name).symlink_to(target)
    links = [
        "bob/x.ipynb",
        "cleo/x.ipynb",
        "dan/x.ipynb",
        "eve",
        "fay/all",
        "gus/x.ipynb",
        "hal/data.csv",
        "ivy/itself",
    ]
    expected = [("ann", "ann/x.ipynb", ""), *((link.partition("/")[0], link, LINK) for link in links)]
    assert seen(class_) == expected
    assert seen(class_ / "eve") == [("eve", "eve", LINK)]  # also those that a shell's * has named


def test_folders_nested_deeper_than_functions_can_be(tmp_path):
    folders = [f"{tmp_path}/ann" + "/d" * depth for depth in range(1_200)]
    try:
        for folder in folders:
            os.mkdir(folder)
        put(Path(folders[-1]), "x.ipynb")
        assert [student for student, *_ in seen(tmp_path)] == ["ann"]
        os.unlink(f"{folders[-1]}/x.ipynb")
    finally:
        for folder in reversed(folders):  # too deep for pytest to clear away
            os.rmdir(folder)


def test_a_folder_that_cannot_be_listed_is_reported(tmp_path, monkeypatch):
    put(tmp_path, "ann/x.ipynb", "bob/x.ipynb")
    listed = os.scandir

    def scandir(folder):
        if os.path.basename(folder) == "bob":
            raise PermissionError(13, "Permission denied")
        return listed(folder)

    monkeypatch.setattr(os, "scandir", scandir)
    problem = "a folder that cannot be listed: Permission denied"
    assert seen(tmp_path) == [("ann", "ann/x.ipynb", ""), ("bob", "bob", problem)]
    assert seen(tmp_path / "ann", tmp_path / "bob")[1] == ("bob", "bob", problem)


def test_names_that_are_no_text_can_be_written_down(tmp_path):
    put(tmp_path, os.fsdecode(b"\xff\n\xe2\x80\xaeann/x.ipynb"))
    ((student, *_),) = seen(tmp_path)
    assert student == "\\udcff\\n\\u202eann" and student.encode()


def test_a_name_is_the_same_however_a_system_writes_its_accents(tmp_path):
    """A zip of macOS holds names with accents as characters of their own."""
    for number, form in enumerate(("NFC", "NFD")):
        put(tmp_path, unicodedata.normalize(form, f"Zoë/{number}.ipynb"))
    assert {student for student, *_ in seen(tmp_path)} == {unicodedata.normalize("NFC", "Zoë")}


def test_everything_handed_in_has_a_row(tmp_path):
    put(tmp_path, "ann/report.pdf", "bob/timestamp.txt", "cy/05_kl.ipynb", "dan/a/x.py", "report_eve.pdf")
    (tmp_path / "fay" / "empty").mkdir(parents=True)
    assert seen(tmp_path) == [
        ("ann", "ann/report.pdf", NOT_READ),
        ("bob", "bob", EMPTY),
        ("cy", "cy/05_kl.ipynb", ""),
        ("dan", "dan/a/x.py", NOT_READ),
        ("fay", "fay/empty", EMPTY),
        ("report_eve", "report_eve.pdf", NOT_READ),
    ]
    assert seen(tmp_path / "fay" / "empty") == [("empty", "empty", EMPTY)]
    assert len(found([tmp_path], skip=[tmp_path / "ann", tmp_path / "report_eve.pdf"])) == 4


def zipped(path, **files):
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(name, text)


def test_notebooks_are_read_from_a_zip(tmp_path):
    zipped(tmp_path / "05_kl_ann.zip", **{"a/05_kl.ipynb": "{}", "__MACOSX/a/._05_kl.ipynb": "", "r.pdf": ""})
    one, two = found([tmp_path])
    assert (one.student, one.path, one.problem) == ("ann", "05_kl_ann.zip/a/05_kl.ipynb", "")
    assert (two.path, two.problem) == ("05_kl_ann.zip/r.pdf", NOT_READ)
    read = notebooks.read(one, 100)
    assert "names no version" in read.problem and read.digest == notebooks.digest(one, 100) != ""
    assert read.file == "05_kl_ann.zip/a/05_kl.ipynb"


def test_a_zip_in_a_zip_is_refused_as_such(tmp_path):
    zipped(tmp_path / "ann.zip", **{"inner.ZIP": "PK", "05_kl.ipynb": "{}"})
    notebook, inner = found([tmp_path])
    assert (notebook.problem, inner.problem) == ("", archives.ZIP_IN_ZIP)


@pytest.mark.parametrize(
    ("name", "student"),
    [
        ("05_kl_2026_11_24T01_02_03_123456.zip", "bob"),  # the root is a student's own folder
        ("ann/05_kl_2026_11_24T01_02_03_123456.zip", "ann"),
        ("ann_05_kl_2026_11_24T01_02_03.zip", "ann"),
        ("lovelaceada_12345_67890_05_kl_2026_11_24T01_02_03_123456.zip", "lovelaceada"),
    ],
)
def test_a_zip_of_otter_is_its_notebook(tmp_path, name, student, monkeypatch):
    """Its log is a pickle that would run code: it has no row, and no byte of it is read."""
    monkeypatch.setattr(pickle, "loads", lambda *_: pytest.fail("a pickle of a student was read"))
    root = tmp_path / "bob"
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    others = {"__zip_filename__": name, ".OTTER_LOG": "cos\nsystem\n(S'true'\ntR.", "05_kl.pdf": "", "data/run.csv": ""}
    zipped(root / name, **{"05_kl.ipynb": "{}", **others})
    (one,) = found([root])
    assert (one.student, one.member, one.problem) == (student, "05_kl.ipynb", "")
    assert notebooks.read(one, 1 << 20).lab == "05_kl"


def test_a_zip_of_otter_without_a_notebook_has_a_row(tmp_path):
    zipped(tmp_path / "ann.zip", **{"__zip_filename__": "ann.zip", ".OTTER_LOG": ""})
    (one,) = found([tmp_path])
    assert one.problem == "a zip without a notebook; hand in the notebook"


def test_a_zip_can_neither_lead_out_nor_fill_the_memory(tmp_path):
    link = zipfile.ZipInfo("link.ipynb")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "ann.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("../../out.ipynb", "{}")
        archive.writestr("/root.ipynb", "{}")
        archive.writestr("bomb.ipynb", b"0" * 50_000_000)
        archive.writestr(link, "/etc/passwd")
    up, root, bomb, linked = found([tmp_path])
    assert "leads out" in root.problem and "leads out" in up.problem
    assert linked.problem == archives.LINK_IN_ZIP and bomb.problem == ""
    assert "larger than 1,000 bytes" in notebooks.read(bomb, 1_000).problem
    assert [path.name for path in tmp_path.iterdir()] == ["ann.zip"]


def test_a_zip_that_cannot_be_read_has_a_row(tmp_path):
    (tmp_path / "bad.zip").write_bytes(b"PK\x03\x04 no zip")
    zipped(tmp_path / "many.zip", **{f"{number}.ipynb": "" for number in range(archives.MAX_FILES + 1)})
    zipped(tmp_path / "none.zip")
    bad, many, none = found([tmp_path])
    assert "cannot be read" in bad.problem and "201 files" in many.problem and "without files" in none.problem


def nameless(file, count):
    """Write a zip whose list has so many files without a name, of which its end tells one; the bytes of the list."""
    listed = (b"PK\x01\x02" + bytes(42)) * count
    file.write_bytes(listed + struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 1, 1, len(listed), 0, 0))
    return len(listed)


def test_a_file_without_a_name_in_a_zip_has_a_row(tmp_path):
    nameless(tmp_path / "ann.zip", 1)
    assert seen(tmp_path) == [("ann", "ann.zip", NOT_READ)]


def test_a_zip_of_very_many_names_is_refused_before_they_are_read(tmp_path):
    listed = nameless(tmp_path / "ann.zip", 200_000)
    tracemalloc.start()
    (many,) = found([tmp_path])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert f"{listed:,}" in many.problem and f"{archives.MAX_LISTED:,}" in many.problem
    assert peak < archives.MAX_LISTED


def test_nothing_found_says_what_to_name(tmp_path):
    with pytest.raises(DataError, match=r"no notebook .* name the folder"):
        found([])
    with pytest.raises(DataError, match="nowhere: no such file"):
        found([tmp_path, tmp_path / "nowhere"])
