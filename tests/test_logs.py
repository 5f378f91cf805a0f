"""Readers: every format becomes the same table, NaN is kept apart from what was not logged, bad input says so.

A folder of tests/logs is a log, expected.json is what is read from it, and names.json tells what names mean.
To add a format, add a folder.
"""

import gzip
import io
import json
import math
import os
import pickle
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
import torch

import grpo_lab as gl
from grpo_lab.analysis import logs
from grpo_lab.analysis.diagnosis import diagnose
from grpo_lab.analysis.diagnosis.report import story
from grpo_lab.analysis.logs import beside
from grpo_lab.analysis.logs.table import choose, fact, meaning
from grpo_lab.analysis.logs.text import last_exception
from grpo_lab.errors import LogError
from grpo_lab.metrics import METRICS, OTHER_NAMES

LOGS = Path(__file__).parent / "logs"
EXPECTED, NAMES = (json.loads((LOGS / f"{name}.json").read_text(encoding="utf-8")) for name in ("expected", "names"))
FIELDS = ("format", "source", "name", "hides_nan", "updates_a_row", "settings", "crash", "unread", "begins_late")
HEAD = "Traceback (most recent call last):\n  File 'a'"
TRACEBACK = "Traceback (most recent call last):\n  File 'a.py', line 1\nRuntimeError: CUDA error\n"


@pytest.fixture
def write(tmp_path):
    def to(name, text, encoding="utf-8"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode(encoding))
        return path

    return to


def values(log, metric):
    return log.metrics[metric].to_dict()


