"""Students and their notebooks: folder layouts, links that are not followed, zips, and other files among them."""

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
from grpo_lab.grading import archives, notebooks
from grpo_lab.grading.submissions import EMPTY, LINK, NO_FILES, NO_NOTEBOOK, NOT_READ, found


def put(root, *files):
    for file in files:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_text("{}")


def seen(*paths):
    return [(each.student, each.path, each.problem) for each in found(paths)]


ADA = "Ada Lovelace_123456_assignsubmission_file_"


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("ann/05_kl/05_kl.ipynb", ("ann", "", False)),  # nbgrader's
        ("ann/05_kl.ipynb", ("ann", "", False)),
        ("ann/a/b/c/any.ipynb", ("ann", "", False)),
        ("ann_05_kl.ipynb", ("ann", "", False)),
        ("05_kl-ann.ipynb", ("ann", "", False)),
        ("05_kl - Ann Lee.IPYNB", ("Ann Lee", "", False)),
        ("05_kl.ipynb", ("bob", "", False)),  # the root is a student's own folder
        ("ann.ipynb", ("ann", "", False)),
        ("05_klaus.ipynb", ("05_klaus", "", False)),
        (f"{ADA}/05_kl.ipynb", ("Ada Lovelace", "123456", False)),
        (f"{ADA}05_kl.ipynb", ("Ada Lovelace", "123456", False)),  # downloaded without folders
        (f"05_kl/{ADA}/05_kl.ipynb", ("Ada Lovelace", "123456", False)),  # a folder for each lab
        ("Zoë 王_de la Cruz_7_assignsubmission_onlinetext_/t.html", ("Zoë 王_de la Cruz", "7", False)),
        ("Participant_8812_assignsubmission_file_/05_kl.ipynb", ("Participant_8812", "8812", False)),
        ("lovelaceada_LATE_12345_67890_05_kl-1.ipynb", ("lovelaceada", "12345", True)),
        ("lovelaceada_12345_67890_05_kl.ipynb", ("lovelaceada", "12345", False)),
        ("lab-05-adalovelace/05_kl.ipynb", ("adalovelace", "", False)),
        ("05-kl-ada-lovelace/05_kl.ipynb", ("ada-lovelace", "", False)),
        ("kl-submissions/kl-ada-l/05_kl.ipynb", ("ada-l", "", False)),
        # A student chooses the end of a name, and all deeper names: neither makes the file somebody else's.
        (f"{ADA}Bob_9_assignsubmission_file_05_kl.ipynb", ("Ada Lovelace", "123456", False)),
        ("evemallory_111_22222_bob_333_44444_05_kl.ipynb", ("evemallory", "111", False)),
        ("eve/bob_333_44444_05_kl.ipynb", ("eve", "", False)),
        ("eve/05_kl/lab-05-bob/05_kl.ipynb", ("eve", "", False)),
        ("lee_ann_1234_07_precision_and_verl.ipynb", ("lee_ann_1234", "", False)),  # no platform's
    ],
)
def test_the_name_of_a_submission_tells_student_id_and_lateness(tmp_path, file, expected):
    put(tmp_path / "bob", file)
    (one,) = found([tmp_path / "bob"])
    assert (one.student, one.identity, one.late, one.path, one.root) == (*expected, file, tmp_path / "bob")


def test_the_folder_of_a_clone_may_be_named_itself(tmp_path):
    root = tmp_path / "kl-divergence-submissions"
    put(root, "kl-divergence-ada-l/05_kl.ipynb")
    for path in (tmp_path, root, root / "kl-divergence-ada-l"):
        assert [each.student for each in found([path])] == ["ada-l"]


def test_everything_handed_in_has_one_row_in_order(tmp_path, monkeypatch):
    put(tmp_path, "ann/report.pdf", "bob/timestamp.txt", "cy/2.ipynb", "cy/1.ipynb", "dan/a/x.py", "report_eve.pdf")
    put(tmp_path, "cy/.ipynb_checkpoints/x.ipynb", ".git/x.ipynb")
    (tmp_path / "fay" / "empty").mkdir(parents=True)
    expected = [
        ("ann", "ann/report.pdf", NOT_READ),
        ("bob", "bob", EMPTY),
        ("cy", "cy/1.ipynb", ""),
        ("cy", "cy/2.ipynb", ""),
        ("dan", "dan/a/x.py", NOT_READ),
        ("fay", "fay/empty", EMPTY),
        ("report_eve", "report_eve.pdf", NOT_READ),
    ]
    assert seen(tmp_path) == seen(tmp_path, tmp_path / "cy", tmp_path / "fay" / ".." / "report_eve.pdf") == expected
    assert seen(tmp_path / "fay" / "empty") == [("empty", "empty", EMPTY)]
    assert len(found([tmp_path], skip=[tmp_path / "ann", tmp_path / "report_eve.pdf"])) == 5
    monkeypatch.chdir(tmp_path)
    assert seen(Path(".")) == expected and seen(Path("report_eve.pdf")) == expected[-1:]


