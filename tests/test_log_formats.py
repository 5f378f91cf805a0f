"""Formats of other writers, files beside a log, several runs in one, and input that is damaged."""

import csv
import gzip
import io
import json
import math
import os
import pickle
import sys
import time

import pandas as pd
import pytest

from grpo_lab.analysis import logs
from grpo_lab.analysis.diagnosis import diagnose
from grpo_lab.analysis.logs import settings, tables
from grpo_lab.errors import LogError
from grpo_lab.messages import VARIABLE

RECORD = (
    "step:{step} - actor/entropy:0.2226657867 - actor/pg_loss:0.0424 - actor/kl_loss:{kl} - actor/grad_norm:1.5 - "
    "actor/lr:2e-06 - training/global_step:{step} - critic/rewards/mean:-0.01 - response_length/mean:1267.02 - "
    "response_length/clip_ratio:0.05 - timing_s/step:12.5 - perf/throughput:2932.5"
)
STEPS = (1, 2, 3)
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


def table_of(header, rows):
    out = io.StringIO()
    csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows([header, *rows])
    return out.getvalue()


# The console of verl


def hard(text, width):
    return "\n".join(text[start : start + width] for start in range(0, len(text), width))


def soft(text, width):
    import textwrap

    return "\n".join(textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False))


WRAPPED = {
    "cut at 200 columns": lambda record: hard("(TaskRunner pid=7) " + record, 200),
    "cut once in the middle of a number": lambda record: record.replace("orm:1.5 ", "orm:1\n.5 "),
    "cut once in the middle of a name": lambda record: record.replace("rewards/mean", "rew\nards/mean"),
    "cut at 80 columns": lambda record: hard(record, 80),
    "cut at 80 columns, blanks at the end lost": lambda record: "\n".join(
        line.rstrip() for line in hard(record, 80).split("\n")
    ),
    "wrapped at blanks": lambda record: soft(record, 100),
    "one metric a line": lambda record: record.replace(" - ", "\n - "),
    "one metric a line, with ray's prefix": lambda record: (
        "(TaskRunner pid=7) " + record.replace(" - ", "\n(TaskRunner pid=7)  - ")
    ),
    "one metric a line, without dashes": lambda record: record.replace(" - ", "\n"),
    "a dash at the end of each line": lambda record: record.replace(" - ", " -\n"),
}


@pytest.mark.parametrize("wrapped", WRAPPED.values(), ids=WRAPPED)
def test_records_of_verl_that_are_wrapped(write, wrapped):
    records = [RECORD.format(step=step, kl=0.00123456789 * step) for step in STEPS]
    noise = "\n(WorkerDict pid=9) INFO 09-08 saving - done\n12\n"
    log = logs.read(write("verl.log", "starting\n" + noise.join(map(wrapped, records)) + noise))
    assert log.source == "verl"
    assert values(log, "kl") == {step: 0.00123456789 * step for step in STEPS}
    for metric, value in {"grad_norm": 1.5, "learning_rate": 2e-6, "reward": -0.01, "step_time": 12.5}.items():
        assert values(log, metric) == dict.fromkeys(STEPS, value), metric


def test_lines_after_a_record_that_is_not_wrapped_stay_apart(write):
    record = "step:1 - actor/kl_loss:0.5 - actor/grad_norm:3"
    log = logs.read(write("verl.log", f"{record}\n12\nDone\n- done\n{record.replace('step:1', 'step:2')}\n9\n"))
    assert values(log, "grad_norm") == {1: 3.0, 2: 3.0}


def test_a_rate_that_is_rounded_away(write):
    rounded = "\n".join(RECORD.format(step=step, kl=0.5) for step in STEPS).replace("lr:2e-06", "lr:0.000")
    log = logs.read(write("verl.log", rounded))
    assert "learning_rate" not in log.metrics and "rounded" in log.notes[0]
    assert values(logs.read(write("b.log", rounded.replace("lr:0.000", "lr:0.0"))), "learning_rate")[1] == 0.0


