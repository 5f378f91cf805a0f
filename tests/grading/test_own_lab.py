"""A lab of an instructor's own folder goes the whole way: handed out, answered, graded in the sandbox."""

import csv
import io
import subprocess
import sys

import pytest

from grpo_lab.course import registry
from grpo_lab.course.editions import build


@pytest.mark.slow
def test_a_lab_of_ones_own_is_handed_out_answered_and_graded(sample_lab, tmp_path, contained):
    contained(2)
    (tmp_path / "class" / "ada").mkdir(parents=True)
    (tmp_path / "class" / "bob").mkdir()
    (tmp_path / "class" / "ada" / "sample.ipynb").write_text(build.notebook(sample_lab, "sample", "reference"))
    (tmp_path / "class" / "bob" / "sample.ipynb").write_text(build.notebook(sample_lab, "sample", "learner"))
    command = [sys.executable, "-m", "grpo_lab", "grade", "class", "--out", "grades", "--lab", "sample"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stderr
    text = (tmp_path / "grades" / "grades.csv").read_text(encoding="utf-8-sig")
    rows = {row["student"]: row for row in csv.DictReader(io.StringIO(text))}
    exercises = registry.lab_page("sample").exercises.values()
    automatic = sum(each.points for each in exercises if each.kind != "text")
    assert float(rows["ada"]["score"]) == float(rows["ada"]["max_score"]) == automatic
    assert float(rows["bob"]["score"]) == 0
