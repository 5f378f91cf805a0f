"""Hostile notebooks: every fault becomes a text, and only answers come out."""

import hashlib
import json
import os
import signal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_lab.course import answers, registry
from grpo_lab.course.editions import build
from grpo_lab.errors import DataError
from grpo_lab.grading import archives
from grpo_lab.grading.notebooks import MAX_SOURCE, digest, read
from grpo_lab.grading.submissions import LINK, Found

LABS = Path(__file__).parents[2] / "labs"
MOST = 10 * 2**20
SOLVED = build.notebook(LABS, "05_kl", build.INSTRUCTOR).encode()
EXERCISES = list(registry.lab_page("05_kl").exercises)
unicode_text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"))


@pytest.fixture(scope="module")
def grade(tmp_path_factory):
    """Reads a notebook given as bytes or as a tree."""
    file = tmp_path_factory.mktemp("class") / "ann.ipynb"

    def of(notebook, most=MOST):
        file.write_bytes(notebook if isinstance(notebook, bytes) else json.dumps(notebook).encode())
        return read(Found("ann", file, file.parent), most)

    return of


def notebook(*cells, **other):
    return {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": list(cells), **other}


def code(source, identity="a", **other):
    return {"cell_type": "code", "id": identity, "source": source, "metadata": {}, "outputs": [], **other}


LAB = code('import grpo_lab as gl\nlab = gl.Lab("05_kl")', "05_kl-02")


def with_k3(*cells):
    """Lab 5, solved, with these cells in place of that of the exercise k3."""
    tree = json.loads(SOLVED)
    place = next(number for number, cell in enumerate(tree["cells"]) if cell["id"] == "05_kl-k3")
    tree["cells"][place : place + 1] = cells
    return tree


@pytest.mark.parametrize("lab", registry.course_labs())
def test_the_reference_has_every_answer_and_the_untouched_lab_none(grade, lab):
    page = registry.lab_page(lab)
    solved = grade(build.notebook(LABS, lab, build.INSTRUCTOR).encode())
    assert (solved.student, solved.file, solved.lab, solved.problem) == ("ann", "ann.ipynb", lab, "")
    assert list(solved.answers) == list(page.exercises) and not solved.notes
    blank = grade(build.place(LABS, lab).read_bytes())
    assert blank.lab == lab and not blank.answers and not blank.problem
    assert all("waits for an answer in line" in blank.notes[name] for name in page.exercises)


def test_an_answer_is_the_file_that_a_learners_cell_writes(grade, tmp_path, monkeypatch):
    from grpo_lab.ui.notebook import Lab

    monkeypatch.chdir(tmp_path)
    cell = next(cell for cell in json.loads(SOLVED)["cells"] if cell["id"] == "05_kl-forecast")
    Lab("05_kl").exercise("forecast", "".join(cell["source"]).partition("\n")[2])
    assert grade(SOLVED).answers["forecast"] == (tmp_path / "answers" / "05_kl" / "forecast.py").read_text()


def test_nothing_else_of_a_notebook_is_kept(grade):
    tree = json.loads(SOLVED)
    hostile = {"kernelspec": {"name": "evil"}, "widgets": {"state": {"a": ["<script>"]}}, "language_info": 3}
    tree["metadata"] = hostile
    for cell in tree["cells"]:
        cell["metadata"] = {"tags": ["skip", "remove_cell"], "nbgrader": {"points": 1e9}}
        cell["attachments"] = {"x.png": {"image/png": "AAAA"}}
        cell["outputs"] = [{"output_type": "stream", "text": "15 of 15"}, 7]
    plain, changed = grade(SOLVED), grade(tree)
    assert changed.answers == plain.answers and not changed.notes and not changed.problem
    assert "evil" not in repr(changed) and "15 of 15" not in repr(changed)


# --- files -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "not a notebook: the file is empty"),
        (b"\xef\xbb\xbf \n", "not a notebook: the file is empty"),
        (b"\xff\xfe\x00", "not a notebook: its characters cannot be read"),
        (b"{", "not a notebook: the file ends in the middle"),
        (b"\n<!DOCTYPE html><html>Log in</html>", "not a notebook: a web page"),
        (
            b'{"a": 1,\n<<<<<<< HEAD\n"b": 1\n=======\n"b": 2\n>>>>>>> ann\n}',
            "marks of a merge conflict, the first in line 2",
        ),
        (b"<<<<<<< HEAD\n{}", "marks of a merge conflict, the first in line 1"),
        (b"{\r\n  <<<<<<<\r\n}", "marks of a merge conflict, the first in line 2"),
        (b"%PDF-1.7 x", "not a notebook: a file of another kind"),
        (b'{"nbformat": 4,\n"cells" []}', "not a notebook: damaged in line 2"),
        (b'{"nbformat": 4} and more', "not a notebook: damaged in line 1"),
        (b"[" * 1_000_000, "nested too deeply"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b'{"nbformat": ' + b"4" * 100_000 + b"}", "a whole number of too many digits"),
        (b'{"nbformat": NaN}', "names no version"),
        (b'{"nbformat": 4, "cells": [-Infinity]}', "cell 1 is none of"),
        (b'{"nbformat": 4, "cells": [{"cell_type": "code", "source": NaN}]}', "cell 1 has a source or an id"),
        (
            b'{"nbformat": 4, "cells": [{"cell_type": "code", "source": "", "id": Infinity}]}',
            "cell 1 has a source or an id",
        ),
        (b"4", "names no version"),
        (b"{}", "names no version"),
        (b'{"nbformat": true, "cells": []}', "names no version"),
        (b'{"nbformat": 4.0, "cells": []}', "names no version"),
        (b'{"nbformat": 3, "worksheets": [{"cells": []}]}', "of format 3, and only 4 is read"),
        (b'{"nbformat": 5, "cells": []}', "of format 5, and only 4 is read"),
        (b'{"nbformat": 4}', "no list of cells"),
        (b'{"nbformat": 4, "cells": {}}', "no list of cells"),
        (b'{"nbformat": 4, "cells": [1]}', "cell 1 is none of code, markdown, raw"),
        (b'{"nbformat": 4, "cells": [{"cell_type": ["code"], "source": ""}]}', "cell 1 is none of"),
        (b'{"nbformat": 4, "cells": [{"cell_type": "heading", "source": ""}]}', "cell 1 is none of"),
        (b'{"nbformat": 4, "cells": [{"cell_type": "code"}]}', "cell 1 has a source or an id that is not a text"),
        (b'{"nbformat": 4, "cells": [{"cell_type": "code", "source": ["a", 1]}]}', "cell 1 has a source"),
        (b'{"nbformat": 4, "cells": [{"cell_type": "code", "source": "", "id": {}}]}', "cell 1 has a source"),
        (b'{"nbformat": 4, "cells": []}', "holds no lab's exercises"),
    ],
    ids=lambda value: str(value[:40]) if isinstance(value, bytes) else "",
)
def test_what_is_no_notebook_says_why_in_a_line(grade, data, problem):
    read = grade(data)
    assert problem in read.problem and "hand" in read.problem and read.problem.isprintable()
    assert not read.answers and not read.lab and read.digest == hashlib.sha256(data).hexdigest()


