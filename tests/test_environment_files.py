"""pyproject.toml says what is needed; environment.yml and constraints.txt must not say something else."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
ASKED = [Requirement(line) for lines in (PROJECT["dependencies"], *EXTRAS.values()) for line in lines]
REQUIREMENTS = [requirement for requirement in ASKED if requirement.name != PROJECT["name"]]  # an extra may hold others
LINES = [line for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines() if line[:1] != "#"]
CONDA = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))["dependencies"]


def conda(name: str) -> str:
    """What environment.yml asks of a package, as a specifier: conda's `=3.11` is pip's `==3.11.*`."""
    (wanted,) = (line for line in CONDA if isinstance(line, str) and re.match(rf"{name}(?![\w-])", line))
    return re.sub(r"^=(?!=)(.*)", r"==\1.*", wanted.removeprefix(name))


def test_constraints_hold_pins_and_nothing_else():
    assert [line for line in LINES if not re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.]*", line)] == []


@pytest.mark.parametrize("requirement", REQUIREMENTS, ids=str)
def test_every_direct_dependency_is_pinned_within_its_limits(requirement):
    pins = {canonicalize_name(name): version for name, version in (line.split("==") for line in LINES)}
    assert pins[canonicalize_name(requirement.name)] in requirement.specifier


def test_conda_installs_this_project_with_its_notebooks():
    (pip,) = (line["pip"] for line in CONDA if isinstance(line, dict))
    assert pip == ["-e .[lab]"] and "lab" in EXTRAS


def test_conda_and_pip_ask_for_the_same_python_and_torch():
    assert conda("python").removeprefix("==").removesuffix(".*") in SpecifierSet(PROJECT["requires-python"])
    (torch,) = (requirement for requirement in REQUIREMENTS if requirement.name == "torch")
    assert conda("pytorch") == str(torch.specifier)
