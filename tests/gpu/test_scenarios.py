"""Every scenario on this device: alone it breaks as its file says, under the guards of preset `stable` it survives.

Each runs in a process of its own, because a CUDA assert ends the process; twelve at a time with a thread each, because
starting one takes longer than the run. On the CPU, where other tests run every scenario, one of them stands for all.
"""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from grpo_lab.config.catalog import scenario
from grpo_lab.runs.outcome import outcome
from grpo_lab.runs.session import Session
from tests.test_scenarios import REFUSED_WHOLE

SEEDS = (0, 1, 2)
"""A scenario may need another seed on another device: its random draws differ from the CPU's."""
AT_ONCE = {"cuda": 12, "cpu": min(2, os.cpu_count() or 1)}
PATIENCE = 400
pytestmark = pytest.mark.slow


def shown(session, expect) -> list[str]:
    """What the scenario's file expects and the run did not show."""
    crash, found, records = session.crash, session.first_break(), session.records
    missing = []
    if (crash.operator if crash else "") != expect.crash:
        missing.append(f"crash {expect.crash!r}, but it was {crash} and the status {session.status}")
    if expect.first_break and (found is None or found.link != expect.first_break):
        missing.append(f"first break {expect.first_break!r}, but it was {found}")
    for name, value in expect.metrics.items():
        if not (name in records and records[name].max() >= value):
            missing.append(f"{name} >= {value:g}, but it was {records[name].max() if name in records else 'not noted'}")
    return missing


def alone(name, device, folder):
    """The run of the first seed that shows what the file expects, or of the last, and what that lacks."""
    case, runs = scenario(name), []
    for seed in SEEDS:
        config = case.config().with_(f"run.device={device}", "run.threads=1", f"run.seed={seed}")
        session = Session(config, folder / f"{name}-{seed}", child=True).run()
        runs.append((session, shown(session, case.expect)))
        if not runs[-1][1]:
            break
    return runs[-1]


def guarded(name, device, folder):
    config = scenario(name).config(guards="stable").with_(f"run.device={device}", "run.threads=1")
    return Session(config, folder / f"{name}-stable", child=True).run()


def end(session):
    """How a run ended, as gpu.json has it."""
    return {
        "status": session.status,
        "crash": session.crash.kind if session.crash else "",
        "text": session.crash.text if session.crash else "",
        "first break": str(session.first_break() or ""),
    }


@pytest.fixture(scope="module")
def runs(device, names, tmp_path_factory):
    """All runs, begun at once; a test waits for its own."""
    folder = tmp_path_factory.mktemp("scenarios")
    with ThreadPoolExecutor(AT_ONCE[device]) as pool:
        yield {
            (name, kind.__name__): pool.submit(kind, name, device, folder)
            for name in names
            for kind in (alone, guarded)
        }
        pool.shutdown(cancel_futures=True)


def test_breaks_as_its_file_says(runs, name, multinomial, figures):
    session, missing = runs[name, "alone"].result(PATIENCE)
    figures["scenarios"] = {name: {"seed": session.config.run.seed, "missing": missing, **end(session)}}
    assert missing == []
    if session.crash and session.crash.operator == "torch.multinomial":
        assert session.crash.kind == multinomial


def test_survives_under_the_stable_guards(runs, name, figures):
    session = runs[name, "guarded"].result(PATIENCE)
    figures["scenarios"] = {name: {"under stable": end(session)}}
    assert session.crash is None, session.crash
    assert session.status == "done", session.ended
    assert (session.records["updates"].sum() > 0) == (name not in REFUSED_WHOLE)
    assert not outcome(session.events).poisoned
