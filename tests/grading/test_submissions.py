"""Students and their notebooks: folder layouts, links that are not followed, and other files among them."""

import os
from pathlib import Path

import pytest

from grpo_lab.errors import DataError
from grpo_lab.grading.submissions import LINK, found


def put(root, *files):
    for file in files:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_text("{}")


def seen(*paths):
    return [(each.student, each.file.relative_to(each.root).as_posix(), each.problem) for each in found(paths)]


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


def test_files_are_found_once_in_order(tmp_path):
    put(tmp_path, "b/2.ipynb", "b/1.ipynb", "a/x.ipynb", "a/notes.txt", "c.ipynb")
    expected = [("a", "a/x.ipynb", ""), ("b", "b/1.ipynb", ""), ("b", "b/2.ipynb", ""), ("c", "c.ipynb", "")]
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
    links = ["bob/x.ipynb", "cleo/x.ipynb", "dan/x.ipynb", "eve", "fay/all", "gus/x.ipynb"]
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


def test_nothing_found_says_what_to_name(tmp_path):
    put(tmp_path, "ann/notes.txt")
    for paths in ([tmp_path], [tmp_path / "ann" / "notes.txt"], []):
        with pytest.raises(DataError, match=r"no notebook .* name the folder"):
            found(paths)
    with pytest.raises(DataError, match="nowhere: no such file"):
        found([tmp_path, tmp_path / "nowhere"])