def lines_of(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def log_in(case):
    """The only file of a folder in tests/logs, or the folder."""
    files = [path for path in (LOGS / case).rglob("*") if path.is_file()]
    return files[0] if len(files) == 1 else LOGS / case


def told(case):
    """What is read from a folder in tests/logs, and the first sentence of it, one entry a run."""
    runs = []
    for log in logs.read_runs(log_in(case)):
        curves = {**log.metrics, **{f"rewards/{name}": curve for name, curve in log.functions.items()}}
        about = {name: value for name in FIELDS if (value := getattr(log, name))}
        notes = [[note.key, dict(note.values)] for note in log.notes]
        points = {name: [curve.index.tolist(), [repr(value) for value in curve]] for name, curve in curves.items()}
        said = {"verdict": diagnose(log).verdict, "said": story(log, "en")}
        runs.append({**said, **about, "notes": notes, "curves": points})
    return runs


@pytest.mark.parametrize(
    "case", sorted(path.name for path in LOGS.iterdir() if path.is_dir() and path.name != "causes")
)
def test_a_log_is_read_and_diagnosed_as_expected(case):
    if case.startswith("tensorboard") and "csv" not in case:
        pytest.importorskip("tensorboard")
    assert json.loads(json.dumps(told(case))) == EXPECTED[case]


def test_names_are_metrics():
    assert set(OTHER_NAMES) <= set(METRICS)


def test_cumulative_tokens_of_trl_are_not_a_step_s_tokens():
    assert "num_tokens" in choose(["num_tokens", "kl"])
    assert "num_tokens" not in choose(["num_tokens", "kl", "epoch"])


@pytest.mark.parametrize(
    ("names", "source"),
    [
        (["train/kl", "train/epoch"], "trl"),
        (["rewards/right/mean", "kl"], "trl"),
        (["actor/grad_norm", "training/global_step"], "verl"),
        (["train/policy_loss", "train/actor_lr"], "openrlhf"),
        (["reward", "epoch", "memory(GiB)"], "ms-swift"),
        (["kl", "run.memory"], "grpo_lab"),
        (["kl", "weights/max_move", "weights/nonfinite"], ""),
        (["kl", "ratio/max", "log_ratio/max", "kl/exact"], ""),
        (["kl", "reward"], ""),
    ],
)
def test_the_source_is_known_from_names(names, source):
    frame = pd.DataFrame({name: [1.0, 2.0] for name in [*names, "grad_norm"]})
    assert logs.from_frame(frame).source == logs.from_dicts(frame.to_dict("records")).source == source


def test_a_loop_of_ones_own_with_guards_did_not_write_its_log_by_this_trainer():
    model, guards, rows = torch.nn.Linear(2, 1), gl.Guards("clamp_log_ratio", "rollback"), []
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(6):
        model(guards.at("log_ratio", torch.ones(4, 2))).sum().backward()
        rows.append({"step": step, "reward": 0.1, **guards.step(model, optimizer, kl=0.01).metrics})
    assert {"weights/max_move", "log_ratio/max"} & rows[0].keys()
    assert gl.diagnose(rows).log.source == ""


@pytest.mark.parametrize(
    ("steps", "runs"),
    [
        ([1, 2, 3, 4, 1, 2, 3], 2),
        ([1, 2, 1, 2, 3], 2),
        ([0, 1, 2, 0, 1, 0, 1, 2, 3], 3),
        ([10, 20, 30, 10, 20], 2),
        ([1, 2, 3, 4, 10, 20, 30, 1, 2], 2),
        ([1, 2, 3, 4, 5, 10, 15], 1),
        ([1, 2, 3, 4, 5, 4, 5, 6], 1),
        ([10, 20, 30, 40, 20, 30], 1),
        ([0, 1, 1, 2, 3], 1),
        ([1, 1, 2, 3, 1, 2, 3], 3),
        ([1, 1, 2, 3, 1], 3),
        ([0, 2, 1, 3, 4], 1),
        ([5, 6, 7, 6], 1),
        ([1, 2, 3, 1], 1),
        ([*range(1, 20), 1], 2),
        ([6, 5, 4, 3, 2, 1], 1),
        ([3, 1, 6, 2, 5, 4, 9, 7], 1),
    ],
)
def test_runs_in_one_file_are_told_apart(write, steps, runs):
    path = write("many.jsonl", lines_of({"step": step, "kl": 0.5, "reward": step / 10} for step in steps))
    found = logs.read_runs(path)
    assert sum(len(log.steps) for log in found) == (len(set(steps)) if runs == 1 else len(steps))
    told = [fact("runs", count=runs, number=number) for number in range(1, runs + 1)] if runs > 1 else []
    assert [note for log in found for note in log.notes if note.key == "runs"] == told
    assert logs.read(path).metrics["reward"].equals(found[-1].metrics["reward"])


def test_rewards_of_which_rounding_is_left_are_none(write):
    rows = [{"step": step, "reward": 1e-7 * (-1) ** step, "kl": 0.01, "loss": 0.1} for step in range(8)]
    log = logs.read(write("log.jsonl", lines_of(rows)))
    assert "reward" not in log.metrics and fact("not_measured", names="reward") in log.notes
    zero = logs.read(write("log.jsonl", lines_of([{**row, "reward": 0.0} for row in rows])))
    assert zero.metrics["reward"].tolist() == [0.0] * 8
    asked = logs.read(write("log.jsonl", lines_of({**row, "foo": row["reward"]} for row in rows)), {"reward": "foo"})
    assert len(asked.metrics["reward"]) == 8, "the user knows better"


def test_the_run_shown_is_the_training_not_the_stage_before():
    assert "reward" in diagnose(LOGS / "trl-after-sft").log.metrics


@pytest.mark.parametrize(
    ("evaluations", "held_out", "note"),
    [
        (lines_of({"step": step, "accuracy": 0.125 * step} for step in (0, 4, 8)), [0.0, 0.5, 1.0], "held_out_beside"),
        (lines_of({"step": step, "accuracy": 0.125} for step in (40, 80)), [], None),
        ("{\n" * 9, [], "bad_evaluations"),
        (b"\x1f\x8bno gzip", [], "bad_evaluations"),
    ],
    ids=["of this run", "of another", "damaged", "packed and damaged"],
)
def test_the_held_out_reward_stands_in_a_file_beside(evaluations, held_out, note, write):
    write("eval.jsonl", evaluations)
    write("test.jsonl/a_folder", "")
    log = logs.read(write("train.jsonl", lines_of({"step": step, "reward": 0.1 * step} for step in range(1, 9))))
    assert log.metrics.get("eval/reward", pd.Series()).tolist() == held_out
    assert [each.key for each in log.notes] == [note] * bool(note)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            f"{HEAD}\na.RayTaskError(ValueError): ray::run()\n  File 'b'\n    x\nValueError: 3\n(pid=2) INFO\n",
            "ValueError: 3",
        ),
        (f"{HEAD}\nINFO: saved\nmy.OutOfMemoryError: full\n", "my.OutOfMemoryError: full"),
        (f"{HEAD}\n    x\nKeyboardInterrupt\n", "KeyboardInterrupt"),
        (f"{HEAD}\nqueue.Empty\n", "queue.Empty"),
        ("╭─ Traceback (most recent call last) ─╮\n│ a.py:1 in f │\n╰─────╯\nRuntimeError: 1\n", "RuntimeError: 1"),
        (HEAD, "Traceback (most recent call last)"),
        (f"# TypeError: no text\n{HEAD}", "TypeError: no text"),
        ("x\nRuntimeError: CUDA error: an assert\nCUDA kernel errors\n", "RuntimeError: CUDA error: an assert"),
        ("a row\nKilled\n", "Killed"),
        ("a row\nslurmstepd: error: JOB 3 CANCELLED\n", "slurmstepd: error: JOB 3 CANCELLED"),
        ("the answer:\nNameError: x\nKilled it\n", ""),
    ],
)
def test_the_last_line_of_a_traceback(text, says):
    assert last_exception(text) == says