def test_a_file_that_was_cut_off_says_so(grade):
    whole = SOLVED.rstrip()
    ends = range(1, len(whole), 97)
    assert [end for end in ends if "the file ends in the middle" not in grade(whole[:end]).problem] == []


def test_a_number_that_json_lacks_is_no_fault_of_an_output(grade):
    """A plot of a run that exploded holds NaN, and outputs are not read."""
    tree = json.loads(SOLVED)
    data = {"application/json": {"loss": [float("nan"), float("inf"), -float("inf")]}}
    tree["cells"][0]["outputs"] = [{"output_type": "display_data", "metadata": {}, "data": data}]
    assert grade(tree).answers == grade(SOLVED).answers


def test_a_large_file_is_refused_and_not_read_to_its_end(tmp_path):
    file = tmp_path / "ann.ipynb"
    file.touch()
    os.truncate(file, 500 * 2**20)
    found = Found("ann", file, tmp_path)
    refused = read(found, MOST)
    assert "larger than 10,485,760 bytes" in refused.problem and digest(found, MOST) == ""
    assert refused.digest == hashlib.sha256(bytes(MOST + 1)).hexdigest()
    file.write_bytes(SOLVED)
    assert not read(found, len(SOLVED)).problem and "larger than" in read(found, len(SOLVED) - 1).problem
    assert read(found, len(SOLVED)).digest == digest(found, len(SOLVED)) == hashlib.sha256(SOLVED).hexdigest()


