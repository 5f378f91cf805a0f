"""A folder of one's own beside data/: its scenarios, presets, algorithms, recordings and labs are found by name."""

import shutil
from pathlib import Path

import pytest

from grpo_lab.config import algorithms, catalog
from grpo_lab.course import registry
from grpo_lab.errors import ConfigError, DataError
from grpo_lab.grading import notebooks
from grpo_lab.grading.class_run import ResultStore
from grpo_lab.grading.grader import Course
from grpo_lab.grading.results import Result
from grpo_lab.grading.rules import Rules
from grpo_lab.grading.submissions import Found
from grpo_lab.paths import data_directory, named_files
from grpo_lab.runs import recordings

SHIPPED = {
    "scenarios": "cuda-001.toml",
    "presets": "smoke.toml",
    "algorithms": "gspo.toml",
    "recordings": "lecture-healthy",
}

PATTERNS = {"recordings": "*/events.jsonl"}


@pytest.fixture
def own(monkeypatch, tmp_path) -> Path:
    """A folder with a copy of one of each kind, named `mine`, and the sample lab under the name `mine`."""
    for kind, name in SHIPPED.items():
        path = data_directory() / kind / name
        copied = tmp_path / kind / f"mine{path.suffix}"
        shutil.copytree(path, copied) if path.is_dir() else (copied.parent.mkdir(), shutil.copy(path, copied))
    shutil.copytree(Path(__file__).parent / "own" / "labs" / "sample", tmp_path / "labs" / "mine")
    monkeypatch.setenv("GRPO_LAB_DATA", str(tmp_path))
    return tmp_path


def test_each_kind_is_found_by_name(own, call):
    assert "mine" in catalog.scenario_names() and catalog.scenario("mine").config().run.name == "mine"
    assert "mine" in catalog.preset_names() and catalog.preset("mine").run.name == "mine"
    assert algorithms.algorithm("mine").loss == algorithms.algorithm("gspo").loss
    assert recordings.find("mine") == own / "recordings" / "mine"
    assert recordings.is_recording(own / "recordings" / "mine")
    assert registry.lab_names()[-1] == registry.lab_page("mine").name == "mine"
    for words in (["scenarios"], ["presets"], ["algorithms"], ["recordings"]):
        code, out, err = call(*words)
        assert (code, err) == (0, "") and "mine" in out, words


def test_without_the_variable_nothing_of_it_is_known(own, monkeypatch):
    monkeypatch.delenv("GRPO_LAB_DATA")
    for kind in SHIPPED:
        assert "mine" not in named_files(kind, PATTERNS.get(kind, "*.toml"))
    with pytest.raises(ConfigError, match=r"unknown lab 'mine'.*GRPO_LAB_DATA"):
        registry.lab_page("mine")


@pytest.mark.parametrize("kind", SHIPPED)
def test_a_name_that_ships_is_refused(own, kind):
    taken, mine = SHIPPED[kind], next((own / kind).iterdir())
    mine.rename(own / kind / taken)
    with pytest.raises(DataError, match=f"'{Path(taken).stem}' ships with the package in {kind}/"):
        named_files(kind, PATTERNS.get(kind, "*.toml"))


@pytest.mark.parametrize(
    ("name", "fault"), [("05_kl", "a lab of the course has this name"), ("My-lab", "small letters, digits and _")]
)
def test_a_labs_name_is_free_and_plain(own, name, fault):
    (own / "labs" / "mine").rename(own / "labs" / name)
    with pytest.raises(DataError, match=fault):
        registry.lab_names()


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        ("CHECKS = 3", "define CHECKS = "),
        ("CHECKS = 1 / 0", "division by zero.*line 1"),
        ("CHECKS = (", "never closed"),
    ],
)
def test_a_lab_that_does_not_load_is_named(own, code, fault):
    checks = own / "labs" / "mine" / "checks.py"
    checks.write_text(code)
    with pytest.raises(DataError, match=fault) as raised:
        registry.lab_page("mine")
    assert str(checks) in str(raised.value) and raised.value.exit_code == 2


def test_a_change_of_a_lab_is_seen(own):
    page = own / "labs" / "mine" / "lab.toml"
    page.write_text(page.read_text().replace("A sample", "Another"))
    assert registry.lab_page("mine").title == "Another"


@pytest.mark.parametrize(
    "changed", ["labs/mine/checks.py", "labs/mine/lab.toml", "labs/mine/answers.toml", "course/compare.py"]
)
def test_a_stored_grade_does_not_hold_after_a_change_of_a_check(own, monkeypatch, changed):
    shutil.copytree(Path(registry.__file__).parent, own / "course")
    monkeypatch.setattr(registry, "__file__", str(own / "course" / "registry.py"))
    notebook = own / "class" / "ann" / "05_kl.ipynb"
    notebook.parent.mkdir(parents=True)
    notebook.write_text("{}")
    found = Found("ann", notebook, own / "class")
    store = ResultStore(own / "results", Course(Rules(), b"secret"))
    store.save(found, Result("ann", "05_kl", found.path, notebooks.digest(found, 1000), 2, ""))
    assert store.find(found)
    path = own / changed
    path.write_text((path.read_text() if path.exists() else "") + "\n# changed")
    assert store.find(found) is None


def test_a_folder_that_does_not_exist_is_named(monkeypatch, tmp_path, call):
    monkeypatch.setenv("GRPO_LAB_DATA", str(tmp_path / "missing"))
    code, _, err = call("scenarios")
    assert code != 0 and "GRPO_LAB_DATA" in err and "missing" in err and "Traceback" not in err
