"""Set-up that must happen before any module of the package is imported, and fixtures that several files share."""

import shutil
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

OWN = Path(__file__).parent / "own"
"""A folder as GRPO_LAB_DATA names it, with a lab."""
collect_ignore = ["own/labs/sample/notebook.py"]  # a notebook's source, no module

# Shapes are checked here and only here: users pay nothing. tests/gpu also runs where none of this is installed.
if find_spec("jaxtyping") and find_spec("beartype"):
    from jaxtyping import install_import_hook

    of_algorithms = ("advantages", "kl", "losses", "surrogates")
    tensor_modules = [f"grpo_lab.algorithm.{name}" for name in of_algorithms]
    tensor_modules += [f"grpo_lab.core.{name}" for name in ("advantages", "logprobs", "loss")]
    tensor_modules.append("grpo_lab.training.large_vocabulary")
    install_import_hook(tensor_modules, "beartype.beartype")

if find_spec("hypothesis"):
    from hypothesis import settings

    # The same examples everywhere, and no verdict that depends on how busy the machine is.
    settings.register_profile("grpo_lab", derandomize=True, deadline=None, max_examples=50)
    settings.load_profile("grpo_lab")


@pytest.fixture(scope="module")
def tiny():
    """The tiny model and its tokenizer, loaded once for each file of tests."""
    from grpo_lab.models import loading

    return loading.load("tiny")


@pytest.fixture
def fault(monkeypatch):
    """Registers a fault for one test: `fault(stage, act)` with act(value, step) -> Outcome or None."""
    from grpo_lab.training.faults import FAULTS
    from grpo_lab.training.interventions import Intervention, Outcome

    def register(at, act, name="of_this_test"):
        @dataclass(frozen=True)
        class OfThisTest(Intervention):
            """A fault that lives as long as its test."""

            stage = at

            def __call__(self, value, step):
                return act(value, step) or Outcome(value)

        OfThisTest.name = name
        monkeypatch.setitem(FAULTS, name, OfThisTest)
        return f"faults.{name}=on"

    return register


@pytest.fixture
def sample_lab(monkeypatch, tmp_path):
    """The folder with a copy of the lab of tests/own, which is known for one test; it is the current folder."""
    monkeypatch.setenv("GRPO_LAB_DATA", str(tmp_path))
    shutil.copytree(OWN / "labs", tmp_path / "labs", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.chdir(tmp_path / "labs")
    return tmp_path / "labs"


@pytest.fixture
def call(monkeypatch, capsys):
    """Runs a command line in this process: exit code, standard output, standard error."""

    from grpo_lab import cli

    def command(*words):
        monkeypatch.setattr(sys, "argv", ["grpo-lab", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        return end.value.code or 0, *capsys.readouterr()

    return command
