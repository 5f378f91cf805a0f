"""Set-up that must happen before any module of the package is imported, and fixtures that several files share."""

from dataclasses import dataclass
from importlib.util import find_spec

import pytest

# Shapes are checked here and only here: users pay nothing. tests/gpu also runs where none of this is installed.
if find_spec("jaxtyping") and find_spec("beartype"):
    from jaxtyping import install_import_hook

    tensor_modules = ["grpo_lab.advantages", "grpo_lab.losses", "grpo_lab.kl", "grpo_lab.logprobs"]
    install_import_hook(tensor_modules, "beartype.beartype")

if find_spec("hypothesis"):
    from hypothesis import settings

    # The same examples everywhere, and no verdict that depends on how busy the machine is.
    settings.register_profile("grpo_lab", derandomize=True, deadline=None)
    settings.load_profile("grpo_lab")


@pytest.fixture
def fault(monkeypatch):
    """Registers a fault for one test: `fault(stage, act)` with act(value, step) -> Outcome or None."""
    from grpo_lab.faults import FAULTS
    from grpo_lab.interventions import Intervention, Outcome

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
