"""What a failed assertion leaves: its text and exit code, and a parent that computes and trains on."""

import subprocess
import sys

import pytest
import torch

from grpo_lab.config.catalog import preset, scenario
from grpo_lab.runs.child import Child
from grpo_lab.runs.crashes import classify_crash
from grpo_lab.runs.session import Session

pytestmark = pytest.mark.slow
RAW = {
    "multinomial": "torch.multinomial(torch.full((4,), float('nan'), device=device), 1)",
    "embedding": "torch.nn.functional.embedding(torch.tensor([9], device=device), torch.ones(3, 2, device=device))",
    "gather": "torch.ones(1, 3, device=device).gather(1, torch.tensor([[9]], device=device))",
}


@pytest.mark.parametrize("operator", list(RAW))
def test_the_raw_text_of_an_assertion(device, figures, multinomial, operator):
    wait = "torch.cuda.synchronize()" if device == "cuda" else ""
    code = f"import torch; device = {device!r}; {RAW[operator]}; {wait}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    crash = classify_crash(done.stderr)
    figures["assertions"] = {
        operator: {"exit code": done.returncode, "stderr": done.stderr[-3000:], "kind": crash.kind, "text": crash.text}
    }
    assert done.returncode not in (0, None)
    assert crash.kind == (multinomial if operator == "multinomial" else f"index-{device}")


@pytest.fixture(scope="module")
def survivor(device):
    """A tensor that lived on the device before the crash."""
    return torch.arange(4.0, device=device)


@pytest.fixture(scope="module")
def crashed(device, survivor, tmp_path_factory):
    """The session of a run that dies in a child, and that child."""
    config = scenario("cuda-001").config().with_(f"run.device={device}")
    child = Child()
    session = Session(config, tmp_path_factory.mktemp("crash") / "run", child=child).run()
    if device == "cpu":
        child.close()  # there the error is an exception, and the child could go on
    return session, child


def test_the_child_died_of_multinomial(crashed, device, figures, multinomial):
    session, child = crashed
    assert session.crash is not None
    figures["crash in a child"] = {
        "kind": session.crash.kind,
        "operator": session.crash.operator,
        "text": session.crash.text,
        "message": session.ended.message,
        "exit code": child.process.returncode,
        "stderr": child.stderr[-3000:],
        "first break": str(session.first_break()),
    }
    assert (session.status, session.crash.kind) == ("crashed", multinomial)
    assert device == "cpu" or child.process.returncode == 1


def test_the_parent_still_computes(crashed, survivor):
    assert (survivor * 2).sum().item() == 12


@pytest.mark.parametrize("child", [True, False], ids=["in another child", "in this process"])
def test_the_next_run_trains(crashed, device, tmp_path, child):
    session = Session(preset("smoke").with_(f"run.device={device}"), tmp_path / "run", child=child).run()
    assert (session.status, len(session.records), session.crash) == ("done", 3, None)


def test_its_run_folder_opens(crashed):
    session, _ = crashed
    assert Session.open(session.directory).crash == session.crash
