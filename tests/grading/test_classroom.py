"""Interruptions of grading: finished results are kept, the rest is graded later, and no process is left behind."""

import dataclasses
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from grpo_lab import cli
from grpo_lab.grading import class_run, submissions
from grpo_lab.grading.grader import Course
from grpo_lab.grading.results import FAILED, NOT_REACHED, RIGHT, UNANSWERED, Mark, Result
from grpo_lab.grading.rules import Rules
from grpo_lab.grading.sandbox import box
from grpo_lab.grading.sandbox.box import PROCESS
from grpo_lab.grading.sandbox.confinement import PR_SET_CHILD_SUBREAPER, descendants, prctl
from grpo_lab.grading.worker import WorkerClient
from grpo_lab.paths import labs_directory
from grpo_lab.runs import clusters
from grpo_lab.ui import console
from tests.grading import mutants

BLANK = labs_directory() / "05_kl" / "05_kl.ipynb"
WRITTEN = {"forecast": 'answer = "a"', "pulls": 'k1 = "c"\nk2 = "a"\nk3 = "b"\nhinge = "d"'}
"""Right answers: one point, and two."""
HOLDS, HELD = "import subprocess\n\nsubprocess.run(['sleep', '4711.25'])\n", "4711.25"
"""An answer that ends when it is killed, and the words of its command line."""
PATIENCE = 300.0
"""Seconds to wait for an event on a busy machine."""


@pytest.fixture(autouse=True)
def nobody_left():
    """Orphans become children of this process, so that a process left behind is found."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    before = set(descendants())
    yield
    wait_until("processes are left", lambda: set(descendants()) <= before)
    prctl(PR_SET_CHILD_SUBREAPER, 0)


@pytest.fixture
def unprobed(monkeypatch, contained):
    """Tier 2, without probing it again in each test."""
    contained(2)
    monkeypatch.setattr(box, "unusable", lambda tier, limits: "")


@pytest.fixture
def grade(monkeypatch, capsys, tmp_path):
    """`grade(*words)` in this process: exit code, standard output, standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("warnings.showwarning", None)
    for stream in (console.out, console.err):
        monkeypatch.setattr(stream, "_width", 120)

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["grpo-lab", "grade", *words])
        with pytest.raises(SystemExit) as end:
            cli.main()
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return end.value.code or 0, out, err

    return call


def wait_until(what, true):
    end = time.monotonic() + PATIENCE
    while not (answer := true()):
        assert time.monotonic() < end, f"after {PATIENCE:.0f} s: {what}"
        time.sleep(0.02)
    return answer


def meanwhile(true, act):
    """Act, in a thread, as soon as something is true."""
    thread = threading.Thread(target=lambda: act(wait_until("what was waited for did not come", true)), daemon=True)
    thread.start()
    return thread


def hand_in(file, title="", **answers):
    """The learner's notebook with these answers in it."""
    tree = json.loads(BLANK.read_text(encoding="utf-8"))
    tree["metadata"]["title"] = title  # another title, another file
    for cell in tree["cells"]:
        name = cell["id"].removeprefix("05_kl-")
        if name in answers:
            cell["source"] = f"%%exercise {name}\n{answers[name]}"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(tree), encoding="utf-8")


def rules(**settings):
    """A grading.toml in the current folder."""
    Path("grading.toml").write_text("".join(f"{name} = {value!r}\n" for name, value in settings.items()))
    return "--rules", "grading.toml", "--jobs", "1", "--out", "out"


def kept():
    """The results on disk, by student, and when each was written."""
    files = {file: file.stat().st_mtime_ns for file in Path("out/results").glob("*.json")}
    return {Result.from_json(file.read_text()).student: (file, written) for file, written in files.items()}


def result(student):
    return Result.from_json(kept()[student][0].read_text())


def statuses(student):
    return {mark.exercise: mark.status for mark in result(student).marks}


def running(words):
    """The pids of descendants whose command line holds these words."""
    found = []
    for pid in descendants():
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
        except OSError:
            continue  # it ended while we looked
        found += [pid] if words.encode() in command else []
    return found


