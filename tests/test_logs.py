"""Readers: every format becomes the same table, NaN is kept apart from what was not logged, bad input says so."""

import json
import math
import sys

import numpy as np
import pandas as pd
import pytest
import torch

import grpo_lab as gl
from grpo_lab.analysis import logs
from grpo_lab.analysis.logs import uniform
from grpo_lab.analysis.logs.crash import last_exception
from grpo_lab.analysis.logs.names import OTHER_NAMES, choose
from grpo_lab.analysis.logs.rows import Rows
from grpo_lab.errors import LogError
from grpo_lab.metrics import METRICS

VERL = (
    "(TaskRunner pid=222265) step:{step} - global_seqlen/mean:458966.5 - actor/entropy:0.22266578674316406 - "
    "actor/pg_clipfrac:0.0007935191160472839 - actor/ppo_kl:-8.163164312320433e-06 - actor/pg_loss:0.0424 - "
    "actor/kl_loss:{kl} - actor/loss:0.0425 - actor/grad_norm:{norm} - actor/lr:2e-06 - training/global_step:{step} - "
    "critic/score/mean:-0.0183 - critic/rewards/mean:-0.01 - response_length/mean:1267.02 - "
    "response_length/clip_ratio:0.05 - timing_s/step:12.5"
)


@pytest.fixture
def write(tmp_path):
    def to(name, text):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return to


def values(log, metric):
    series = log.metrics[metric]
    return dict(zip(series.index.tolist(), series.tolist(), strict=True))


def test_names_are_metrics():
    assert set(OTHER_NAMES) <= set(METRICS)


def test_cumulative_tokens_of_trl_are_not_a_step_s_tokens():
    assert "num_tokens" in choose(["num_tokens", "kl"])
    assert "num_tokens" not in choose(["num_tokens", "kl", "epoch"])


def test_trainer_state(write):
    history = [
        {"epoch": 0.1, "step": 1, "loss": 0.5, "grad_norm": 1.5, "kl": 0.01, "reward": 0.2, "num_tokens": 100.0},
        {"epoch": 0.2, "step": 2, "loss": 0.0, "grad_norm": float("nan"), "kl": float("inf"), "reward": 0.3},
        {"epoch": 0.2, "step": 2, "eval_loss": 0.1},
        {"epoch": 0.2, "step": 2, "train_runtime": 12.0, "total_flos": 0.0},
    ]
    log = logs.read(write("trainer_state.json", json.dumps({"global_step": 2, "log_history": history}, indent=2)))
    assert log.format == "a Trainer's log_history" and log.hides_nan
    assert values(log, "reward") == {1: 0.2, 2: 0.3}
    assert values(log, "kl")[2] == math.inf and math.isnan(values(log, "grad_norm")[2])
    assert "num_tokens" not in log.metrics
    assert log.notes == ()
    assert logs.read(write("list.json", json.dumps(history))).frame.equals(log.frame)