# Tables in memory


def test_dictionaries():
    rows = [{"step": 5, "kl": "0.1", "note": "x"}, {"step": 6, "kl": math.nan, "reward": None}, {"step": 7, "kl": [1]}]
    log = logs.from_dicts(rows)
    assert log.steps.tolist() == [5, 6] and math.isnan(values(log, "kl")[6]) and "reward" not in log.metrics
    assert len(logs.from_dicts([]).steps) == 0
    parts = logs.from_dicts([{"step": f"{step}/9", "reward": f"{step}/8"} for step in range(3, 9)])
    assert values(parts, "reward") == {place: (place + 3) / 8 for place in range(6)}, "no step is a share"
    with pytest.raises(LogError, match="int"):
        logs.from_dicts([{"kl": 1}, 3])  # type: ignore[list-item]


def test_frames():
    frame = pd.DataFrame({"kl": [0.1, math.nan, math.nan], "reward": [1.0, 2.0, math.nan], "step_time": 1.0})
    log = logs.from_frame(frame)
    assert math.isnan(values(log, "kl")[1])
    assert log.steps.tolist() == [0, 1]
    sparse = pd.DataFrame({"step": [3, 4], "kl": [None, 0.5], "train/reward": [1.0, 2.0]}, dtype=object)
    assert values(logs.from_frame(sparse), "kl") == {4: 0.5}
    assert values(logs.from_frame(sparse), "reward") == {3: 1.0, 4: 2.0}
    twice = pd.DataFrame([[1, 0.1, 0.2], [2, 0.3, 0.4]], columns=["step", "kl", "kl"])
    assert values(logs.from_frame(twice), "kl") == {1: 0.2, 2: 0.4}
    for empty in (pd.DataFrame(), pd.DataFrame({"step": []}), pd.DataFrame({"step": [], "kl": []})):
        assert len(logs.from_frame(empty).steps) == 0
    assert not logs.from_frame(pd.DataFrame({"colour": ["red"], "step": [1]})).metrics


