"""The wheel in an environment and a folder without the checkout; `make wheel` tries the one in dist/.

The environment borrows its dependencies from the one that runs the tests, by a .pth file. Python reads no .pth file of
a folder that is added in this way, so that an editable install of the checkout is not seen.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
import zipfile
from pathlib import Path

import pytest

from grpo_lab.course.editions import build
from grpo_lab.course.editions.nbgrader import course
from grpo_lab.course.editions.release import copies
from grpo_lab.runs.recordings import recording_names

ROOT = Path(__file__).parents[1]
LABS = ROOT / "labs"
PLACES = {"grpo_lab/": "grpo_lab/", "data/": "grpo_lab/data/", "labs/": "grpo_lab/labs/"}
"""A folder of the checkout, and its place in the wheel."""
OUTSIDE = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
SHOW = """
import sys
from grpo_lab import cli
for name in sys.argv[1:]:
    for command in ("trace", "replay"):
        sys.argv = ["grpo-lab", command, name]
        try:
            cli.main()
        except SystemExit as end:
            if end.code:
                raise
"""
EXECUTE = """
import json, os, subprocess, sys, nbformat
from nbclient import NotebookClient
from grpo_lab.paths import data_directory
os.environ["JUPYTER_PATH"] = str(data_directory() / "jupyter")
book = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(book, timeout=120).execute(cwd="work", stderr=subprocess.DEVNULL)  # the kernel warns about TCP there
print(json.dumps([output["data"]["text/plain"] for cell in book.cells for output in cell.get("outputs", ())]))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel that GRPO_LAB_WHEEL names, or one that is built here."""
    if named := os.environ.get("GRPO_LAB_WHEEL"):
        return Path(named).resolve()
    out = tmp_path_factory.mktemp("dist")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        str(out),
    ]
    subprocess.run([*pip, str(ROOT)], check=True)
    (built,) = out.iterdir()
    return built


@pytest.fixture(scope="module")
def unpacked(wheel, tmp_path_factory):
    """The folder of an unpacked wheel, which holds the package as site-packages does."""
    folder = tmp_path_factory.mktemp("unpacked")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory):
    """The bin/ of a virtual environment with the wheel, and site-packages there."""
    home = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    (packages,) = home.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text("\n".join(path for path in sys.path if path.endswith("-packages")))
    pip = [sys.executable, "-m", "pip", "--python", str(home / "bin" / "python"), "install", "--quiet", "--no-deps"]
    subprocess.run([*pip, "--no-index", "--no-compile", str(wheel)], check=True)
    return home / "bin", packages


@pytest.fixture
def run(environment, tmp_path):
    """Runs a program of the environment in an empty folder and returns its output.

    Nothing is on standard error, and the test leaves the installed package as it was.
    """
    before = files(environment[1] / "grpo_lab")

    def call(program, *words):
        done = subprocess.run(
            [str(environment[0] / program), *words], cwd=tmp_path, env=OUTSIDE, capture_output=True, text=True
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    yield call
    assert files(environment[1] / "grpo_lab") == before


def files(package):
    """Every file of a package but bytecode, with the time of its last change."""
    found = (path for path in package.rglob("*") if "__pycache__" not in path.parts)
    return {path: path.stat().st_mtime_ns for path in found if path.is_file()}


def texts(folder):
    """The text of every file below a folder."""
    return {path.relative_to(folder): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_the_wheel_holds_every_file_of_the_package(wheel):
    if not shutil.which("git") or not (ROOT / ".git").exists():
        pytest.skip("no git, or no checkout")
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *PLACES]
    files = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    kept = [name for name in files if (ROOT / name).exists()]
    expected = {re.sub(r"^\w+/", lambda top: PLACES[top[0]], name) for name in kept}
    with zipfile.ZipFile(wheel) as archive:
        assert {name for name in archive.namelist() if ".dist-info/" not in name} == expected


def test_the_unpacked_wheel_releases_a_lab_and_hides_its_solution(unpacked, tmp_path):
    """The sandbox hides the folder of the labs in the package from answers."""
    code = (
        "from grpo_lab import cli; from grpo_lab.grading.sandbox.box import BUBBLEWRAP; words = BUBBLEWRAP.wrap();"
        "print(words[-words[::-1].index('--tmpfs')]); cli.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "labs", "release", "out", "00_start"],
        cwd=tmp_path,
        env={**OUTSIDE, "PYTHONPATH": str(unpacked)},
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.stderr) == (
        f"{unpacked}/grpo_lab/labs\nout/README.md written\nout/00_start.ipynb written\n",
        "",
    )
    assert (tmp_path / "out" / "00_start.ipynb").read_bytes() == build.place(LABS, "00_start").read_bytes()


@pytest.mark.slow
def test_it_writes_the_labs_that_the_checkout_writes(run, tmp_path):
    run("grpo-lab", "labs", "nbgrader", "out")
    assert texts(tmp_path) == {path: text for path, text in course(LABS, Path("out")).items()}


@pytest.mark.slow
def test_recordings_are_traced_and_replayed(run, tmp_path):
    names = recording_names()
    assert [row["name"] for row in json.loads(run("grpo-lab", "recordings", "--json"))] == names
    run("python", "-c", SHOW, names[0], names[-1])
    shown = {f"{name}-{kind}.png" for name in (names[0], names[-1]) for kind in ("chain", "run")}
    assert {path.name for path in tmp_path.iterdir()} == shown


@pytest.mark.slow
def test_the_labs_are_served_from_a_copy_and_the_lecture_shows_its_panel(run, environment, tmp_path):
    own = {f"JUPYTER_{kind}_DIR": str(tmp_path / kind) for kind in ("CONFIG", "DATA", "RUNTIME")}
    log, address = tmp_path / "log", re.compile(r"(http://127\.0\.0\.1:\d+)/lab/tree/00_start\.ipynb\?(token=\w+)")
    with log.open("wb") as out:
        server = subprocess.Popen(
            [str(environment[0] / "grpo-lab"), "labs", "open", "--no-browser"],
            cwd=tmp_path,
            env={**OUTSIDE, **own},
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        end = time.monotonic() + 60
        while not (found := address.search(log.read_text())):
            assert server.poll() is None and time.monotonic() < end, log.read_text()
            time.sleep(0.1)
        with urllib.request.urlopen(f"{found[1]}/api/contents/lecture.ipynb?{found[2]}", timeout=30) as answer:
            served = json.load(answer)
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(30)
    assert [cell["id"] for cell in served["content"]["cells"]] == ["lecture-00", "lecture-01"]
    made = {path.name: path.read_text() for path in (tmp_path / "work").iterdir() if path.is_file()}
    assert made == {
        path.name: text for path, text in copies(LABS, Path("nowhere"), build.lab_names(LABS), "en").items()
    }
    (panel,) = json.loads(run("python", "-c", EXECUTE, "work/lecture.ipynb"))
    assert panel.startswith("VBox(")
