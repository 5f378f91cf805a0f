"""What the tests of the labs' checks share."""

import pytest

from grpo_lab.grading import answers, checking
from grpo_lab.grading.checks import exercise


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
