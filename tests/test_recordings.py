"""Recorded runs open, show what their page says, and stay as they were shipped."""

import json
import math
import shutil
import sys
from pathlib import Path
from statistics import mean, median

import pytest

from grpo_lab import cli
from grpo_lab.config.catalog import preset
from grpo_lab.events import Evaluated, Started, Stepped
from grpo_lab.runs import recordings
from grpo_lab.runs.session import Session

HOME = recordings.find("cuda-001-smollm2-135m-original").parent
FILES = {"config.json", "environment.json", "events.jsonl"}
RUNS = {name: Session.open(recordings.find(name)) for name in recordings.recording_names()}


def largest_norm(session: Session) -> float:
    """The largest finite gradient norm of any update."""
    steps = [event for event in session.events if isinstance(event, Stepped)]
    norms = [note.magnitude for step in steps for note in step.links if note.link == "gradients"]
    return max(norm for norm in norms if math.isfinite(norm))


def max_nonfinite(session: Session) -> float:
    """The most weights that were not finite after any step."""
    steps = [event.metrics for event in session.events if isinstance(event, Stepped)]
    return max(metrics["weights/nonfinite"] for metrics in steps if "weights/nonfinite" in metrics)


def test_all_together_are_small():
    assert sum(path.stat().st_size for path in HOME.rglob("*") if path.is_file()) < 12_000_000


def test_every_recording_has_its_section_or_row():
    page = (HOME / "README.md").read_text(encoding="utf-8")
    assert RUNS.keys() == {path.name for path in HOME.iterdir() if path.is_dir()}
    assert [name for name in RUNS if f"\n## {name}\n" not in page and f"\n| `{name}` |" not in page] == []


@pytest.mark.parametrize("name", RUNS)
def test_events_only_and_nothing_of_the_machine_but_its_kind(name):
    folder = recordings.find(name)
    assert {path.name for path in folder.iterdir()} == FILES
    assert sum(path.stat().st_size for path in folder.iterdir()) < 1_200_000
    environment = json.loads((folder / "environment.json").read_text())
    assert environment["device"] == "cpu" and environment["packages"]["torch"]
    for file in FILES:
        text = (folder / file).read_text(encoding="utf-8")
        assert [word for word in ("/tmp", "/home", "/root", "/work", "/usr") if word in text] == []


@pytest.mark.parametrize("name", [name for name in RUNS if "-smollm2" in name])
def test_recorded_on_the_pretrained_model(name):
    session = RUNS[name]
    started = next(event for event in session.events if isinstance(event, Started))
    trained = 2_442_240 if session.config.lora.r else 134_515_008
    assert (session.config.model.name, started.num_parameters) == ("smollm2-135m", trained)


@pytest.mark.parametrize(("name", "norm"), [("kl-explosion-smollm2", 1e6), ("train-001-smollm2-135m-original", 1e4)])
def test_train_001_explodes_and_every_weight_stays_finite(name, norm):
    session = RUNS[name]
    assert session.status == "done" and session.first_break() is None
    assert largest_norm(session) >= norm
    assert max_nonfinite(session) == 0


def test_cuda_001_dies_in_multinomial():
    session = RUNS["cuda-001-smollm2-135m-original"]
    assert session.crash and session.crash.operator == "torch.multinomial"
    broken = session.first_break()
    assert broken and broken.link == "gradients"
    assert max_nonfinite(session) == 134_515_008


@pytest.mark.parametrize("name", [name for name in RUNS if name.endswith("-stable")])
def test_a_recording_named_stable_was_made_under_the_guards_of_stable(name):
    assert RUNS[name].config.guards == preset("stable").guards


@pytest.mark.parametrize("scenario", ["cuda-001", "train-001"])
def test_guards_keep_a_run_with_the_same_cause_alive(scenario):
    session, cause = (RUNS[f"{scenario}-smollm2-135m-{column}"] for column in ("stable", "original"))
    assert session.config.with_guards({}) == cause.config.with_guards({}), "only the guards differ"
    assert session.status == "done" and session.crash is None
    assert max_nonfinite(session) == 0
    assert not any(event.failed for event in session.events if isinstance(event, Stepped))


def test_reviews_are_learned():
    before, after = (event for event in RUNS["reviews-smollm2"].events if isinstance(event, Evaluated))
    assert (before.num_problems, after.num_problems) == (32, 32)
    assert before.reward < 0.2 and after.reward > 0.8


def test_both_objectives_of_the_dual_run_are_learned_by_grpo_with_lora():
    session = RUNS["dual-smollm2-135m"]
    same = preset("dual-smollm2").with_("run.threads=1")
    assert session.status == "done" and session.config == same, "the command of the page makes this run"
    _, before, after = (event.objectives for event in session.events if isinstance(event, Evaluated))
    assert before["F"] < 0.7 < 0.9 < after["F"] and before["H"] < -0.3 < -0.1 < after["H"]
    steps = [event.metrics for event in session.events if isinstance(event, Stepped)][-50:]
    for name, low, high in (("F", 0.02, 0.06), ("H", 0.08, 0.15)):
        rewards = [step[f"reward/{name}"] for step in steps]
        assert mean(rewards[-10:]) > mean(rewards[:10]) + 0.05
        assert low < median(step[f"kl/{name}"] for step in steps[25:]) < high


@pytest.mark.parametrize(("command", "figure"), [("trace", "chain"), ("replay", "run")])
def test_a_recording_is_shown_by_name_and_left_as_it_is(command, figure, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in HOME.rglob("*")}
    monkeypatch.setattr(sys, "argv", ["grpo-lab", command, "cuda-001-smollm2-135m-original"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert not end.value.code
    assert "torch.multinomial" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == [f"cuda-001-smollm2-135m-original-{figure}.png"]
    assert {path: path.stat().st_mtime_ns for path in HOME.rglob("*")} == before


def test_a_figure_goes_beside_the_run_or_where_it_is_asked_for(monkeypatch, tmp_path):
    run = shutil.copytree(recordings.find("cuda-001-smollm2-135m-original"), tmp_path / "mine")
    for words, expected in (([], run / "chain.png"), (["--out", tmp_path / "out"], tmp_path / "out/mine-chain.png")):
        monkeypatch.setattr(sys, "argv", ["grpo-lab", "trace", *map(str, [run, *words])])
        with pytest.raises(SystemExit):
            cli.main()
        assert expected.is_file()


def test_a_folder_comes_before_a_recording_of_its_name(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert recordings.find("cuda-001-smollm2-135m-original").is_absolute()
    (tmp_path / "cuda-001-smollm2-135m-original").mkdir()
    assert recordings.find("cuda-001-smollm2-135m-original") == Path("cuda-001-smollm2-135m-original")


def test_recordings_are_listed(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["grpo-lab", "recordings"])
    with pytest.raises(SystemExit):
        cli.main()
    shown = capsys.readouterr().out
    assert [name for name in RUNS if name not in shown] == []