def test_a_file_that_became_a_link_is_not_followed(tmp_path):
    (tmp_path / "right.ipynb").write_bytes(SOLVED)
    (tmp_path / "ann.ipynb").symlink_to(tmp_path / "right.ipynb")
    linked = read(Found("ann", tmp_path / "ann.ipynb", tmp_path), MOST)
    assert (linked.problem, linked.digest, linked.answers) == (LINK, "", {})


def test_a_pipe_a_folder_and_nothing_keep_nobody_waiting(tmp_path):
    os.mkfifo(tmp_path / "pipe.ipynb")
    (tmp_path / "folder.ipynb").mkdir()
    before = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("waits for a pipe"))
    signal.alarm(20)
    try:
        problems = [
            read(Found("ann", tmp_path / f"{name}.ipynb", tmp_path), MOST).problem
            for name in ("pipe", "folder", "nothing")
        ]
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    regular = "not a regular file; hand in the notebook itself"
    assert problems == [regular, regular, "cannot be read: No such file or directory"]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-32", "latin-1"])
def test_other_encodings_are_read(grade, encoding):
    tree = with_k3(code("%%exercise k3\nk3 = 'é'", "05_kl-k3"))
    data = json.dumps(tree, ensure_ascii=False).encode(encoding, "replace")
    assert grade(data).answers["k3"] == "# %%exercise k3\nk3 = 'é'\n"


@pytest.mark.parametrize(
    ("path", "lab"),
    [
        ("ann/05_kl/x.ipynb", "05_kl"),
        ("ann_05_kl.ipynb", "05_kl"),
        ("ann/05_KL (1).ipynb", "05_kl"),
        ("05_klaus.ipynb", ""),
        ("105_kl.ipynb", ""),
        ("05_kl/04_guards.ipynb", ""),
    ],
)
def test_an_unreadable_notebook_keeps_the_lab_of_its_name(tmp_path, path, lab):
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / path).write_text("{")
    unreadable = read(Found("ann", tmp_path / path, tmp_path), MOST)
    assert (unreadable.lab, "not a notebook" in unreadable.problem) == (lab, True)


def test_two_cells_of_an_exercise_wait_for_a_person(grade):
    assert grade(with_k3(code(GIVEN, "x"), code(OTHER, "y"))).undecided == {"k3"}
    assert grade(with_k3(code(GIVEN, "05_kl-k3"), code(OTHER, "05_kl-k3"))).undecided == {"k3"}
    assert grade(with_k3(code(STUB, "05_kl-k3"), code(GIVEN, "x"), code(OTHER, "y"))).undecided == {"k3"}
    assert grade(with_k3(code(GIVEN, "05_kl-k3"), code(OTHER, "y"))).undecided == frozenset()


# --- which lab ---------------------------------------------------------------------------------------------------


def test_the_lab_is_the_one_most_of_whose_exercises_are_there(grade):
    stranger = code("answer = 'b'", "02_explosion-forecast")
    tree = json.loads(SOLVED)
    tree["cells"] += [stranger, code('lab = gl.Lab("02_explosion")', "z")]
    assert grade(tree).lab == "05_kl"


