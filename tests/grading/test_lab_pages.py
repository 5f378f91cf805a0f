"""The page of every lab: its exercises fit into its time, it ends with three questions, and its file is checked."""

import json
import shutil
from pathlib import Path

import pytest

from grpo_lab.course import pages
from grpo_lab.course.exercises import Prediction
from grpo_lab.course.registry import LABS, lab_page
from grpo_lab.errors import DataError
from grpo_lab.paths import data_directory

ROOT = Path(__file__).parents[2]
TEXTS = data_directory() / "course"
CHECKS = {name: each.check for name, each in lab_page("00_start").exercises.items()}


@pytest.mark.parametrize("name", LABS)
def test_a_page_adds_up(name):
    page = lab_page(name)
    assert 4 <= len(page.exercises) <= 8
    assert sum(each.minutes for each in page.exercises.values()) < page.minutes
    assert len(page.questions) == 3


@pytest.mark.parametrize("name", LABS)
def test_the_outcome_of_a_prediction_is_the_reference_answer(name):
    notebook = json.loads((ROOT / "labs" / "instructor" / f"{name}.ipynb").read_text(encoding="utf-8"))
    answers = {cell["id"]: "".join(cell["source"]) for cell in notebook["cells"]}
    for exercise in lab_page(name).exercises.values():
        if isinstance(exercise.check, Prediction):
            assert f'answer = "{exercise.check.outcome}"' in answers[f"{name}-{exercise.name}"]


def test_the_guide_to_grading_counts_exercises_and_points():
    exercises = [each for name in LABS for each in lab_page(name).exercises.values()]
    texts = sum(each.points for each in exercises if each.kind == "text")
    points = sum(each.points for each in exercises)
    counted = f"{len(exercises)} exercises for {points} points; {texts} of the points are"
    assert counted in (ROOT / "docs" / "grading.md").read_text(encoding="utf-8")


def test_every_file_belongs_to_a_lab():
    assert sorted(path.name for path in TEXTS.glob("*.toml")) == [f"{name}.toml" for name in LABS]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("minutes = 25", "minutes = 'twenty'", "the page: minutes = 'twenty': must be of type int"),
        ('summary = "', 'sumary = "', "unknown key of the page 'sumary'; did you mean 'summary'"),
        ('title = "Read a run"', "", "exercise 'reading' has no 'title'"),
        ("[exercises.guess]", "[exercises.gues]", "unknown exercise 'gues'; did you mean 'guess'"),
        ('kind = "prediction"', 'kind = "oracle"', "kind = 'oracle': one of prediction, code"),
        ('  "Any of a, b, c, d, in quotes.",\n', "", "exercise 'guess': hints = .* write three texts"),
        ('  "Any of a, b, c, d, in quotes.",\n', "  3,\n", "exercise 'guess': hints = .* write three texts"),
        ("points = 1\n", "points = 0\n", "exercise 'guess': points = 0: 1 or more"),
        ("right = 0", "right = 3", "right = 3: 0 to 2"),
        ("right = 0", "wrong = 0", "unknown key of question 2 'wrong'"),
        ('reply = "Completions are', 'answer = "Completions are', "unknown key of an option of question 2 'answer'"),
        ("[exercises.reading]", "[exercises", "not valid|Expected"),
    ],
)
def test_a_mistake_in_a_file_is_named_with_the_file(tmp_path, old, new, message):
    text = (TEXTS / "00_start.toml").read_text(encoding="utf-8")
    assert old in text
    (tmp_path / "00_start.toml").write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(DataError, match=f"00_start.toml: .*({message})"):
        pages.page("00_start", CHECKS, tmp_path)


def test_a_check_without_texts_and_a_file_that_is_missing(tmp_path):
    with pytest.raises(DataError, match=r"no_texts"):
        pages.page("00_start", {**CHECKS, "no_texts": CHECKS["guess"]})
    with pytest.raises(DataError, match=r"00_start\.toml: .*No such file"):
        pages.page("00_start", CHECKS, tmp_path)
    shutil.copy(TEXTS / "00_start.toml", tmp_path)
    assert pages.page("00_start", CHECKS, tmp_path) == lab_page("00_start")
