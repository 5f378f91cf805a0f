"""What the tests of the labs' checks share."""

import pytest


@pytest.fixture
def findings(request):
    """`findings(exercise, seed, **answer)`: what is said of an answer in the lab that a file of tests is about."""
    from grpo_lab.grading import checking
    from grpo_lab.grading.checks import exercise

    lab = request.path.stem.removeprefix("test_lab_")
    return lambda name, seed=0, **answer: checking.check(exercise(lab, name), answer, seed)
