"""`python -m benchmarks` imports a benchmark where it runs, and the extra `bench` brings what each of them needs."""

import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_a_benchmark_that_does_not_run_is_not_imported():
    code = "import sys, benchmarks.__main__; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = {name for name in done.stdout.split() if name.startswith("benchmarks.")}
    assert loaded == {"benchmarks.__main__", "benchmarks.timing"}


def test_every_benchmark_has_a_module_and_a_plan():
    from benchmarks.__main__ import PLANS, Name

    assert list(PLANS) == list(Name)
    assert [name for name in Name if not (ROOT / "benchmarks" / f"{name}.py").is_file()] == []


def test_the_extra_brings_what_a_panel_and_a_class_of_notebooks_need():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {"grpo-lab[lab]", "jupytext", "trl"} <= set(project["optional-dependencies"]["bench"])
