"""The page of every lab: its exercises fit into its time, it ends with three questions, and its file is checked."""

import shutil
from pathlib import Path

import pytest

from grpo_lab.course import pages
from grpo_lab.course.exercises import Prediction
from grpo_lab.course.known_answers import known_answers
from grpo_lab.course.registry import course_labs, lab_folder, lab_page
from grpo_lab.errors import DataError
from tests.grading import mutants

ROOT = Path(__file__).parents[2]
LABS = course_labs()


@pytest.fixture
def copied(tmp_path):
    """`copied(old, new, file)`: a copy of lab 0's folder after a change of one of its files."""

    def after(old="", new="", file="lab.toml"):
        folder = tmp_path / "00_start"
        shutil.copytree(lab_folder("00_start"), folder)
        text = (folder / file).read_text(encoding="utf-8")
        assert old in text
        (folder / file).write_text(text.replace(old, new, 1), encoding="utf-8")
        return folder

    return after


@pytest.mark.parametrize("name", LABS)
def test_a_page_adds_up(name):
    page = lab_page(name)
    assert 4 <= len(page.exercises) <= 8
    assert sum(each.minutes for each in page.exercises.values()) < page.minutes
    assert len(page.questions) == 3


@pytest.mark.parametrize("name", LABS)
def test_the_outcome_of_a_prediction_is_the_reference_answer(name):
    for exercise in lab_page(name).exercises.values():
        if isinstance(exercise.check, Prediction):
            assert f'answer = "{exercise.check.outcome}"' in mutants.solution(name, exercise.name)


def test_the_guide_to_grading_counts_exercises_and_points():
    exercises = [each for name in LABS for each in lab_page(name).exercises.values()]
    texts = sum(each.points for each in exercises if each.kind == "text")
    points = sum(each.points for each in exercises)
    counted = f"{len(exercises)} exercises for {points} points; {texts} of the points are"
    assert counted in (ROOT / "docs" / "grading.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("minutes = 25", "minutes = 'twenty'", "the page: minutes = 'twenty': must be of type int"),
        ('summary = "', 'sumary = "', "unknown key of the page 'sumary'; did you mean 'summary'"),
        ('title = "Read a run"', "", "exercise 'reading' has no 'title'"),
        ("[exercises.learning_rate]", "[exercises.rate]", "checks.py has a check 'learning_rate': delete it there"),
        ('letters = "abcd"\n', "", "unknown key of exercise 'guess' 'outcome'"),
        ('letters = "abcd"\n', 'words = 5\nletters = "abcd"\n', "exercise 'guess' has 2 checks; it needs exactly one"),
        (
            'letters = "abcd"\noutcome = "b"\n',
            "",
            "exercise 'guess' has 0 checks; it needs exactly one: letters",
        ),
        ('letters = "abcd"\noutcome = "b"\n', 'right = "bc"\nwrong.a = "No."\n', "right = 'bc', .*: give one letter"),
        (
            'letters = "abcd"\noutcome = "b"\n',
            'right = "b"\nwrong.b = "No."\n',
            "give one letter, and texts for other letters",
        ),
        ('kind = "prediction"', 'kind = "oracle"', "kind = 'oracle': one of prediction, code"),
        (
            '  "Every answer is accepted: it is stored, and you compare it with the run.",\n',
            "",
            "exercise 'guess': hints = .* write three texts",
        ),
        ("points = 1\n", "points = 0\n", "exercise 'guess': points = 0: 1 or more"),
        ("right = 0", "right = 3", "right = 3: 0 to 2"),
        ('reply = "Completions are', 'answer = "Completions are', "unknown key of an option of question 2 'answer'"),
        ("[exercises.reading]", "[exercises", "not valid|Expected"),
    ],
)
def test_a_mistake_in_a_file_is_named_with_the_file(copied, old, new, message):
    with pytest.raises(DataError, match=rf"lab\.toml: .*({message})"):
        pages.page(copied(old, new))


def test_a_folder_without_its_file_is_named(copied):
    folder = copied()
    assert pages.page(folder).exercises.keys() == lab_page("00_start").exercises.keys()
    (folder / "lab.toml").unlink()
    with pytest.raises(DataError, match=r"lab\.toml: cannot be read"):
        pages.page(folder)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("cell = 'answer = \"e\"'", "", "guess, 'no letter': it needs `change` or `cell`, and not both"),
        ("[guess.wrong", "[guess.wrnog", "unknown kind of answers 'wrnog'; did you mean 'wrong'"),
        ("[guess.wrong", "[gues.wrong", "unknown exercise of 00_start 'gues'"),
        ("change.'spike_step = 5' =", "change.'spike_step = 7' =", "'spike_step = 7' stands 0 times in the solution"),
        ("reason = ", "reason = 3 #", "reason = 3: must be of type str"),
        ("reason = ", "raeson = ", "unknown key 'raeson'; did you mean 'reason'"),
        ("reason = ", 'same_reason = "nobody" #', "same_reason = 'nobody', which has no reason"),
        ("[guess.wrong", "[guess", "a row is a table"),
        ("= 'spike_step = 6'", "= 6", "= 6: must be of type str"),
    ],
)
def test_a_mistake_in_the_known_answers_is_named(copied, old, new, message):
    with pytest.raises(DataError, match=rf"answers\.toml: .*({message})"):
        known_answers(copied(old, new, "answers.toml"))


def test_without_the_solutions_no_answer_is_known(copied):
    """As in a folder that a teacher hands out with the texts and checks alone."""
    folder = copied()
    assert known_answers(folder)
    (folder / "notebook.py").unlink()
    assert known_answers(folder) == ()
