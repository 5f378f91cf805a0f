"""A class in which all students but one attack the grader: points, findings, and proof that no attack succeeded.

Grading that class takes 40 s of a core, so that its tests are slow ones.
"""

import itertools
import json
import math
import re
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from grpo_lab.course import evaluate, trials
from grpo_lab.course.answers import Given
from grpo_lab.course.editions import build
from grpo_lab.course.exercises import Values
from grpo_lab.course.registry import course_labs, lab_page
from grpo_lab.errors import ConfigError, Sentence
from grpo_lab.grading import challenges, class_run, reports, submissions
from grpo_lab.grading.grader import Course
from grpo_lab.grading.results import BY_HAND, RIGHT, WRONG, Result
from grpo_lab.grading.rules import Rules
from grpo_lab.grading.sandbox.confinement import PR_SET_CHILD_SUBREAPER, descendants, end_descendants, prctl
from grpo_lab.paths import labs_directory
from tests.grading import hostile, mutants
from tests.grading.hostile.world import World

cases_07 = mutants.checks("07_precision_and_verl")

cases_03 = mutants.checks("03_error_chain")

LABS = course_labs()

RULES = Rules(seconds=4.0, total_seconds=900.0, memory_mb=512, output_kb=256, processes=32)
ATTACKS = hostile.attacks()
HONEST = "honest"


def handed_in():
    """Students with their lab and their attacks by exercise: each in the first notebook in which its place is free."""
    found = {HONEST: ("05_kl", {})}
    for attack in ATTACKS.values():
        names = (f"attacker {number} of lab {attack.lab[:2]}" for number in itertools.count())
        notebooks = (found.setdefault(name, (attack.lab, {}))[1] for name in names)
        next(taken for taken in notebooks if attack.exercise not in taken)[attack.exercise] = attack
    return found


HANDED_IN = handed_in()
SCRIPT = "<script>alert(1)</script>"


class Graded(NamedTuple):
    """The graded class."""

    results: dict[str, Result]
    """The first row of each student."""
    rows: int
    out: Path
    world: World
    left: list[int]
    """Processes that were still there."""


def notebook(lab, answers):
    """The solved lab with these cells; its metadata and outputs claim points."""
    tree = json.loads(build.notebook(labs_directory(), lab, build.INSTRUCTOR))
    tree["metadata"] = {"kernelspec": {"name": "mine", "display_name": SCRIPT}, "points": 100}
    for cell in tree["cells"]:
        cell["metadata"] = {"tags": ["skip", "remove_cell", "skip-execution"], "nbgrader": {"points": 100}}
        if cell["cell_type"] == "code":
            cell["outputs"] = [{"output_type": "display_data", "metadata": {}, "data": {"text/html": SCRIPT}}]
        name = cell["id"].removeprefix(f"{lab}-")
        if name in answers:
            cell["source"] = f"%%exercise {name}\n{answers[name]}"
    return json.dumps(tree).encode()


def hand_in(folder, world):
    for student, (lab, placed) in HANDED_IN.items():
        answers = {name: attack.answer(lab, name, world) for name, attack in placed.items()}
        (folder / student).mkdir(parents=True)
        (folder / student / f"{lab}.ipynb").write_bytes(notebook(lab, answers))
    for student in ("huge", "malformed", "linked"):
        (folder / student).mkdir()
    with (folder / "huge" / "05_kl.ipynb").open("wb") as file:
        file.truncate(500 << 20)
    (folder / "malformed" / "05_kl.ipynb").write_bytes(b'{"cells": [' + b"[" * 100_000)
    (folder / "linked" / "05_kl.ipynb").symlink_to(folder / HONEST / "05_kl.ipynb")
    (folder / "linked" / "sitecustomize.py").write_text("raise SystemExit('imported from a submission')")


@pytest.fixture(scope="module")
def graded(contained):
    """The class, graded two notebooks at a time in bubblewrap."""
    contained(2)
    world = World()
    others, out = world.home / "submissions", world.home / "grades"
    honest = others / HONEST / "05_kl.ipynb"
    hand_in(others, world.known(honest, out / "results", out / "index.html"))
    prctl(PR_SET_CHILD_SUBREAPER, 1)  # orphans become children of this process
    before = frozenset(descendants())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADERS_OWN", world.token)
        course = Course(RULES, challenges.secret(world.home / "grading.secret"))
        store = class_run.ResultStore(out / "results", course)
        every = submissions.found([others])
        results = class_run.grade(every, store, class_run.Clients(course, 2), lambda result: None)
    left = [pid for pid in descendants() if pid not in before]
    end_descendants(before)
    prctl(PR_SET_CHILD_SUBREAPER, 0)
    assert results
    reports.write(results, out)
    yield Graded({result.student: result for result in reversed(results)}, len(results), out, world, left)
    world.close()


def mark(graded, attack):
    """The mark of the exercise in whose place the attack was handed in."""
    (student,) = (student for student, (_, attacks) in HANDED_IN.items() if attack in attacks.values())
    return next(mark for mark in graded.results[student].marks if mark.exercise == attack.exercise)


@pytest.mark.slow
@pytest.mark.parametrize("attack", ATTACKS.values(), ids=str)
def test_an_attack_earns_what_its_answer_is_worth(graded, attack):
    found = mark(graded, attack)
    said = "\n".join(f"{finding.got} {finding.why}" for finding in found.findings)
    if attack.said:
        assert (found.status, found.points) == (WRONG, 0.0)
        assert re.search(attack.said, said), said
    else:
        assert (found.status, found.points) == (RIGHT, found.out_of), said