def test_a_record_that_is_cut(write):
    text = "\n".join(RECORD.format(step=step, kl=0.5) for step in STEPS)
    log = logs.read(write("verl.log", text[: text.rindex("actor/grad_norm") + 17]))
    assert values(log, "kl") == {1: 0.5, 2: 0.5} and "incomplete" in log.notes[0]


# Exports


def panel(runs, axis="Step", values=(0.1, 0.2, float("nan"))):
    names = [f"{run} - {metric}{bound}" for run, metric in runs for bound in ("", "__MIN", "__MAX")]
    return table_of([axis, *names], [[step, *[value, -9, 9] * len(runs)] for step, value in enumerate(values)])


def test_a_panel_of_wandb(write):
    log = logs.read(write("wandb_export.csv", panel([("my - run-7", "train/kl"), ("my - run-7", "train/reward")])))
    assert log.format == "a W&B panel" and log.name == "my - run-7" and log.hides_nan
    assert log.steps.tolist() == [0, 1, 2]
    assert log.metrics["kl"].tolist()[:2] == [0.1, 0.2] and math.isnan(log.metrics["kl"].iloc[2])


def test_several_runs_in_a_panel_of_wandb(write):
    text = table_of(["Step", "a - train/kl", "b - train/kl"], [[0, 0.1, ""], [1, 0.2, 5], [2, "", 6]])
    first, second = logs.read_runs(write("wandb_export.csv", text))
    assert (first.name, values(first, "kl")) == ("a", {0: 0.1, 1: 0.2})
    assert (second.name, values(second, "kl")) == ("b", {1: 5.0, 2: 6.0})
    assert "2 runs: a, b" in second.notes[0]


def test_the_step_of_the_training_goes_before_the_step_of_wandb(write):
    text = panel([("a", "train/kl")], values=(0.1, 0.2)).replace("Step", "train/global_step")
    assert values(logs.read(write("a.csv", text)), "kl") == {0: 0.1, 1: 0.2}
    rows = [{"_step": n, "train/global_step": 10 * n, "train/kl": 0.5} for n in STEPS]
    assert values(logs.read(write("a.jsonl", lines_of(rows))), "kl") == {10: 0.5, 20: 0.5, 30: 0.5}
    own = table_of(["Step", "a - train/kl", "a - train/global_step"], [[0, 0.1, 10], [1, 0.2, 20]])
    assert values(logs.read(write("b.csv", own)), "kl") == {10: 0.1, 20: 0.2}


def test_an_axis_without_steps(write):
    log = logs.read(write("a.csv", panel([("a", "train/kl")], axis="Relative Time (Process)", values=(0.1, 0.2))))
    assert log.steps.tolist() == [0, 1] and "is no step" in log.notes[0]


def test_the_panels_of_one_run_are_merged(tmp_path, write):
    write("export_1.csv", panel([("a", "train/kl")], values=(0.1, 0.2)))
    write("export_2.csv", panel([("a", "train/reward")], values=(1, 2)))
    log = logs.read(tmp_path)
    assert values(log, "kl") == {0: 0.1, 1: 0.2} and values(log, "reward") == {0: 1.0, 1: 2.0}


@pytest.mark.parametrize("by", ["\t", " | ", ","])
def test_the_table_of_a_notebook(write, by):
    header = ["Step", "Training Loss", "reward", "completions / mean_length", "rewards / right / mean", "entropy"]
    rows = [["10", "-0.28", "13.4", "200.0", "0.5", "0"], ["20", "nan", "6.9", "300.0", "0.25", "No Log"]]
    dashes = [["--"] * 6] if by == " | " else []
    log = logs.read(write("copied.txt", "\n".join(by.join(row) for row in [header, *dashes, *rows])))
    assert log.source == "trl" and log.hides_nan
    assert values(log, "reward") == {10: 13.4, 20: 6.9} and math.isnan(values(log, "loss")[20])
    assert values(log, "completions/mean_length")[10] == 200.0 and values(log, "entropy") == {10: 0.0}
    assert log.functions["right"].to_dict() == {10: 0.5, 20: 0.25}


def curve(found, first=1):
    return "Wall time,Step,Value\n" + "".join(f"17.5,{step},{value}\n" for step, value in enumerate(found, first))


