"""Cells of the matrix and notebooks of a class on the workers of a cluster: of dask, and of ray where it is there."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from grpo_lab.analysis.matrix import FarPool, cells, columns
from grpo_lab.course.editions import build
from grpo_lab.errors import ConfigError, RunError
from grpo_lab.grading import class_run, rules
from grpo_lab.grading.class_run import FarClients
from grpo_lab.grading.grader import Course
from grpo_lab.grading.submissions import Found
from grpo_lab.paths import labs_directory
from grpo_lab.runs import clusters

LONGEST = 300
"""Seconds after which a command hangs."""
QUIET = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::RuntimeWarning")


@pytest.fixture(scope="module", params=["dask", "ray"])
def cluster(request):
    """A cluster of one worker on this machine."""
    pytest.importorskip({"dask": "distributed", "ray": "ray"}[request.param])
    found = clusters.connect(request.param, "", 1)
    assert found is not None
    yield found
    found.close()


def tell_pid(marker: str) -> int:
    """A task: the number of its worker, which it also writes."""
    with Path(marker).open("a") as file:
        file.write(f"{os.getpid()}\n")
    return os.getpid()


def always_die() -> None:
    """A task that no worker survives."""
    os.kill(os.getpid(), signal.SIGKILL)


def refuse() -> None:
    """A task with a user's mistake."""
    raise ConfigError("a mistake")


@QUIET
def test_a_task_runs_on_a_worker_and_its_error_arrives(cluster, tmp_path):
    assert cluster.run(tell_pid, str(tmp_path / "pid")) != os.getpid()
    assert cluster.jobs == 1 and cluster.private
    with pytest.raises(ConfigError, match="a mistake"):
        cluster.run(refuse)


@QUIET
@pytest.mark.slow
def test_a_task_that_no_worker_survives_is_named(cluster):
    with pytest.raises(clusters.WorkerLost, match="4 workers died with this task"):
        cluster.run(always_die)
    case = cells(["nan-reward"], columns(["skip_nonfinite"]), seeds=1)[0]
    lost = FarPool(type("Lost", (), {"run": lambda *_: cluster.run(always_die)})(), limit=60)  # type: ignore[arg-type]
    assert lost.run(case).status == "died: worker"


@QUIET
def test_a_worker_of_another_version_is_refused(cluster, monkeypatch):
    monkeypatch.setattr(clusters, "package_digest", lambda: "another")
    with pytest.raises(RunError, match=r"the worker on .* has another version of grpo_lab"):
        cluster.run(refuse)


def test_the_secret_does_not_travel_in_the_open():
    course = Course(rules.read(None), b"secret")
    with pytest.raises(ConfigError, match="tls://"):
        FarClients(course, type("Open", (), {"private": False, "jobs": 1})())  # type: ignore[arg-type]


@QUIET
def test_backends_and_addresses_that_do_not_exist(monkeypatch):
    with pytest.raises(ConfigError, match="did you mean 'dask'"):
        clusters.connect("dsk", "", 1)
    with pytest.raises(ConfigError, match="belongs to --backend dask or ray"):
        clusters.connect("local", "tcp://node:8786", 1)
    assert clusters.connect("local", "", 1) is None
    monkeypatch.setattr(clusters, "WAIT", 0.5)
    for backend, module, address in (("dask", "distributed", "tcp://127.0.0.1:1"), ("ray", "ray", "127.0.0.1:1")):
        with contextlib.suppress(ImportError):
            __import__(module)
            with pytest.raises(RunError, match=f"no {backend} cluster answers at {address}"):
                clusters.connect(backend, address, 1)
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(ConfigError, match=r"--backend dask is not installed: pip install 'grpo-lab\[dask\]'"):
        clusters.connect("dask", "", 1)


@QUIET
@pytest.mark.slow
def test_ctrl_c_of_a_terminal_leaves_the_workers_alone(tmp_path):
    """The whole process group gets the signal, as in a terminal: running cells finish, and the same command goes on."""
    pytest.importorskip("distributed")
    command = [sys.executable, "-m", "grpo_lab", "matrix", "--scenario", "nan-reward", "--guards", "skip_nonfinite"]
    command += ["--seeds", "2", "--steps", "3", "--jobs", "1", "--backend", "dask", "--out", str(tmp_path)]
    journal, said = tmp_path / "cells.jsonl", tmp_path / "said"
    with said.open("w") as stderr:
        process = subprocess.Popen(command, start_new_session=True, stderr=stderr)
    try:
        while not (journal.exists() and journal.read_text().count("\n") >= 1):
            assert process.poll() is None, said.read_text()
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(timeout=LONGEST) == 130, said.read_text()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert "stopped: " in said.read_text() and "Traceback" not in said.read_text()
    assert subprocess.run(command, check=False, capture_output=True, timeout=LONGEST).returncode == 0


@QUIET
@pytest.mark.slow
def test_a_class_is_graded_on_workers_as_it_is_here(cluster, tmp_path):
    notebook = build.notebook(labs_directory(), "01_grpo_by_hand", build.REFERENCE)
    course = Course(rules.read(None), b"secret")
    every = [Found("anna", tmp_path / "anna.ipynb", tmp_path)]
    every[0].file.write_text(notebook, encoding="utf-8")
    scores = []
    for name, clients in (("far", FarClients(course, cluster)), ("here", class_run.Clients(course, 1))):
        if name == "here":
            store = class_run.ResultStore(tmp_path / name, course)
            results = class_run.grade(every, store, clients, lambda result: None)
            assert results is not None
            scores.append(results[0])
        else:
            scores.append(clients.grade(every[0]))
    assert scores[0].score == scores[1].score == scores[1].out_of > 0
    missing = every[0]._replace(file=tmp_path / "gone.ipynb")
    with pytest.raises(RunError, match=r"a worker does not see .*gone\.ipynb; put the submissions where all workers"):
        FarClients(course, cluster).grade(missing)