@pytest.mark.slow
@pytest.mark.parametrize("student", HANDED_IN)
def test_right_answers_beside_an_attack_earn_all_their_points(graded, student):
    lab, attacks = HANDED_IN[student]
    beside = [found for found in graded.results[student].marks if found.exercise not in attacks]
    assert {found.exercise for found in beside} == set(lab_page(lab).exercises) - set(attacks)
    assert [found for found in beside if found.status not in (RIGHT, BY_HAND)] == []
    assert [found for found in beside if found.status == RIGHT and found.points != found.out_of] == []


@pytest.mark.slow
def test_nothing_of_the_class_is_alive(graded):
    assert graded.left == []


@pytest.mark.slow
def test_no_file_was_touched_nobody_was_reached_and_nobody_was_harmed(graded):
    assert graded.world.traces() == []


@pytest.mark.slow
def test_reports_are_all_there_whole_and_nothing_else(graded):
    count = graded.rows
    files = sorted(file.relative_to(graded.out) for file in graded.out.rglob("*") if file.is_file())
    by_folder = {name: [file for file in files if file.parts[0] == name] for name in ("results", "gradescope", "pages")}
    assert {name: len(found) for name, found in by_folder.items()} == {
        "results": count,
        "gradescope": count,
        "pages": count,
    }
    assert {str(file) for file in files if len(file.parts) == 1} == {
        "index.html",
        "grades.csv",
        "class.csv",
        "to_mark.csv",
    }
    for file in files:
        text = (graded.out / file).read_text(encoding="utf-8")
        assert SCRIPT not in text
        if file.suffix == ".json":
            json.loads(text)


@pytest.mark.slow
def test_what_a_notebook_says_of_itself_counts_for_nothing(graded):
    result = graded.results[HONEST]
    assert result.score == result.out_of == sum(found.out_of for found in result.marks if found.status == RIGHT)
    assert result.tier == 2 and result.trust.startswith("Bubblewrap.")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("student", "problem"),
    [("huge", "larger than 10,485,760 bytes"), ("malformed", "nested too deeply"), ("linked", "a symbolic link")],
)
def test_a_file_that_is_no_notebook(graded, student, problem):
    result = graded.results[student]
    assert problem in result.problem and not result.marks and result.score == 0
    assert result.seconds < RULES.total_seconds


@pytest.mark.slow
def test_time_is_bounded(graded):
    """Every wait has an end: those of the attacks that never do, and of the sandboxes that are started anew."""
    for result in graded.results.values():
        assert result.seconds < RULES.total_seconds


@pytest.mark.slow
def test_memory_is_watched(graded):
    (found,) = mark(graded, ATTACKS["memory_of_many"]).findings
    (used,) = re.findall(r"it used ([\d,]+) MB", found.got)
    assert RULES.memory_mb < int(used.replace(",", "")) < 4 * RULES.memory_mb


# --- data -------------------------------------------------------------------------------------------------------------

EIGHT, THREE = range(1, 9), ("zero-times-infinity", "fp16-adam-epsilon", "nan-reward")
DATA = [
    *(None, True, -1, (1 << 1_023) - 1, math.nan, -math.inf, "", "b", "a" * 20_000, "\x00\x1b[2J<script>"),
    *((), [[]], [math.nan, None], ["b"] * 1_000, {}, {math.nan: 1}, {True: "a", None: "b"}, {"skip_spikes": 3}),
    *({"skip_spikes": [["limit", 1]]}, {"skip_spikes": {1: 2}}, {"skip_spikes": {"threshold": "mine.py:f"}}),
    *((), ("skip_spikes",) * 3, ("loss.beta=nan",), ("=",), ("optimizer.learning_rate=*inf",), ("sampling.top_k=1,2",)),
    *(dict.fromkeys(EIGHT, each) for each in ("healthy", [], {}, 1)),
    *(dict.fromkeys(THREE, each) for each in ("skip_spikes", [], {}, (1 << 1_023) - 1)),
    *(torch.zeros(0), torch.tensor(1.0), torch.tensor(True), torch.zeros(2, 3), [torch.tensor(math.nan)]),
]
"""Data that can come out of a sandbox and may surprise a judge."""
JUDGED = [(lab, task) for lab in LABS for task in lab_page(lab).exercises.values() if isinstance(task.check, Values)]


@pytest.mark.parametrize(("lab", "task"), JUDGED, ids=[f"{lab}/{task.name}" for lab, task in JUDGED])
def test_whatever_the_data_a_judge_has_findings(lab, task, monkeypatch):
    """Not an exception, which would be the grader's fault. Trained is nothing here."""

    def trained(*_, **__):
        raise ConfigError("as far as training")

    for module, name in (
        *((trials, name) for name in ("run", "train", "first_gradient")),
        *((module, "train") for module in (cases_03, cases_07)),
    ):
        monkeypatch.setattr(module, name, trained)
    for value in DATA:
        findings = evaluate.judged(task, {name: Given(value) for name in task.check.names}, (), seed=1)
        assert findings
        for finding in findings:
            assert type(finding.right) is bool
            assert all(type(text) in (str, Sentence) and text.encode() is not None for text in finding[1:])
