"""A device-side assert ends the child and nothing else: its parent computes and trains on."""

import pytest
import torch

from grpo_lab.config.catalog import preset, scenario
from grpo_lab.runs.session import Session


@pytest.fixture(scope="module")
def survivor(device):
    """A tensor that lived on the device before the crash."""
    return torch.arange(4.0, device=device)


@pytest.fixture(scope="module")
def crashed(device, survivor, tmp_path_factory):
    config = scenario("cuda-001").config().with_(f"run.device={device}")
    return Session(config, tmp_path_factory.mktemp("crash") / "run", child=True).run()


@pytest.fixture
def healthy(device):
    return preset("smoke").with_(f"run.device={device}")


def test_the_child_died_of_multinomial(crashed, multinomial):
    assert crashed.crash is not None and crashed.crash.kind == multinomial
    assert crashed.status == "crashed"


def test_the_parent_still_computes(crashed, survivor):
    assert (survivor * 2).sum().item() == 12


@pytest.mark.parametrize("child", [True, False], ids=["in another child", "in this process"])
def test_the_next_run_trains(crashed, healthy, tmp_path, child):
    session = Session(healthy, tmp_path / "run", child=child).run()
    assert (session.status, len(session.records), session.crash) == ("done", 3, None)


def test_its_run_folder_opens(crashed):
    assert Session.open(crashed.directory).crash == crashed.crash