@pytest.fixture
def interrupt(monkeypatch):
    """`interrupt()`: Ctrl-C arrives while the next notebook is graded, which then goes on."""
    armed, heard, listen, graded = threading.Event(), threading.Event(), clusters.signals, WorkerClient.grade

    def grade(client, found):
        if armed.is_set():
            armed.clear()
            os.kill(os.getpid(), signal.SIGINT)
            assert heard.wait(PATIENCE)
        return graded(client, found)

    monkeypatch.setattr(WorkerClient, "grade", grade)

    def listened(stop, stopping):
        def stopped() -> None:
            stop()
            heard.set()

        return listen(stopped, stopping)

    monkeypatch.setattr(clusters, "signals", listened)
    return armed.set


@pytest.mark.slow
def test_a_class_goes_on_after_a_kill_and_after_ctrl_c(grade, unprobed, interrupt, tmp_path):
    """Notebooks are graded in any order. One worker holds bob's when the command is killed; the other is through."""
    for student in ("ann", "cem"):
        hand_in(tmp_path / "class" / student / "05_kl.ipynb", student, **WRITTEN)
    hand_in(tmp_path / "class" / "bob" / "05_kl.ipynb", **WRITTEN, k3=HOLDS)
    options = rules(seconds=250.0, total_seconds=300.0)

    words = [sys.executable, "-m", "grpo_lab", "grade", "class", *options, "--jobs", "2"]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    wait_until("no results", lambda: process.poll() is not None or (len(kept()) == 2 and running(HELD)))
    process.kill()
    assert process.wait() == -signal.SIGKILL
    wait_until("the killed command left processes", lambda: not running("grpo_lab.grading") and not running(HELD))
    first = kept()
    assert set(first) == {"ann", "cem"} and not Path("out/index.html").exists()

    for student in ("bob", "dan", "eve"):
        k3 = mutants.solution("05_kl", "k3")
        hand_in(tmp_path / "class" / student / "05_kl.ipynb", student, **WRITTEN, k3=k3)
    interrupt()
    code, _, err = grade("class", *options)
    assert code == 130
    assert "stopped: finished results are saved in out; the same command continues from there" in err
    second = kept()
    assert len(second) == 3 and first.items() <= second.items()

    code, out, _ = grade("class", *options)
    third = kept()
    assert code == 0 and all(student in out for student in third)
    assert set(third) == {"ann", "bob", "cem", "dan", "eve"} and second.items() <= third.items()
    assert statuses("bob")["k3"] == RIGHT and result("bob").score == 5 and result("ann").score == 3
    assert len(list(Path("out/gradescope").glob("*.json"))) == 5
    assert set(Path("out").rglob("*.part")) == set()

    assert grade("class", *options)[0] == 0
    assert kept() == third


@pytest.mark.slow
def test_a_grade_worker_that_is_killed_costs_one_exercise(grade, unprobed, tmp_path):
    hand_in(tmp_path / "class" / "ann" / "05_kl.ipynb", **WRITTEN, k3=HOLDS)
    hand_in(tmp_path / "class" / "bob" / "05_kl.ipynb", **WRITTEN)

    def kill(_):
        (worker,) = running("grpo_lab.grading.worker")
        os.kill(worker, signal.SIGKILL)

    killer = meanwhile(lambda: running(HELD), kill)
    code, out, err = grade("class", *rules(seconds=250.0))
    killer.join()
    assert code == 1 and "not graded, or not in full: 1 of 2 notebooks" in err and "ann" in out
    assert statuses("ann") == {
        **dict.fromkeys(statuses("ann"), UNANSWERED),
        "forecast": RIGHT,
        "pulls": RIGHT,
        "k3": FAILED,
    }
    (lost,) = (mark for mark in result("ann").marks if mark.status == FAILED)
    assert lost.points == 0 and "the grade worker ended during this exercise" in lost.note
    assert statuses("bob")["pulls"] == RIGHT
    assert (result("ann").incomplete, result("bob").incomplete) == (True, False)