@pytest.mark.parametrize(
    ("kl", "reward"),
    [
        ("run_train_kl.csv", "run_train_reward.csv"),
        ("run-.-tag-train_kl.csv", "run-.-tag-train_reward (1).csv"),
        ("kl.csv", "reward.csv.gz"),
        ("a_actor_kl_loss.csv", "a_critic_rewards_mean.csv"),
    ],
)
def test_the_curves_of_tensorboard_are_merged(tmp_path, write, kl, reward):
    write(kl, curve([0.1, "NaN", 0.3]))
    packed = curve([1, 2, 3]).encode()
    write(reward, gzip.compress(packed) if reward.endswith(".gz") else packed)
    write("eval_reward.csv", curve([9, 9, 9]))
    write("run_actor_ppo_kl.csv", curve([9, 9, 9]))
    log = logs.read(tmp_path)
    assert log.format == "TensorBoard's CSV"
    assert log.metrics["kl"].dropna().to_dict() == {1: 0.1, 3: 0.3} and len(log.metrics["kl"]) == 3
    assert values(log, "reward") == {1: 1.0, 2: 2.0, 3: 3.0}
    again = logs.read_together([tmp_path / kl, tmp_path / reward])[-1]
    assert again.frame.equals(log.frame)


def test_a_curve_of_tensorboard_without_a_name(tmp_path, write):
    assert values(logs.read(write("run_train_kl.csv", curve([0.1]))), "kl") == {1: 0.1}
    with pytest.raises(LogError, match="rename it to that of the curve"):
        logs.read(write("run.csv", curve([0.1])))
    with pytest.raises(LogError, match="no metric known here"):
        logs.read_together([tmp_path / "run.csv"])


def test_curves_of_two_runs_stay_apart(tmp_path, write):
    for run, value in (("a", 0.1), ("b", 0.2)):
        write(f"{run}_train_kl.csv", curve([value]))
    assert {log.name: values(log, "kl") for log in logs.read_runs(tmp_path)} == {"a": {1: 0.1}, "b": {1: 0.2}}


def test_single_rewards_in_a_file_s_name():
    assert tables.named_in("run-a-tag-train_rewards_is_right_mean.csv") == ("run-a", "train/rewards/is_right/mean")


# OpenRLHF and ms-swift


def test_openrlhf(write):
    rows = [
        {
            "global_step": n,
            "policy_loss": 0.1,
            "actor_lr": 5e-7,
            "reward": 0.5,
            "return": 0.4,
            "response_length": 100 + n,
            "total_length": 200,
            "kl": 0.01,
            "ppo_clip_ratio": 0.1,
            "response_clip_ratio": 0.25,
            "entropy_loss": 0.7,
        }
        for n in STEPS
    ]
    printed = "".join(f"INFO ✨ Global step {row['global_step']}: {row}\n" for row in rows)
    for text, name in ((lines_of(rows), "a.jsonl"), (printed.replace("'global_step': 1, ", ""), "a.log")):
        log = logs.read(write(name, text))
        assert log.source == "openrlhf" and not log.hides_nan
        assert values(log, "completions/mean_length") == {1: 101.0, 2: 102.0, 3: 103.0}
        assert set(log.metrics) >= {"loss", "learning_rate", "reward", "kl", "entropy", "completions/clipped_ratio"}


def of_swift(n):
    return {
        "loss": 0.01,
        "grad_norm": 0.5,
        "learning_rate": 1e-6,
        "memory(GiB)": 21.86,
        "train_speed(iter/s)": 0.01,
        "completions/mean_length": 100.0,
        "rewards/MathAccuracy/mean": 0.25 * n,
        "reward": 0.5,
        "reward_std": 0.1,
        "kl": 0.1,
        "clip_ratio/region_mean": 0.0,
        "epoch": 0.1,
        "global_step/max_steps": f"{10 * n}/100",
        "percentage": "10.00%",
        "elapsed_time": "1m 35s",
    }