def test_links_are_reported_and_not_followed(tmp_path):
    class_, elsewhere = tmp_path / "class", tmp_path / "elsewhere"
    put(class_, "ann/x.ipynb")
    put(elsewhere, "right.ipynb")
    links = {
        "bob/x.ipynb": elsewhere / "right.ipynb",
        "cleo/x.ipynb": class_ / "ann" / "x.ipynb",  # inside, but another student's
        "dan/x.ipynb": tmp_path / "nowhere",
        "eve": elsewhere,
        "fay/all": class_,  # a loop
        "hal/data.csv": elsewhere / "right.ipynb",
        "ivy/itself": class_ / "ivy" / "itself",
    }
    for name, target in links.items():
        (class_ / name).parent.mkdir(exist_ok=True)
        (class_ / name).symlink_to(target)
    assert seen(class_) == [("ann", "ann/x.ipynb", ""), *((link.partition("/")[0], link, LINK) for link in links)]
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


def test_names_that_are_no_text_can_be_written_down_and_accents_make_no_difference(tmp_path):
    put(tmp_path / "a", os.fsdecode(b"\xff\n\xe2\x80\xaeann/x.ipynb"))
    ((student, *_),) = seen(tmp_path / "a")
    assert student == "\\udcff\\n\\u202eann" and student.encode()
    for number, form in enumerate(("NFC", "NFD")):  # a zip of macOS holds accents as characters of their own
        put(tmp_path / "b", unicodedata.normalize(form, f"Zoë/{number}.ipynb"))
    assert {student for student, *_ in seen(tmp_path / "b")} == {unicodedata.normalize("NFC", "Zoë")}


def test_nothing_found_says_what_to_name(tmp_path):
    with pytest.raises(DataError, match=r"no notebook .* name the folder"):
        found([])
    with pytest.raises(DataError, match="nowhere: no such file"):
        found([tmp_path, tmp_path / "nowhere"])


# --- zips --------------------------------------------------------------------------------------------------------


def zipped(path, **files):
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(name, text)


def test_notebooks_are_read_from_a_zip(tmp_path):
    zipped(tmp_path / "05_kl_ann.zip", **{"a/05_kl.ipynb": "{}", "__MACOSX/a/._05_kl.ipynb": "", "i.ZIP": "", "r": ""})
    one, inner, other = found([tmp_path])
    assert (one.student, one.path, one.problem) == ("ann", "05_kl_ann.zip/a/05_kl.ipynb", "")
    assert (inner.problem, other.problem) == (archives.ZIP_IN_ZIP, NOT_READ)
    read = notebooks.read(one, 100)
    assert "names no version" in read.problem and read.digest == notebooks.digest(one, 100) != ""
    assert read.file == "05_kl_ann.zip/a/05_kl.ipynb"


@pytest.mark.parametrize(
    ("name", "student"),
    [
        ("05_kl_2026_11_24T01_02_03_123456.zip", "bob"),  # the root is a student's own folder
        ("ann_05_kl_2026_11_24T01_02_03.zip", "ann"),
        ("lovelaceada_12345_67890_05_kl_2026_11_24T01_02_03_123456.zip", "lovelaceada"),
    ],
)
def test_a_zip_of_otter_is_its_notebook(tmp_path, name, student, monkeypatch):
    """Its log is a pickle that would run code: it has no row, and no byte of it is read."""
    monkeypatch.setattr(pickle, "loads", lambda *_: pytest.fail("a pickle of a student was read"))
    others = {"__zip_filename__": name, ".OTTER_LOG": "cos\nsystem\n(S'true'\ntR.", "05_kl.pdf": "", "data/run.csv": ""}
    zipped(tmp_path / "bob" / name, **{"05_kl.ipynb": "{}", **others})
    (one,) = found([tmp_path / "bob"])
    assert (one.student, one.member, one.problem) == (student, "05_kl.ipynb", "")
    assert notebooks.read(one, 1 << 20).lab == "05_kl"


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


def nameless(file, count):
    """Write a zip whose list has so many files without a name, of which its end tells one; the bytes of the list."""
    listed = (b"PK\x01\x02" + bytes(42)) * count
    file.write_bytes(listed + struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 1, 1, len(listed), 0, 0))
    return len(listed)


def test_a_zip_that_cannot_be_read_has_a_row(tmp_path):
    (tmp_path / "bad.zip").write_bytes(b"PK\x03\x04 no zip")
    zipped(tmp_path / "exported.zip", **{"__zip_filename__": "", ".OTTER_LOG": ""})
    zipped(tmp_path / "many.zip", **{f"{number}.ipynb": "" for number in range(archives.MAX_FILES + 1)})
    nameless(tmp_path / "nameless.zip", 1)
    zipped(tmp_path / "none.zip")
    bad, exported, many, no_name, none = (each.problem for each in found([tmp_path]))
    assert "cannot be read" in bad and "201 files" in many
    assert (exported, no_name, none) == (NO_NOTEBOOK, NOT_READ, NO_FILES)


def test_a_zip_of_two_million_names_is_refused_before_they_are_read(tmp_path):
    listed = nameless(tmp_path / "ann.zip", 2_000_000)
    tracemalloc.start()
    (many,) = found([tmp_path])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert f"{listed:,}" in many.problem and f"{archives.MAX_LISTED:,}" in many.problem
    assert peak < archives.MAX_LISTED
