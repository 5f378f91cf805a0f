"""The workflow for GitHub Classroom: it is valid, holds no secret, and its command grades a repository."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from grpo_lab.course.editions import build

ROOT = Path(__file__).resolve().parents[2]
WORKFLOW = ROOT / "docs" / "examples" / "grade.yml"


@pytest.fixture
def parsed():
    return yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))


def test_it_runs_on_a_push_with_no_more_rights_than_reading(parsed):
    assert set(parsed[True]) == {"push", "workflow_dispatch"}  # YAML reads the key `on` as true
    assert parsed["permissions"] == {"contents": "read"}
    assert "secrets." not in json.dumps(parsed)
    for step in parsed["jobs"]["grade"]["steps"]:
        assert ("uses" in step) != ("run" in step)
        assert "@v" in step.get("uses", "@v")


@pytest.mark.slow
def test_its_command_grades_a_repository(parsed, tmp_path, contained):
    contained(2)
    (run,) = (step["run"] for step in parsed["jobs"]["grade"]["steps"] if step.get("name") == "Grade")
    sudo, program, *arguments = shlex.split(run)
    assert (sudo, program) == ("sudo", "$(command -v grpo-lab)")
    repository = tmp_path / "kl-adalovelace"
    repository.mkdir()
    (repository / "05_kl.ipynb").write_text(build.notebook(ROOT / "labs", "05_kl", build.LEARNER), encoding="utf-8")
    (repository / "README.md").write_text("mine")
    workflows = repository / ".github" / "workflows"
    workflows.mkdir(parents=True)
    shutil.copy(WORKFLOW, workflows)
    command = [sys.executable, "-P", "-m", "grpo_lab", *arguments]
    done = subprocess.run(
        command, cwd=repository, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert done.returncode == 0, done.stderr
    assert "05_kl" in (repository / "grades" / "grades.csv").read_text(encoding="utf-8")
    assert "grade.yml" not in done.stdout