def test_ms_swift(tmp_path, write):
    rows = [*map(of_swift, STEPS), {"train_runtime": 10.0, "global_step/max_steps": "100/100"}]
    rows.append({"last_model_checkpoint": "x", "log_history": [], "global_step": 100})
    write("args.json", json.dumps({"rlhf_type": "grpo", "beta": 0.04, "learning_rate": "1e-6"}))
    write("logging.jsonl", lines_of(rows))
    printed = "".join(f"Train:   2%|▏| 1/60 [00:42<41:47, 42.51s/it]{of_swift(n)}\n" for n in STEPS)
    for path in (tmp_path, write("console.log", printed)):
        log = logs.read(path)
        assert log.source == "ms-swift" and log.hides_nan
        assert values(log, "reward") == {10: 0.5, 20: 0.5, 30: 0.5}
        assert log.functions["MathAccuracy"].to_dict() == {10: 0.25, 20: 0.5, 30: 0.75}
        assert log.settings == {"rlhf_type": "grpo", "beta": 0.04, "learning_rate": 1e-6}


# The console of a Trainer


def printed(rates, tokens=None, epochs=None, norm="0.5"):
    rows = []
    for place, rate in enumerate(rates):
        row = {"loss": 0.0, "grad_norm": norm, "learning_rate": rate, "reward": 0.1, "kl": 0.1}
        row |= {"num_tokens": tokens[place]} if tokens else {}
        rows.append(row | ({"epoch": epochs[place]} if epochs else {}))
    return "".join(f"{row}\n" for row in rows)


WARMED = [0.0, 2.5e-6, 5e-6, 4e-6, 3e-6, 2e-6, 1e-6]
BANNER = "==((====))==  Unsloth - 2x faster free finetuning | Num GPUs used = 1\n"
AGAIN = {
    "num_tokens": ("", {"tokens": [2900 * n for n in range(1, 8)]}, [1e-6] * 7),
    "epoch": ("", {"epochs": [0.1 * n for n in range(1, 8)]}, [1e-6] * 7),
    "a warm-up": ("", {"epochs": [0.0] * 7}, WARMED),
    "a fall without a warm-up": ("", {}, [5e-6, 4e-6, 3e-6, 2e-6, 1e-6, 5e-7, 2e-7]),
    "the banner of Unsloth": (BANNER, {}, [1e-6] * 7),
    "a line of transformers": ("***** Running training *****\n", {}, [1e-6] * 7),
}


@pytest.mark.parametrize(("before", "counters", "rates"), AGAIN.values(), ids=AGAIN)
def test_two_runs_in_a_console(write, before, counters, rates):
    """As Unsloth's, whose first run logs a norm of NaN in every step, and whose second is healthy."""
    end = "{'train_runtime': 1021.5, 'train_loss': -3.4e-09, 'epoch': 0.7}\n100%|███| 7/7 [17:01<00:00]\n"
    second = {name: found[:5] for name, found in counters.items()}
    text = before + printed(rates, norm="nan", **counters) + end + before + printed(rates[:5], **second)
    first, last = logs.read_runs(write("train.log", text))
    assert first.metrics["grad_norm"].isna().all() and first.steps.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert values(last, "grad_norm") == dict.fromkeys(range(1, 6), 0.5)
    assert "2 runs" in " ".join(last.notes) and logs.read(write("a.log", text)).frame.equals(last.frame)


@pytest.mark.parametrize(
    "rates",
    [[0.0, 5e-6, 4e-6, 2e-6, 5e-6, 4e-6, 2e-6], [1e-6] * 9, [0.0, 1e-6, 2e-6, 1e-6, 0.0, 0.0], WARMED],
    ids=["cosine with restarts", "constant", "down to the first value", "warm-up"],
)
def test_one_run_with_any_schedule(write, rates):
    assert len(logs.read_runs(write("a.log", printed(rates)))) == 1


def test_a_resumed_console_is_one_run(write):
    again = "***** Running training *****\n  Continuing training from checkpoint, will skip to saved global_step\n"
    assert len(logs.read_runs(write("a.log", printed([1e-6] * 4) + again + printed([1e-6] * 3)))) == 1