def test_the_last_run_of_a_table():
    rows = [{"step": step, "kl": kl} for kl in (0.1, 0.2) for step in (1, 2, 3)]
    for log in (logs.from_dicts(rows), logs.from_frame(pd.DataFrame(rows))):
        assert values(log, "kl") == {1: 0.2, 2: 0.2, 3: 0.2} and log.notes == (fact("runs", count=2, number=2),)
    rates = [{"kl": 0.1, "learning_rate": rate} for rate in (0.0, 2.0, 1.0, 3.0, 1.0)]
    assert len(logs.from_dicts(rates).steps) == 5  # a rate that a guard lowers and raises tells nothing


# Names


@pytest.mark.parametrize(("name", "metric"), NAMES.items())
def test_a_name_means_the_metric_of_its_words(name, metric):
    assert getattr(meaning(name), "metric", None) == metric


def test_the_closest_of_several_names_counts():
    names = ["critic/score/mean", "accuracy", "raw_reward", "avg_reward", "reward"]
    assert [choose(names[:count])["reward"] for count in (2, 3, 4, 5)] == [names[0], names[0], names[0], "reward"]


def test_an_unread_column_is_offered_and_may_be_given(write):
    text = "".join(f"step {n} | my_rew_x: 0.{n} | loss: 0.1 | kl: 0.01 | foo: 3\n" for n in range(1, 9))
    path = write("own.log", text)
    log = logs.read(path)
    assert log.unread == ("my_rew_x", "foo") and "reward" not in log.metrics
    assert "--metric reward=my_rew_x" in log.notes[-1].said()
    assert values(logs.read(path, {"reward": "my_rew_x"}), "reward")[8] == 0.8
    assert values(diagnose([{"x": 0.1}, {"x": 0.2}], {"reward": "x"}).log, "reward") == {0: 0.1, 1: 0.2}
    with pytest.raises(LogError, match="my_rew_x, bar, baz, foo: --metric reward=my_rew_x"):
        logs.read(write("other.log", text.replace("loss", "bar").replace("kl", "baz")))
    with pytest.raises(LogError, match="no column 'fo' for kl/exact; columns that were not read: my_rew_x, foo"):
        logs.read(path, {"kl/exact": "fo"})
    with pytest.raises(LogError, match="no column 'fo' for kl; columns"):  # though the log has a KL
        logs.read(path, {"kl": "fo"})
    with pytest.raises(LogError, match="no column 'y' for reward"):
        diagnose([{"reward_a": 0.1, "reward_b": 0.1}] * 2, {"reward": "y"})  # of parts, which are summed without it
    with pytest.raises(LogError, match="unknown metric 'rewards'; did you mean 'reward'"):
        logs.read(path, {"rewards": "foo"})


# Files beside a log


def state(write, name="trainer_state.json"):
    history = [{"step": n, "kl": 0.1, "epoch": 0.1} for n in (1, 2, 3)]
    return write(name, json.dumps({"logging_steps": 1, "log_history": history}))


def test_a_crash_beside_a_trainer_state(write):
    path, metrics = state(write, "out/checkpoint-3/trainer_state.json"), "{'loss': 0.0, 'reward': 0.1}\n"
    assert logs.read(path).crash == ""
    console = write("out/train.log", metrics + TRACEBACK)
    assert logs.read(path).crash == logs.read(path.parents[1]).crash == "RuntimeError: CUDA error"
    os.utime(console, (1, 1))
    write("out/second.log", metrics)  # a later run that went on
    assert logs.read(path).crash == ""
    console.unlink()
    write("out/stderr.txt", TRACEBACK)
    assert logs.read(path).crash == "RuntimeError: CUDA error"


class Malicious:
    def __init__(self, call, *arguments):
        self.call, self.arguments = call, arguments

    def __reduce__(self):
        return self.call, self.arguments


@pytest.mark.parametrize("name", ["training_args.bin", "checkpoint-3/training_args.bin", "../training_args.bin"])
def test_a_pickle_of_settings_is_not_read_and_the_way_out_is_named(tmp_path, write, name):
    planted = tmp_path / "planted"
    path = state(write, "run/trainer_state.json")
    write(f"run/{name}", pickle.dumps(Malicious(os.mkdir, str(planted))))
    write("run/config.json", json.dumps({"model_type": "gpt2", "architectures": [], "dtype": "float32"}))
    log = logs.read(path)
    assert log.settings == {"model.dtype": "float32", "logging_steps": 1} and log.notes == (fact("pickle"),)
    write("run/args.json", json.dumps({"learning_rate": 1e-6}))
    log = logs.read(path)
    assert log.settings["learning_rate"] == 1e-6 and not log.notes
    assert not planted.exists()


