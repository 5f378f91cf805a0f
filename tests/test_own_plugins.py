"""Formulas and guards of a user's own stand in a config like those that are registered, wherever it is run."""

import json
import os

import pytest

from grpo_lab.config.catalog import preset
from grpo_lab.config.schema import Config
from grpo_lab.errors import ConfigError
from grpo_lab.events import Stepped
from grpo_lab.metrics import OF_THE_MACHINE
from grpo_lab.runs.child import Child
from grpo_lab.runs.session import Session
from grpo_lab.training.registry import FORMULAS, needs_reference, validated
from grpo_lab.training.trainer import train
from tests.steps import steps_of

SMOKE = preset("smoke").with_("run.threads=1")
FORMULA = """
from grpo_lab.training import registry

def {name}(*args, **kwargs):
    return registry.FORMULAS["{setting}"]["{which}"](*args, **kwargs)
"""
GUARD = """
from __future__ import annotations
from dataclasses import dataclass
from grpo_lab.interventions import Intervention, Outcome, Stage, Verdict
from grpo_lab.config.fields import Annotated, AtLeast

@dataclass(frozen=True)
class Mine(Intervention):
    '''Counts the losses it sees, and says so from the second on.'''

    stage = Stage.LOSS
    at: Annotated[int, AtLeast(1)] = 2
    \"\"\"From which on it says so.\"\"\"

    def __call__(self, value, step):
        self.memory["seen"] = self.memory.get("seen", 0) + 1
        if self.memory["seen"] < self.at:
            return Outcome(value)
        return Outcome(value, Verdict.CHANGED, f"loss {self.memory['seen']:.0f}")
"""


@pytest.fixture
def own(tmp_path):
    """Writes a file of a user's, in a folder whose name has dots, and names something in it."""

    def write(source, name="Mine", file="my.guard.py"):
        path = tmp_path / "v1.0" / file
        path.parent.mkdir(exist_ok=True)
        path.write_text(source)
        return f"{path}:{name}"

    return write


def numbers(config, **options):
    """The metrics of each step, but for those of the machine."""
    steps = steps_of(config, **options)
    return [{name: value for name, value in step.metrics.items() if name not in OF_THE_MACHINE} for step in steps]


def said(events):
    return [(action.name, action.reason) for event in events if isinstance(event, Stepped) for action in event.actions]


def unclipped(steps, leave_out):
    """The steps without the shares of clipped tokens, which a surrogate of a user's own does not have."""
    return [{name: step[name] for name in step if not (leave_out and "clip_ratio" in name)} for step in steps]


@pytest.mark.parametrize("setting", FORMULAS)
def test_a_formula_of_a_file_is_the_formula(own, setting):
    """Two registered ones, copied, give each its own numbers: the copy is used, and nothing else."""
    changes = (
        "run.num_steps=2",
        "data.micro_batch_prompts=2",
        "optimizer.learning_rate=1e-2",
        "sampling.top_k=4",
        "loss.num_iterations=2",
    )
    config = SMOKE.with_(*changes)
    found = []
    for which in list(FORMULAS[setting])[:2]:
        name = own(FORMULA.format(name="mine", setting=setting, which=which), "mine")
        found.append(numbers(config.with_(f"loss.{setting}={name}")))
        assert found[-1] == unclipped(numbers(config.with_(f"loss.{setting}={which}")), setting == "surrogate")
    assert found[0] != found[1]


def test_a_log_ratio_of_ones_own_has_a_reference(own):
    name = own("def mine(logprobs, batch):\n    return logprobs - batch.ref_logprobs", "mine")
    config = SMOKE.with_("loss.beta=0", f"loss.log_ratio={name}")
    assert needs_reference(config)
    assert not needs_reference(SMOKE.with_("loss.beta=0"))
    assert len(numbers(config)) == 3


@pytest.mark.parametrize(
    ("setting", "arguments", "result"),
    [
        ("log_ratio", "logprobs, batch", "(logprobs - batch.old_logprobs).detach()"),
        ("kl_estimator", "delta", "delta.detach()"),
        ("surrogate", "log_weights, logprobs, advantages, limits", "log_weights.detach()"),
    ],
)
def test_a_formula_that_loses_the_gradient_is_named_with_the_way_out(own, setting, arguments, result):
    name = own(f"def mine({arguments}):\n    return {result}", "mine")
    events = []
    with pytest.raises(ConfigError) as error:
        events.extend(train(SMOKE.with_("loss.beta=0.1", f"loss.{setting}={name}")))
    for part in (f"loss.{setting}", name, "no gradient", "detach"):
        assert part in str(error.value)