def test_the_newest_checkpoint_of_a_folder_is_read(tmp_path):
    for step in (5, 10):
        (tmp_path / f"checkpoint-{step}").mkdir()
        history = [{"step": n, "kl": 0.1, "epoch": 0.1} for n in range(1, step + 1)]
        (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text(json.dumps({"log_history": history}))
    assert logs.read(tmp_path).steps.tolist() == list(range(1, 11))


def test_lines_that_trainer_prints(write):
    text = "\n".join(
        [
            "  5%|▌         | 1/20 [00:03<01:03]",
            "{'loss': 0.25, 'grad_norm': 1.5, 'learning_rate': 1e-06, 'completion_length': 461.375, 'reward': 0.3}",
            "some warning {'a': 1}",
            "{'loss': '0', 'grad_norm': 'nan', 'learning_rate': '9e-07', 'completion_length': '12', 'reward': '0'}",
        ]
    )
    log = logs.read(write("console.txt", text))
    assert log.format == "a Trainer's console" and log.hides_nan
    assert log.metrics["completions/mean_length"].tolist() == [461.375, 12.0]
    assert math.isnan(log.metrics["grad_norm"].iloc[1])
    assert "counted" in log.notes[0]


@pytest.mark.parametrize("norm", ["0.13", "np.float64(0.13)"])
def test_verl_console(write, norm):
    noise = "INFO:2025-07-02 step:by step - a:b\n\x1b[36m(WorkerDict pid=1)\x1b[0m WARN: grad_norm is not finite: nan\n"
    lines = [VERL.format(step=n, kl=0.001 * n, norm=norm) for n in (1, 2)] + [VERL.format(step=3, kl="nan", norm="inf")]
    log = logs.read(write("verl.log", noise.join(line + "\n" for line in lines)))
    assert log.format == "verl's console" and not log.hides_nan
    assert values(log, "grad_norm") == {1: 0.13, 2: 0.13, 3: math.inf}
    assert math.isnan(values(log, "kl")[3])
    assert values(log, "reward")[1] == -0.01
    assert values(log, "loss")[1] == 0.0425
    assert values(log, "completions/mean_length")[1] == 1267.02
    assert values(log, "step_time")[1] == 12.5


def test_verl_console_with_other_names_from_step_to_step(write):
    lines = ["step:0 - val/test_score:0.1", VERL.format(step=1, kl=0.5, norm=2), "step:2 - actor/grad_norm:3"]
    log = logs.read(write("verl.log", "\n".join(lines)))
    assert values(log, "grad_norm") == {1: 2.0, 2: 3.0}
    assert values(log, "kl") == {1: 0.5}


def test_verl_file_logger(write):
    lines = [{"step": n, "data": {"actor/grad_norm": 0.5, "actor/kl_loss": 0.1 * n, "val/x": "text"}} for n in (1, 2)]
    log = logs.read(write("verl.jsonl", "\n".join(map(json.dumps, lines)) + "\n"))
    assert values(log, "kl") == {1: 0.1, 2: 0.2}


FLAT = [{"step": 5, "kl": 0.5, "reward": 1}, {"step": 6, "kl": float("nan"), "reward": 2}]


@pytest.mark.parametrize(
    "lines",
    [
        [json.dumps(row) for row in FLAT],
        [json.dumps(row, separators=(",", ":")) for row in FLAT],
        ['{"step": 5, "kl": 0.5, "reward": 1}', '{"step": 6, "kl": "nan", "reward": 2}'],
        ['{"step": 5, "kl": 0.5, "reward": 1}', '{"reward": 2, "kl": "NaN", "step": 6}'],
        ['{"step": 5, "kl": 0.5, "reward": 1}', '{"step": 6, "kl": "nan", "reward": 2, "note": "a, {b}: c"}'],
    ],
    ids=["uniform", "compact", "text", "another order", "with a text"],
)
def test_json_lines(write, lines):
    log = logs.read(write("any.jsonl", "\n".join(lines) + "\n"))
    assert values(log, "reward") == {5: 1.0, 6: 2.0}
    assert values(log, "kl")[5] == 0.5 and math.isnan(values(log, "kl")[6])


def test_pieces_of_different_kinds_keep_their_order(write, monkeypatch):
    monkeypatch.setattr(uniform, "PIECE", 64)
    lines = [json.dumps({"kl": n / 10, "reward": 1.0}) for n in range(20)]
    lines[7] = json.dumps({"reward": 1.0, "note": "odd", "kl": 0.7})
    assert logs.read(write("mixed.jsonl", "\n".join(lines))).metrics["kl"].tolist() == [n / 10 for n in range(20)]


def test_null_was_not_logged(write):
    log = logs.read(write("any.jsonl", '{"step": 1, "kl": null, "reward": 1}\n{"step": 2, "kl": 0.5, "reward": 1}\n'))
    assert values(log, "kl") == {2: 0.5}


def test_truncated_json_lines(write):
    whole = [json.dumps({"step": n, "kl": 0.1}) for n in range(3)]
    log = logs.read(write("cut.jsonl", "\n".join(whole) + '\n{"step": 3, "k'))
    assert log.steps.tolist() == [0, 1, 2]
    assert "last line" in log.notes[0]


@pytest.mark.parametrize("cut", ['{"event": "Resumed"', '{"event": "Resumed", "step": 2, "kept": '])
def test_a_run_that_is_cut_while_it_resumed(write, cut):
    steps = [json.dumps({"event": "Stepped", "step": n, "metrics": {"kl": 0.1}}) for n in range(3)]
    log = logs.read(write("events.jsonl", "\n".join([*steps, cut])))
    assert log.steps.tolist() == [0, 1, 2] and "last line" in log.notes[0]


def test_broken_lines_in_the_middle_are_counted(write):
    lines = [json.dumps({"step": n, "kl": 0.1}) for n in range(5)]
    log = logs.read(write("dented.jsonl", "\n".join([*lines[:2], "oops", *lines[2:]])))
    assert log.steps.tolist() == [0, 1, 2, 3, 4]
    assert "1 of 6 lines" in log.notes[0] and "line 3" in log.notes[0]
    with pytest.raises(LogError, match="3 of 5 lines"):
        logs.read(write("broken.jsonl", "\n".join([lines[0], "a", "b", "c", lines[1]])))


def test_steps_logged_twice(write):
    rows = [{"step": n, "kl": kl} for n, kl in ((0, 0.1), (1, 0.2), (1, 0.3), (2, 0.4))]
    log = logs.read(write("resumed.jsonl", "\n".join(map(json.dumps, rows))))
    assert values(log, "kl") == {0: 0.1, 1: 0.3, 2: 0.4}
    assert "more than once" in log.notes[0]


@pytest.mark.parametrize("separator", [",", "\t", ";"])
def test_csv(write, separator):
    text = "step,kl,grad_norm\n1,0.5,2\n2,,nan\n3,inf,4\n".replace(",", separator)
    log = logs.read(write("a.csv", text))
    assert values(log, "kl") == {1: 0.5, 3: math.inf}
    assert math.isnan(values(log, "grad_norm")[2])


def test_frames():
    frame = pd.DataFrame({"kl": [0.1, math.nan, math.nan], "reward": [1.0, 2.0, math.nan], "step_time": 1.0})
    log = logs.from_frame(frame)
    assert math.isnan(values(log, "kl")[1])
    assert log.steps.tolist() == [0, 1]
    sparse = pd.DataFrame({"step": [3, 4], "kl": [None, 0.5], "train/reward": [1.0, 2.0]}, dtype=object)
    assert values(logs.from_frame(sparse), "kl") == {4: 0.5}
    assert values(logs.from_frame(sparse), "reward") == {3: 1.0, 4: 2.0}


def test_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path / "runs" / "a")) as writer:
        for step, kl in enumerate([0.1, 0.2, float("nan")], start=1):
            writer.add_scalar("train/kl", kl, step)
            writer.add_scalar("train/grad_norm", 1.0, step)
    for path in (tmp_path, logs.tensorboard.event_files(tmp_path)[0]):
        log = logs.read(path)
        assert log.format == "TensorBoard" and log.hides_nan
        assert log.metrics["kl"].index.tolist() == [1, 2, 3]
        np.testing.assert_allclose(log.metrics["kl"], [0.1, 0.2, math.nan], rtol=1e-6)


