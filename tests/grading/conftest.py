"""Fixtures of the tests of the labs' checks."""

import os
import shutil
import subprocess

import pytest

from grpo_lab.course import answers
from grpo_lab.grading.sandbox.box import at_least


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    """Loads the source of an answer from a file, as a grader does."""
    path = tmp_path_factory.mktemp("answers") / "answer.py"

    def loaded(source):
        path.write_text(source, encoding="utf-8")
        return answers.load(path)

    return loaded


@pytest.fixture(scope="session")
def contained():
    """`contained(number)`: that tier. Where its program does not start, tests skip; where CI says so, they fail."""

    def tier(number):
        command = [*at_least(number).wrap(), "true"]
        if not shutil.which(command[0]) or subprocess.run(command, capture_output=True, timeout=60).returncode:
            missing = f"{command[0]} does not start here: run tests/install-packages, or be root"
            (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(missing)
        return at_least(number)

    return tier