def test_a_guard_of_a_file_acts_and_remembers(own):
    name = own(GUARD)
    assert said(train(SMOKE.with_guards({name: {}}))) == [("Mine", "loss 2"), ("Mine", "loss 3")]


@pytest.mark.parametrize("override", ["guards.{}.at=3", "guards.{}=on"])
def test_overrides_name_it(own, override):
    name = own(GUARD)
    config = SMOKE.with_(override.format(name))
    assert list(config.guards) == [name]
    assert Config.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert said(train(config))[-1] == ("Mine", "loss 3")
    assert len(said(train(config))) == (1 if "=3" in override else 2)
    assert config.with_(f"guards.{name}=off") == SMOKE


def test_its_settings_are_checked(own):
    name = own(GUARD)
    with pytest.raises(ConfigError, match=r"Mine\.at = 0: must be at least 1"):
        validated(SMOKE.with_(f"guards.{name}.at=0"))
    with pytest.raises(ConfigError, match=r"unknown setting 'att'; did you mean 'at'"):
        validated(SMOKE.with_(f"guards.{name}.att=3"))


@pytest.mark.parametrize(
    ("source", "name", "message"),
    [
        (
            "def Mine(): ...",
            "Mine",
            "a guard is a class of its own, a subclass of grpo_lab.(training.)?interventions.Intervention",
        ),
        (GUARD.replace("Stage.LOSS", "'losses'"), "Mine", "stage = 'losses': must be one of coefficients, sampling"),
        (GUARD, "Yours", "unknown name in .*my.guard.py 'Yours'"),
        ("import torch\n1 / 0", "Mine", r"importing it raised ZeroDivisionError: division by zero \(line 2\)"),
    ],
)
def test_a_guard_that_is_none_is_refused(own, source, name, message):
    with pytest.raises(ConfigError, match=message):
        validated(SMOKE.with_guards({own(source, name): {}}))


@pytest.mark.slow
def test_a_child_runs_it_and_its_parent_does_not(own, tmp_path):
    """What a learner wrote runs where the run goes on, and a run is still shown when the file is gone."""
    mark, child = tmp_path / "ran in", Child()
    source = f"{GUARD}\nimport os\nwith open({str(mark)!r}, 'a') as file:\n    file.write(str(os.getpid()) + ' ')\n"
    name = own(source)
    session = Session(SMOKE.with_guards({name: {}}), tmp_path / "run", child=child)
    assert not mark.exists()
    session.run()
    assert said(session.events) == [("Mine", "loss 2"), ("Mine", "loss 3")]
    assert str(os.getpid()) not in mark.read_text().split()
    (tmp_path / "v1.0" / "my.guard.py").unlink()
    assert said(Session.open(tmp_path / "run").events) == said(session.events)

    # And a mistake in it reaches the parent.
    formula = own("def k3(delta): return", "k4")
    session = Session(SMOKE.with_(f"loss.kl_estimator={formula}"), tmp_path / "mistake", child=child)
    with pytest.raises(ConfigError, match=r"unknown name in .* 'k4'; did you mean 'k3'"):
        session.run()
    assert session.status == "failed" and "Traceback" not in child.stderr
    child.close()
    assert child.process.returncode == ConfigError.exit_code


def test_a_running_model_refuses_a_bad_one_and_goes_on(own, tmp_path):
    session = Session(SMOKE, tmp_path / "run")
    with pytest.raises(ConfigError, match="importing it raised"):
        session.set(f"guards.{own('1 / 0')}=on")
    assert session.run().status == "done"


def test_the_command_line_takes_it(own, tmp_path, call):
    name = own(GUARD)
    formula = own(FORMULA.format(name="k", setting="kl_estimator", which="k3"), "k", "kl.py")
    words = ["train", "--preset", "smoke", "--set", "run.threads=1", "--guards", f"warm_up,{name}"]
    words += ["--set", f"guards.{name}.at=1", "--set", f"loss.kl_estimator={formula}", "--out", str(tmp_path / "run")]
    assert call(*words)[0] == 0
    session = Session.open(tmp_path / "run")
    assert list(session.config.guards) == ["warm_up", name]
    assert [name for name, _ in said(session.events)].count("Mine") == 3
    (tmp_path / "v1.0" / "my.guard.py").write_text("def Mine(:")
    words[-1] = str(tmp_path / "again")
    code, _, error = call(*words)
    assert code == 2 and error.startswith("error: ") and "SyntaxError" in error and "Traceback" not in error