def test_evaluations_and_settings_are_no_steps(write):
    text = "{'learning_rate': 1e-06, 'beta': 0.04}\n" + printed([1e-6] * 2) + "{'eval_reward': 0.5, 'epoch': 1.0}\n"
    log = logs.read(write("a.log", text + printed([1e-6])))
    assert log.steps.tolist() == [1, 2, 3] and "counted from 1" in log.notes[0]


def test_a_console_is_counted_in_steps_of_logging_steps(write):
    write("config.yaml", "learning_rate: 1e-6\nlogging_steps: 10\n")
    log = logs.read(write("a.log", printed([1e-6] * 3)))
    assert log.steps.tolist() == [10, 20, 30] and "logging_steps" in log.notes[0]


def test_a_completion_that_looks_like_a_line_of_verl(write):
    log = logs.read(write("a.log", "step:1 - think: yes\nstep:2 - a:3\n" + printed([1e-6] * 2)))
    assert log.source == "trl" and log.steps.tolist() == [1, 2]


@pytest.mark.parametrize("wrap", [hard, soft])
@pytest.mark.parametrize("width", [37, 60, 80, 200])
def test_a_dictionary_that_is_wrapped(write, wrap, width):
    rows = [{"loss": 0.0, "grad_norm": 0.08656957, "reward": 0.1 * n, "kl": 0.00123456789, "epoch": 0.1} for n in STEPS]
    text = "".join(wrap(str(row), width) + "\n 10%|█| 1/20 [00:24<27:11:00, 24.37s/it]\n" for row in rows)
    log = logs.read(write("a.log", text))
    assert values(log, "grad_norm") == dict.fromkeys(STEPS, 0.08656957)
    assert values(log, "kl") == dict.fromkeys(STEPS, 0.00123456789)
    assert values(log, "reward") == {n: 0.1 * n for n in STEPS}


def test_a_console_that_is_cut(write):
    log = logs.read(write("a.log", printed([1e-6] * 3)[:-40]))
    assert log.steps.tolist() == [1, 2] and "incomplete" in " ".join(log.notes)


# Files beside a log


def state(write, name="trainer_state.json"):
    history = [{"step": n, "kl": 0.1, "epoch": 0.1} for n in STEPS]
    return write(name, json.dumps({"logging_steps": 1, "log_history": history}))


def test_a_crash_beside_a_trainer_state(write):
    path = state(write, "out/checkpoint-3/trainer_state.json")
    assert logs.read(path).crash == ""
    console = write("out/train.log", printed([1e-6]) + TRACEBACK)
    assert logs.read(path).crash == logs.read(path.parents[1]).crash == "RuntimeError: CUDA error"
    os.utime(console, (1, 1))
    write("out/second.log", printed([1e-6]))  # a later run that went on
    assert logs.read(path).crash == ""
    console.unlink()
    write("out/stderr.txt", TRACEBACK)
    assert logs.read(path).crash == "RuntimeError: CUDA error"


def test_a_run_that_died_before_it_logged(write):
    path = write("trainer_state.json", '{"log_history": []}')
    assert not len(logs.read(path).steps) and diagnose(path).verdict == "not-enough"
    write("train.log", TRACEBACK)
    assert logs.read(path).crash == "RuntimeError: CUDA error"


def test_the_one_console_in_a_folder(tmp_path, write):
    write("train.log", printed([1e-6] * 2))
    assert logs.read(tmp_path).steps.tolist() == [1, 2]
    write("other.log", "")
    with pytest.raises(LogError, match="2 files"):
        logs.read(tmp_path)


def test_the_crash_of_each_run(write):
    text = printed([1e-6] * 2, tokens=[100, 200]) + TRACEBACK + printed([1e-6] * 2, tokens=[90, 190])
    first, last = logs.read_runs(write("a.log", text))
    assert (first.crash, last.crash) == ("RuntimeError: CUDA error", "")


class Malicious:
    def __init__(self, call, *arguments):
        self.call, self.arguments = call, arguments

    def __reduce__(self):
        return self.call, self.arguments


