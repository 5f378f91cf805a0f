"""What the tests of the labs' checks share."""

import os

import pytest

from grpo_lab.grading import answers, checking
from grpo_lab.grading.checks import exercise
from grpo_lab.grading.sandbox import probing
from grpo_lab.grading.sandbox.confinement import Limits
from grpo_lab.grading.sandbox.tiers import TIERS


@pytest.fixture
def lab(request):
    """The lab that a file of tests is about, by the file's name."""
    return request.path.stem.removeprefix("test_lab_")


@pytest.fixture
def findings(lab):
    """`findings(exercise, seed, **answer)`: what is said of an answer."""
    return lambda name, seed=0, **answer: checking.check(exercise(lab, name), answer, seed)


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    """Loads the source of an answer as a grader would: from a file."""
    path = tmp_path_factory.mktemp("answers") / "answer.py"

    def loaded(source):
        path.write_text(source, encoding="utf-8")
        return answers.load(path)

    return loaded


@pytest.fixture(scope="session")
def contained():
    """`contained(number)`: that tier, where it works. Without it tests skip; where CI says so, they fail."""
    why = {}

    def tier(number):
        if number not in why:
            why[number] = probing.unusable(TIERS[number], Limits(60, 2048, 32, 4096))
        if why[number] and os.environ.get("CI") == "true":
            pytest.fail(f"{why[number]}: run tests/grading/install-bubblewrap")
        if why[number]:
            pytest.skip(f"{why[number]}: tests/grading/install-bubblewrap gets what it takes")
        return TIERS[number]

    return tier