def test_runs_of_tensorboard_in_one_folder(tmp_path):
    pytest.importorskip("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    for folder, tag, value in (("a", "train/kl", 0.1), ("a_of_reward", "train/reward", 1.0), ("b", "train/kl", 0.2)):
        with SummaryWriter(str(tmp_path / folder)) as writer:
            for step in (1, 2):
                writer.add_scalar(tag, value, step)
    first, last = logs.read_runs(tmp_path)
    assert (first.name, last.name) == ("a", "b") and set(first.metrics) == {"reward", "kl"}
    np.testing.assert_allclose(last.metrics["kl"], [0.2, 0.2], rtol=1e-6)
    assert "2 runs: a, b" in last.notes[0]


def test_tensorboard_that_is_not_installed(tmp_path, monkeypatch):
    (tmp_path / "events.out.tfevents.1").write_bytes(b"\x18\0\0\0\0\0\0\0....\x09\0\0\0\0\0\0\0\0\x1a\x0dbrain.Event:2")
    monkeypatch.setitem(sys.modules, "tensorboard.backend.event_processing.event_accumulator", None)
    with pytest.raises(LogError, match=r"pip install .*tensorboard"):
        logs.read(tmp_path)


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("empty.log", "", "is empty"),
        ("blank.log", "\n  \n", "is empty"),
        ("poem.txt", "Shall I compare thee\nto a summer's day?\n", "unknown format; looked for .*verl.*CSV"),
        ("config.yaml", "model: gpt2\nlr: 1e-5\n", "unknown format"),
        ("cut.json", '{"log_history": [{"step": 1, "kl"', "damaged JSON"),
        ("other.json", '{"model_type": "gpt2"}', "no metric known here"),
        ("other.jsonl", '{"a": 1}\n{"a": 2}\n', "no metric known here"),
    ],
)
def test_bad_files(write, name, text, says):
    with pytest.raises(LogError, match=says) as caught:
        logs.read(write(name, text))
    assert caught.value.exit_code == 2 and name in str(caught.value)


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
    assert "grpo_lab" not in str(gl.diagnose(rows)).splitlines()[0]


def test_single_reward_functions(write):
    rows = [
        {"step": n, "rewards/right/mean": n, "rewards/right/std": 0.1, "rewards/short": -n, "kl": 0} for n in (1, 2)
    ]
    log = logs.read(write("a.jsonl", "\n".join(map(json.dumps, rows))))
    assert {name: series.to_dict() for name, series in log.functions.items()} == {
        "right": {1: 1.0, 2: 2.0},
        "short": {1: -1.0, 2: -2.0},
    }