@pytest.mark.parametrize("name", ["training_args.bin", "checkpoint-3/training_args.bin", "../training_args.bin"])
@pytest.mark.parametrize(("language", "said"), [("en", "is not read; write"), ("zh", "不予读取；请把")])
def test_a_pickle_of_settings_is_not_read_and_the_way_out_is_named(tmp_path, write, monkeypatch, name, language, said):
    monkeypatch.setenv(VARIABLE, language)
    planted = tmp_path / "planted"
    path = state(write, "run/trainer_state.json")
    write(f"run/{name}", pickle.dumps(Malicious(os.mkdir, str(planted))))
    write("run/config.json", json.dumps({"model_type": "gpt2", "architectures": [], "dtype": "float32"}))
    assert logs.read(path).settings == {"model.dtype": "float32", "logging_steps": 1}
    report = " ".join(diagnose(path.parent).text().split())
    assert "training_args.bin" in report and said in report and "args.json" in report
    assert not planted.exists()
    write("run/args.json", json.dumps({"learning_rate": 1e-6}))
    log = logs.read(path)
    assert log.settings["learning_rate"] == 1e-6 and not log.notes
    assert not planted.exists()


def test_settings_of_verl(write):
    write(".hydra/config.yaml", "actor_rollout_ref:\n  actor:\n    optim: {lr: 1e-6}\n    use_kl_loss: true\n")
    found = logs.read(write("main_ppo.log", "\n".join(RECORD.format(step=n, kl=0.1) for n in STEPS))).settings
    assert found["actor_rollout_ref.actor.optim.lr"] == 1e-6 and found["actor_rollout_ref.actor.use_kl_loss"] is True


def test_settings_that_verl_prints(write):
    import pprint

    config = {"actor_rollout_ref": {"actor": {"optim": {"lr": 1e-06}, "kl_loss_coef": 0.001, "name": "x " * 60}}}
    lines = pprint.pformat({**config, "data": {"train_batch_size": 32, "files": None}}).split("\n")
    command = "+ python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo \\\n  actor_rollout_ref.rollout.n=8\n"
    record = RECORD.format(step=1, kl=0.1) + "\n"
    text = command + "".join(f"\x1b[36m(TaskRunner pid=7)\x1b[0m {line}\n" for line in lines) + record
    found = logs.read(write("a.log", text)).settings
    assert found["actor_rollout_ref.actor.optim.lr"] == 1e-6 and found["data.train_batch_size"] == 32
    assert found["algorithm.adv_estimator"] == "grpo" and found["actor_rollout_ref.rollout.n"] == 8
    cut = logs.read(write("b.log", text.replace("'data'", ""))).settings
    assert cut == {"algorithm.adv_estimator": "grpo", "actor_rollout_ref.rollout.n": 8}


def test_settings_of_something_else_are_left_out(write):
    write("config.json", json.dumps({"architectures": ["X"], "model_type": "qwen2", "dtype": "float16"}))
    write("docker.yaml", "services: {a: 1}\n")
    assert logs.read(state(write)).settings == {"logging_steps": 1, "model.dtype": "float16"}
    write("one.yaml", "learning_rate: 1.0\n")
    assert "learning_rate" not in logs.read(state(write)).settings  # of several YAML files, none is the log's


def test_settings_that_hold_each_other_are_read_so_far():
    tree = {"x": 1}
    for _ in range(60):
        tree = {"a": tree, "b": tree, "c": tree}
    started = time.perf_counter()
    assert len(settings.flat(tree)) <= settings.MOST
    assert time.perf_counter() - started < 5
    own = {}
    own["own"] = own
    assert settings.flat(own) == {}


# Any input


def test_packed_logs_and_the_standard_input(write, monkeypatch):
    text = lines_of({"step": n, "kl": 0.1} for n in STEPS).encode()
    path = write("a.jsonl.gz", gzip.compress(text))
    assert logs.read(path).steps.tolist() == [1, 2, 3]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(path.read_bytes())))
    assert logs.read("-").steps.tolist() == [1, 2, 3]
    with pytest.raises(LogError, match=r"damaged gzip.*`gzip -dc"):
        logs.read(write("cut.gz", path.read_bytes()[:-12]))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    with pytest.raises(LogError, match="- is empty"):
        logs.read("-")


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "latin-1", "cp1252"])
def test_encodings(write, encoding):
    text = "läuft\n" + printed([1e-6] * 3).replace("\n", "\r\n")
    assert logs.read(write("a.log", text, encoding)).steps.tolist() == [1, 2, 3]