def test_of_several_yaml_files_none_is_the_log_s(write):
    write("docker.yaml", "services: {a: 1}\n")
    write("one.yaml", "learning_rate: 1.0\n")
    assert logs.read(state(write)).settings == {"logging_steps": 1}
    write("args.json", "{")
    assert [note.key for note in logs.read(state(write)).notes] == ["bad_settings"]


def test_settings_that_hold_each_other_are_read_so_far():
    tree = {"x": 1}
    for _ in range(60):
        tree = {"a": tree, "b": tree, "c": tree}
    started = time.perf_counter()
    assert len(beside.flat(tree)) <= beside.LIMITS["most"]
    assert time.perf_counter() - started < 5
    own = {}
    own["own"] = own
    assert beside.flat(own) == {}


@pytest.mark.trl
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_arguments_of_trl_as_json(tmp_path, write):
    """The file that the note about training_args.bin asks for."""
    trl = pytest.importorskip("trl")
    given = {"learning_rate": 3e-6, "beta": 0.04, "temperature": 0.7, "num_generations": 4}
    arguments = trl.GRPOConfig(
        output_dir=str(tmp_path),
        per_device_train_batch_size=4,
        logging_steps=10,
        use_cpu=True,
        bf16=False,
        report_to=[],
        model_init_kwargs={"dtype": "float16"},
        **given,
    )
    write("args.json", arguments.to_json_string())
    found = logs.read(state(write)).settings
    for name in (*given, "bf16", "adam_epsilon", "max_grad_norm"):
        assert found[name] == getattr(arguments, name), name
    assert found["model_init_kwargs.dtype"] == "float16"
    assert found["lr_scheduler_type"] == "linear" and found["save_strategy"] == "steps"


# Any input


def test_packed_logs_and_the_standard_input(write, monkeypatch):
    data = log_in("gzip").read_bytes()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert logs.read("-").steps.tolist() == [1, 2, 3]
    with pytest.raises(LogError, match=r"cut.gz.*gzip -dc"):
        logs.read(write("cut.gz", data[:-12]))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    with pytest.raises(LogError, match="- is empty"):
        logs.read("-")