def test_a_result_is_found_again_unless_something_was_not_graded(tmp_path):
    hand_in(tmp_path / "class" / "ann" / "05_kl.ipynb")
    (found,) = submissions.found([tmp_path / "class"])
    store, file = class_run.ResultStore(tmp_path / "results", Course(Rules(), b"secret")), found.file.read_bytes()
    kept = Result("ann", "05_kl", found.path, hashlib.sha256(file).hexdigest(), 2, "")
    assert store.find(found) is None
    for result in (kept, dataclasses.replace(kept, marks=[Mark("k3", "k3", "code", 0.0, 2, FAILED)])):
        store.save(found, result)
        assert bool(store.find(found)) != result.incomplete
    next((tmp_path / "results").iterdir()).write_text("{")
    assert store.find(found) is None
    store.save(found, kept)
    found.file.write_bytes(file + b" ")
    assert store.find(found) is None


@pytest.mark.slow
def test_a_notebook_that_takes_too_long_is_told_from_one_that_is_wrong(grade, unprobed, tmp_path):
    hand_in(tmp_path / "class" / "ann" / "05_kl.ipynb", **WRITTEN, k3="import time\n\ntime.sleep(600)\n")
    hand_in(tmp_path / "class" / "bob" / "05_kl.ipynb", **WRITTEN)
    code, _, err = grade("class", *rules(seconds=25.0, total_seconds=25.0))
    assert code == 1 and "not graded, or not in full: 1 of 2 notebooks" in err
    marks = {mark.exercise: mark for mark in result("ann").marks}
    assert marks["forecast"].status == RIGHT
    assert (marks["k3"].status, marks["pulls"].status) == (FAILED, FAILED)
    assert "not finished within 25 s" in marks["k3"].note
    assert marks["pulls"].note == NOT_REACHED
    assert statuses("bob")["pulls"] == RIGHT


@pytest.mark.slow
def test_a_class_with_nothing_to_grade(grade, monkeypatch):
    """In the plain process, since that was asked for: reports name it. A student's name means nothing to a table."""
    monkeypatch.setattr(box, "unusable", lambda tier, limits: "")  # Python may be in a folder that is closed
    student, options = "[red]ann", ("--require-tier", "0", "--no-isolation")
    Path("class", student).mkdir(parents=True)
    code, out, _ = grade("class", *rules(), *options)
    assert code == 0 and student in out and "an empty folder" in out
    assert len(list(Path("out/gradescope").iterdir())) == 1
    Path("class", student, "05_kl.ipynb").write_text("{")
    code, out, err = grade("class", *rules(), *options)
    assert code == 1 and student in out and "not a notebook" in out
    assert "tier 0: a process with limits" in err
    assert (result(student).tier, result(student).trust, result(student).marks) == (0, PROCESS.trust, [])
    page = max(Path("out/pages").glob("*.html"), key=lambda path: path.stat().st_mtime_ns)
    assert "A process with limits" in page.read_text() and student in Path("out/grades.csv").read_text()


def test_a_folder_that_cannot_be_written_is_told_before_anything_is_graded(grade, unprobed, tmp_path):
    hand_in(tmp_path / "class" / "ann" / "05_kl.ipynb", **WRITTEN)
    Path("out").write_text("a file")
    code, _, err = grade("class", *rules())
    assert code == 1 and "out" in err and "error: " in err


@pytest.mark.parametrize("words", [(), ("--explain",), ("--require-tier", "1")], ids=" ".join)
def test_without_bubblewrap_nothing_is_graded_unless_the_plain_process_is_asked_for(
    grade, monkeypatch, tmp_path, words
):
    """Bubblewrap is there, and the machine does not let it work."""
    hand_in(tmp_path / "class" / "ann" / "05_kl.ipynb", **WRITTEN)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "bwrap").write_text(
        "#!/bin/sh\necho 'bwrap: No permissions to create a namespace' >&2\nexit 1\n"
    )
    (tmp_path / "bin" / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    code, _, err = grade("class", *rules(), *words)
    err = " ".join(err.split())
    assert code == 2
    assert "tier 2 (bubblewrap) does not work here" in err and "No permissions to create a namespace" in err
    assert "Install bubblewrap" in err and "pass --require-tier 0" in err
    assert not Path("out").exists() and not Path("grading.secret").exists()