def test_dictionaries():
    rows = [{"step": 5, "kl": 0.1, "note": "x"}, {"step": 6, "kl": math.nan, "reward": None}, {"step": 7, "kl": [1]}]
    log = logs.from_dicts(rows)
    assert log.steps.tolist() == [5, 6] and math.isnan(values(log, "kl")[6]) and "reward" not in log.metrics
    assert len(logs.from_dicts([]).steps) == 0
    with pytest.raises(LogError, match="a row is a int; give dictionaries"):
        logs.from_dicts([{"kl": 1}, 3])  # type: ignore[list-item]


def test_the_last_run_of_a_table():
    rows = [{"step": step, "kl": kl} for kl in (0.1, 0.2) for step in (1, 2, 3)]
    for log in (logs.from_dicts(rows), logs.from_frame(pd.DataFrame(rows))):
        assert values(log, "kl") == {1: 0.2, 2: 0.2, 3: 0.2} and "2 runs" in log.notes[0]
    rates = [{"kl": 0.1, "learning_rate": rate} for rate in (0.0, 2.0, 1.0, 3.0, 1.0)]
    assert len(logs.from_dicts(rates).steps) == 5  # a rate that a guard lowers and raises tells nothing


def test_unusual_tables():
    twice = pd.DataFrame([[1, 0.1, 0.2], [2, 0.3, 0.4]], columns=["step", "kl", "kl"])
    assert values(logs.from_frame(twice), "kl") == {1: 0.2, 2: 0.4}
    for empty in (pd.DataFrame(), pd.DataFrame({"step": []}), pd.DataFrame({"step": [], "kl": []})):
        assert len(logs.from_frame(empty).steps) == 0
    assert not logs.from_frame(pd.DataFrame({"colour": ["red"], "step": [1]})).metrics


def test_packed_events_of_tensorboard(write):
    with pytest.raises(LogError, match="unpack it first"):
        logs.read(write("events.out.tfevents.1.gz", gzip.compress(b"\x18" + b"\0" * 11 + b"\x1a\x0dbrain.Event:2")))


def test_a_table_with_ten_thousand_columns(write):
    names = ["step", *(f"layer.{n}/norm" for n in range(10_000)), "kl"]
    text = "\n".join(",".join(map(str, row)) for row in [names, *([step] * len(names) for step in STEPS)])
    assert values(logs.read(write("wide.csv", text + "\n")), "kl") == {1: 1.0, 2: 2.0, 3: 3.0}


def test_a_csv_that_is_cut(write):
    log = logs.read(write("a.csv", "step,kl,reward\n1,0.5,1\n2,0.25,1\n3,0.1"))
    assert values(log, "kl") == {1: 0.5, 2: 0.25} and "incomplete" in log.notes[0]


GOOD = {
    "state.json": json.dumps({"log_history": [{"step": n, "kl": 0.1, "epoch": 0.1} for n in range(40)]}),
    "lines.jsonl": lines_of({"step": n, "kl": 0.1} for n in range(40)),
    "swift.jsonl": lines_of(map(of_swift, range(1, 41))),
    "verl.log": "\n".join(RECORD.format(step=n, kl=0.1) for n in range(40)),
    "wrapped.log": "\n".join(hard(RECORD.format(step=n, kl=0.1), 80) for n in range(40)),
    "trainer.log": printed([1e-6] * 40),
    "wandb.csv": panel([("a", "train/kl")], values=[0.1] * 40),
    "run_train_kl.csv": curve([0.1] * 40, first=0),
    "table.csv": pd.DataFrame({"step": range(40), "kl": 0.1}).to_csv(index=False),
}