@pytest.mark.parametrize(
    "case",
    [
        "console-constant-rate",
        "csv",
        "json-lines-two-runs",
        "ms-swift-console",
        "tensorboard-csv-one",
        "trainer-state",
        "verl-healthy",
        "verl-wrapped-at-80",
        "wandb-panel",
    ],
)
def test_damaged_files_are_read_or_refused(write, case):
    """A file that is cut or overwritten anywhere gives right values or a LogError that names it."""
    path = log_in(case) if log_in(case).is_file() else LOGS / case / "console.log"
    text, junk = path.read_bytes(), (b"\0\0\xff\xfe", b"\n\n", b'"', b"{[", "…".encode(), b"nan", b"\r")
    damaged = [text[: len(text) * part // 17] for part in range(17)]
    fifths = [len(text) * part // 5 for part in range(1, 5)]
    damaged += [text[:place] + inserted + text[place:] for place in fifths for inserted in junk]
    right = [value for log in logs.read_runs(path) for value in log.metrics["kl"].dropna()]
    for data in damaged:
        try:
            found = logs.read_runs(write(path.name, data))
        except LogError as error:
            assert path.name in str(error) and error.exit_code == 2
            continue
        kl = [value for log in found for value in log.metrics.get("kl", pd.Series(dtype=float)).dropna()]
        assert len(kl) <= len(right) + 1
        assert sum(value not in right for value in kl) <= 1


@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        ("empty.log", b"", "is empty"),
        ("blank.log", b"\n  \n", "is empty"),
        ("poem.txt", b"Shall I compare thee\nto a summer's day?\n", "unknown format; looked for .*verl.*CSV"),
        ("config.yaml", b"model: gpt2\nlr: 1e-5\n", "unknown format"),
        ("cut.json", b'{"log_history": [{"step": 1, "kl"', "damaged JSON"),
        ("other.json", b'{"model_type": "gpt2"}', "JSON lines and holds no metric"),
        ("broken.jsonl", b'{"kl": 0.1}\na\nb\nc\n{"kl": 0.2}\n', "3 of 5 lines.*line 2"),
        ("a.bin", bytes(range(256)) * 10, "binary file"),
        ("runs.csv", b"Name,State,train/kl\na,finished,0.1\n", "one row a run"),
        ("deep.json", b"[" * 200_000, "unknown format"),
        ("ragged.csv", b"step,kl\n1,2\n1,2,3,4\n", "damaged CSV, row 3 has 4 cells of 2"),
        ("nan.csv", b"step,kl\nnan,nan\n", "no metric known here"),
        ("header.csv", b"step,kl\n", "no metric known here"),
        ("run.csv", b"Wall time,Step,Value\n17.5,1,0.1\n", "rename it to that of the curve"),
        ("deep.jsonl", b'{"step": 1, "kl": 0.1}\n' + b'{"a":' * 100_000 + b"\n" + b"x\n" * 4, "no JSON object"),
        ("events.gz", gzip.compress(b"\x18" + b"\0" * 11 + b"\x1a\x0dbrain.Event:2", mtime=0), "unpack it first"),
    ],
)
def test_bad_files(write, name, data, says):
    with pytest.raises(LogError, match=says) as caught:
        logs.read(write(name, data))
    assert caught.value.exit_code == 2 and name in str(caught.value)


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({}, "holds no log"),
        ({"a.log": "", "b.log": ""}, "2 files"),
        ({"a.ipynb": "", "b.ipynb": ""}, "2 files"),
        ({"a.csv": "Wall time,Step,Value\n17.5,1,0.1\n", "b.csv": "step,x\n1,2\n"}, "no metric known here"),
        ({"first/trainer_state.json": "{}", "second/trainer_state.json": "{}"}, "2 runs: first, second"),
    ],
)
def test_bad_folders(tmp_path, write, files, says):
    for name, text in files.items():
        write(name, text)
    with pytest.raises(LogError, match=says):
        logs.read(tmp_path)


def test_paths_that_cannot_be_read(tmp_path, monkeypatch):
    with pytest.raises(LogError, match="No such file"):
        logs.read(tmp_path / "nowhere.log")
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # as root, no permission is ever missing
    with pytest.raises(LogError, match="Permission denied"):
        logs.read(tmp_path)


def test_tensorboard_that_is_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard.backend.event_processing.event_accumulator", None)
    with pytest.raises(LogError, match=r"pip install .*tensorboard"):
        logs.read(log_in("tensorboard"))


@pytest.mark.parametrize("case", ["csv", "markdown-evaluations-alone", "own-block", "own-brackets", "unsloth"])
@pytest.mark.parametrize(
    "margin",
    [
        "> ",
        "+",
        "- ",
        "    ",
        "[rank0]: ",
        "train.log:{0}:",
        "{0:4}  ",
        "{0}: ",
        "2025-03-01 12:00:{0:02} INFO a.py:88 - ",
    ],
)
def test_what_stands_before_each_line_is_none_of_the_log(write, case, margin):
    bare = log_in(case).read_text(encoding="utf-8").splitlines(True)[:50]
    marked = [margin.format(place) + line for place, line in enumerate(bare, start=1)]
    one, other = (logs.read(write("a.txt", "".join(lines))) for lines in (bare, marked))
    assert one.metrics.keys() == other.metrics.keys() and len(one.steps) > 2
    assert all(one.metrics[name].equals(other.metrics[name]) for name in one.metrics)