@pytest.mark.parametrize(("more", "lab"), [(1, "05_kl"), (0, "")])
def test_most_is_more_than_half(grade, more, lab):
    ids = [f"05_kl-{name}" for name in EXERCISES[: len(EXERCISES) // 2 + more]]
    assert grade(notebook(*(code("answer = 'b'", identity) for identity in ids))).lab == lab


def test_two_labs_in_one_notebook_are_refused(grade):
    both = json.loads(SOLVED)
    both["cells"] += json.loads(build.place(LABS, "04_guards").read_bytes())["cells"]
    assert grade(both).problem == "holds more than one lab, 04_guards and 05_kl; hand in a notebook for each"
    by_code = notebook(LAB, code('lab = Lab("04_guards")', "b"))
    assert "holds more than one lab, 04_guards and 05_kl" in grade(by_code).problem


def test_without_ids_the_code_says_which_lab_it_is(grade):
    tree = json.loads(SOLVED)
    for cell in tree["cells"]:
        del cell["id"]
    tree["nbformat_minor"] = 4
    found, expected = grade(tree), grade(SOLVED)
    assert found.lab == "05_kl" and found.answers == expected.answers
    assert all("lost its id; found by its first line" in found.notes[name] for name in EXERCISES)


# --- answers -----------------------------------------------------------------------------------------------------

GIVEN = "%%exercise k3\nimport torch\n\n\ndef k3(delta):\n    return delta\n"
OTHER = GIVEN.replace("return delta", "return 0")
STUB = GIVEN.replace("return delta", "...  # your answer")


@pytest.mark.parametrize(
    ("cells", "source", "note"),
    [
        ([code(GIVEN, "05_kl-k3")], f"# {GIVEN}", ""),
        ([code(GIVEN.splitlines(keepends=True), "05_kl-k3")], f"# {GIVEN}", ""),
        ([code(GIVEN.replace("\n", "\r\n"), "05_kl-k3")], f"# {GIVEN}", ""),
        ([code(f"\n\n{GIVEN}\n\n", "05_kl-k3")], f"# {GIVEN}", ""),
        ([code("k3 = 1", "05_kl-k3")], "k3 = 1\n", ""),  # the magic's line is gone, the cell is ours
        ([code(GIVEN, "x")], f"# {GIVEN}", "lost its id; found by its first line"),
        ([code(GIVEN, "05_kl-k3"), code("%%exercise k3\n1", "x")], f"# {GIVEN}", "the one that came with"),
        ([code(GIVEN, "05_kl-k3"), code(OTHER, "05_kl-k3")], None, "two cells have the id"),
        ([code(GIVEN, "x"), code(OTHER, "y")], None, "two cells begin with `%%exercise k3`; a person"),
        ([code(GIVEN, "05_kl-k3"), code(GIVEN, "05_kl-k3")], f"# {GIVEN}", ""),  # which one counts makes no difference
        ([code(GIVEN, "x"), code(GIVEN, "y")], f"# {GIVEN}", "lost its id; found by its first line"),
        ([code(STUB, "05_kl-k3"), code(GIVEN, "x")], f"# {GIVEN}", "still waits for an answer; another cell"),
        ([code("", "05_kl-k3"), code(GIVEN, "x")], f"# {GIVEN}", "still waits for an answer; another cell"),
        ([code(STUB, "05_kl-k3"), code(GIVEN, "x"), code(GIVEN, "y")], f"# {GIVEN}", "still waits for an answer"),
        ([code(STUB, "05_kl-k3"), code(GIVEN, "x"), code(OTHER, "y")], None, "two cells begin with `%%exercise k3`"),
        ([code(STUB, "05_kl-k3"), code(STUB + "\n", "x")], None, "waits for an answer in line 6"),
        ([code(STUB, "x"), code(GIVEN, "y")], f"# {GIVEN}", "lost its id; found by its first line"),
        ([code("k3 = '%d%%' % 1", "05_kl-k3")], "k3 = '%d%%' % 1\n", ""),
        ([code(f"%%time\n{GIVEN}", "05_kl-k3")], f"# {GIVEN}", ""),
        ([code(f"\n%%capture out --no-stdout\n\n%%time\n{GIVEN}", "05_kl-k3")], f"# {GIVEN}", ""),
        ([code(f"%%time\n{GIVEN}", "x")], f"# {GIVEN}", "lost its id; found by its first line"),
        ([code(f"%%timeit\n{GIVEN}", "05_kl-k3")], None, "its first line must be `%%exercise k3`"),
        ([code(f"# mine\n{GIVEN}", "05_kl-k3")], None, "its first line must be `%%exercise k3`"),
        ([code(GIVEN.replace("k3\n", "k3  # mine\n", 1), "05_kl-k3")], None, "its first line must be `%%exercise k3`"),
        (
            [code(GIVEN.replace("return", "# ...  # your answer\n    return"), "05_kl-k3")],
            "# " + GIVEN.replace("return", "# ...  # your answer\n    return"),
            "",
        ),
        ([], None, "its cell is not there any more; copy it"),
        ([code(f"# mine\n{GIVEN}", "x")], None, "its cell is not there any more"),
        ([{**code(GIVEN, "05_kl-k3"), "cell_type": "markdown"}], None, "is of type markdown; make it a code cell"),
        ([{**code(GIVEN, "x"), "cell_type": "raw"}], None, "its cell is not there any more"),
        ([code("%%exercise pulls\nanswer = 'a'", "05_kl-k3")], None, "first line must be `%%exercise k3`"),
        ([code("%%exercise k3\n...  # your answer", "05_kl-k3")], None, "waits for an answer in line 2"),
        ([code("%%exercise k3\n\n  \n", "05_kl-k3")], None, "its cell is empty"),
        ([code("", "05_kl-k3")], None, "its cell is empty"),
        ([code("%%exercise k3\n# " + "é" * (MAX_SOURCE // 2), "05_kl-k3")], None, "more than 64,000 bytes; shorten"),
        ([code("%%exercise k3\n'\x00'", "05_kl-k3")], None, "a character that is not allowed"),
        ([code("%%exercise k3\n'\ud800'", "05_kl-k3")], None, "a character that is not allowed"),
    ],
)
def test_which_cell_is_the_answer(grade, cells, source, note):
    found = grade(with_k3(*cells))
    assert found.answers.get("k3") == source
    assert note in found.notes.get("k3", "") and bool(note) == ("k3" in found.notes)
    others = [name for name in EXERCISES if name not in ("k3", "pulls")]
    assert all(name in found.answers for name in others)  # one bad cell is one bad cell


def test_a_copied_line_takes_no_other_exercises_place(grade):
    """A second cell that begins like another exercise's is only told of."""
    found = grade(with_k3(code("%%exercise pulls\nanswer = 'a'", "05_kl-k3")))
    assert found.answers["pulls"] == grade(SOLVED).answers["pulls"] and "came with" in found.notes["pulls"]


@given(source=unicode_text)
def test_sources_are_those_that_nbformat_reads(grade, source):
    nbformat = pytest.importorskip("nbformat")
    cell = code(f"%%exercise k3\n{source}", "05_kl-k3", execution_count=None)
    written = nbformat.v4.writes(nbformat.from_dict(notebook({**LAB, "execution_count": None}, cell)))
    found = grade(written.encode())
    body = source.replace("\r\n", "\n")
    if body.strip() and not answers.stub_line(body):
        assert found.answers["k3"] == answers.file_text("k3", body)
    else:
        assert "k3" in found.notes


# --- anything at all ---------------------------------------------------------------------------------------------


def sound(read):
    """Check the invariants of a submission: a lab with sources that can be written, or one line with the reason."""
    assert bool(read.lab) != bool(read.problem)
    assert set(read.answers) <= set(registry.lab_page(read.lab).exercises) if read.lab else not read.answers
    assert all(len(source.encode()) <= MAX_SOURCE + 100 and "\x00" not in source for source in read.answers.values())
    assert all(line.isprintable() and line.encode() for line in (*read.notes.values(), read.problem or "-"))


def test_a_zip_that_is_gone_by_now_has_a_reason(tmp_path):
    with pytest.raises(DataError, match="cannot be read"):
        archives.members(tmp_path / "gone.zip")


@given(st.binary() | st.text('{}[]",:0123456789truefalsenNaI\\ud8 ').map(str.encode))
def test_any_bytes(grade, data):
    sound(grade(data))


@given(st.data())
def test_a_notebook_with_other_bytes_in_it(grade, data):
    start = data.draw(st.integers(0, len(SOLVED)))
    end = data.draw(st.integers(start, min(len(SOLVED), start + 400)))
    sound(grade(SOLVED[:start] + data.draw(st.binary(max_size=20)) + SOLVED[end:]))