@pytest.mark.parametrize("name", GOOD)
def test_damaged_files_are_read_or_refused(write, name):
    """A file that is cut or overwritten anywhere gives right values or a LogError that names it."""
    text = GOOD[name].encode()
    damaged = [text[: len(text) * part // 17] for part in range(17)]
    damaged += [
        text[: len(text) * part // 5] + junk + text[len(text) * part // 5 :] for part in range(1, 5) for junk in JUNK
    ]
    whole = logs.read(write(name, text)).metrics["kl"].to_list()
    for data in damaged:
        try:
            log = logs.read(write(name, data))
        except LogError as error:
            assert name in str(error) and error.exit_code == 2
            continue
        kl = log.metrics["kl"].dropna().to_list() if "kl" in log.metrics else []
        assert len(kl) <= len(whole) + 1
        assert sum(value != 0.1 for value in kl) <= 1


JUNK = (b"\0\0\xff\xfe", b"\n\n", b'"', b"{[", "…".encode(), b"nan", b"\r")


@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        ("a.bin", bytes(range(256)) * 10, "binary file"),
        ("runs.csv", b"Name,State,train/kl\na,finished,0.1\n", "one row a run"),
        ("deep.json", b"[" * 200_000, "damaged JSON|unknown format"),
        ("ragged.csv", b"step,kl\n1,2\n1,2,3,4\n", "damaged CSV"),
        ("nan.csv", b"step,kl\nnan,nan\n", "no metric known here"),
        ("header.csv", b"step,kl\n", "no metric known here"),
        ("deep.jsonl", b'{"step": 1, "kl": 0.1}\n' + b'{"a":' * 100_000 + b"\n" + b"x\n" * 4, "no JSON object"),
    ],
)
def test_bad_files(write, name, data, says):
    with pytest.raises(LogError, match=says) as caught:
        logs.read(write(name, data))
    assert name in str(caught.value)


def test_a_folder_without_permission(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # as root, no permission is ever missing
    with pytest.raises(LogError, match="Permission denied"):
        logs.read(tmp_path)


@pytest.mark.trl
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_arguments_of_trl_as_json(tmp_path, write):
    """The file that the note about training_args.bin asks for."""
    trl = pytest.importorskip("trl")
    arguments = trl.GRPOConfig(
        output_dir=str(tmp_path),
        learning_rate=3e-6,
        beta=0.04,
        temperature=0.7,
        num_generations=4,
        per_device_train_batch_size=4,
        logging_steps=10,
        use_cpu=True,
        bf16=False,
        report_to=[],
        model_init_kwargs={"dtype": "float16"},
    )
    write("args.json", arguments.to_json_string())
    found = logs.read(state(write)).settings
    for name in ("learning_rate", "beta", "temperature", "num_generations", "bf16", "adam_epsilon", "max_grad_norm"):
        assert found[name] == getattr(arguments, name), name
    assert found["model_init_kwargs.dtype"] == "float16"
    assert found["lr_scheduler_type"] == "linear" and found["save_strategy"] == "steps"


def test_a_batch_with_two_updates_is_one_run(write):
    """TRL with num_iterations=2 logs the reward of a batch in every other row: rows of two shapes take turns."""
    odd = [{"step": step, "loss": 0.1, "reward": 0.3, "num_tokens": 9.0 * step} for step in range(1, 40, 2)]
    even = [{"step": step, "loss": 0.1, "grad_norm": 1.0} for step in range(2, 41, 2)]
    rows = sorted([*odd, *even], key=lambda row: row["step"])
    (log,) = logs.read_runs(write("trainer_state.json", json.dumps({"log_history": rows})))
    assert log.steps.tolist() == list(range(1, 41)) and not log.notes


def test_a_folder_of_several_runs_is_refused_and_named(tmp_path, write):
    for run in ("first", "second"):
        state(write, f"{run}/trainer_state.json")
    with pytest.raises(LogError, match="holds 2 runs: first, second; give one of them"):
        logs.read(tmp_path)


def test_an_entropy_bonus_makes_no_other_trainer(write):
    """TRL logs policy_loss where it has one."""
    rows = [
        {"step": step, "loss": 0.1, "policy_loss": 0.2, "reward": 0.3, "frac_reward_zero_std": 0.1} for step in (1, 2)
    ]
    assert logs.read(write("trainer_state.json", json.dumps({"log_history": rows}))).source == "trl"