def rows_of(steps, value):
    return [{"step": step, "kl": value, "reward": step / 10} for step in steps]


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
        ([0, 2, 1, 3, 4], 1),
        ([5, 6, 7, 6], 1),
        ([1, 2, 3, 1], 1),
        ([*range(1, 20), 1], 2),
        ([6, 5, 4, 3, 2, 1], 1),
        ([3, 1, 6, 2, 5, 4, 9, 7], 1),
    ],
)
def test_runs_in_one_file_are_told_apart(write, steps, runs):
    path = write("many.jsonl", "\n".join(map(json.dumps, rows_of(steps, 0.5))))
    found = logs.read_runs(path)
    assert len(found) == runs
    assert sum(len(log.steps) for log in found) == (len(set(steps)) if runs == 1 else len(steps))
    last = logs.read(path)
    assert last.frame.equals(found[-1].frame)
    assert (f"{runs} runs" in " ".join(last.notes)) == (runs > 1)


TRACEBACK = """Traceback (most recent call last):
  File "train.py", line 3, in <module>
    trainer.train()
RuntimeError: probability tensor contains either `inf`, `nan` or element < 0
"""


@pytest.mark.parametrize("before", ["", "(TaskRunner pid=7) ", "[rank0]: "])
def test_the_crash_at_the_end_of_a_console(write, before):
    text = "".join(before + line for line in TRACEBACK.splitlines(keepends=True))
    says = "RuntimeError: probability tensor contains either `inf`, `nan` or element < 0"
    lines = "{'loss': 0.1, 'kl': 0.1, 'reward': 1}\n" * 2
    log = logs.read(write("a.log", lines + text))
    assert log.crash == says and len(log.steps) == 2
    assert logs.read(write("b.log", text + lines)).crash == ""
    assert logs.read(write("c.log", VERL.format(step=1, kl=0.1, norm=1) + "\n" + text)).crash == says
    bare = logs.read(write("d.log", "loading the model\n" + text))
    assert bare.crash == says and len(bare.steps) == 0


def test_the_crash_is_not_that_of_a_launcher(write):
    launcher = (
        "Traceback (most recent call last):\n  File 'x'\nsubprocess.CalledProcessError: Command 'x' returned 1.\n"
    )
    lines = "{'loss': 0.1, 'kl': 0.1, 'reward': 1}\n" * 2
    for before in ("", lines, VERL.format(step=1, kl=0.1, norm=1) + "\n"):
        assert logs.read(write("a.log", before + TRACEBACK + launcher)).crash.startswith("RuntimeError: probability")
    assert logs.read(write("b.log", lines + launcher)).crash.startswith("subprocess.CalledProcessError")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "Traceback (most recent call last):\n  File 'a'\nray.exceptions.RayTaskError(ValueError): ray::run()\n"
            "  File 'b'\n    x\nValueError: 3\n(pid=2) INFO: bye\n",
            "ValueError: 3",
        ),
        (
            "Traceback (most recent call last):\n  File 'a'\nINFO: saved\nmy.OutOfMemoryError: full\n",
            "my.OutOfMemoryError: full",
        ),
        ("Traceback (most recent call last):\n  File 'a'\n    x\nKeyboardInterrupt\n", "KeyboardInterrupt"),
        ("Traceback (most recent call last):\n  File 'a'\nqueue.Empty\n", "queue.Empty"),
        ("╭─ Traceback (most recent call last) ─╮\n│ a.py:1 in f │\n╰─────╯\nRuntimeError: 1\n", "RuntimeError: 1"),
        ("Traceback (most recent call last):\n  File 'a'", ""),
    ],
)
def test_the_last_line_of_a_traceback(text, says):
    assert last_exception(text) == says


def test_settings_of_an_own_run(tmp_path):
    config = {"run": {"name": "kl-overflow", "seed": 3}, "loss": {"beta": 0.02}, "faults": {"nan_reward": {}}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "events.jsonl").write_text('{"event": "Stepped", "step": 0, "updates": 1, "metrics": {"kl": 0.1}}\n')
    log = logs.read(tmp_path)
    assert log.source == "grpo_lab" and log.settings == {"run.seed": 3, "loss.beta": 0.02}


def test_bad_paths(tmp_path):
    with pytest.raises(LogError, match="No such file"):
        logs.read(tmp_path / "nowhere.log")
    with pytest.raises(LogError, match="holds no log"):
        logs.read(tmp_path)


def test_uniform_lines_are_not_parsed_one_by_one(write, monkeypatch):
    """What keeps a log of a million lines below ten seconds."""
    text = "\n".join(json.dumps({"step": n, "kl": n / 1000, "grad_norm": 1.0}) for n in range(1000))
    verl = "\n".join(VERL.format(step=n, kl=n / 1000, norm=1.0) for n in range(1000))
    monkeypatch.setattr(Rows, "add", None)
    monkeypatch.setattr(uniform, "PIECE", 4096)
    for path in (write("big.jsonl", text), write("big.log", verl)):
        assert logs.read(path).metrics["kl"].tolist() == [n / 1000 for n in range(1000)]
