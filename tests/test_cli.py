"""The command line as a user meets it: what each command prints, and one line for each mistake."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from grpo_lab.config.algorithms import algorithm_names
from grpo_lab.config.catalog import preset_names, scenario_names
from grpo_lab.models import loading
from grpo_lab.models.registry import MODELS
from grpo_lab.training.guards import GUARDS
from grpo_lab.ui import console

SMOKE = ["train", "--preset", "smoke", "--set", "run.threads=1", "--set", "run.num_steps=2"]


@pytest.fixture(autouse=True)
def narrow(monkeypatch):
    """A terminal of 80 columns; torch's settings and the way of warnings are given back."""
    monkeypatch.setattr("warnings.showwarning", None)
    for stream in (console.out, console.err):
        monkeypatch.setattr(stream, "_width", 80)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def run(call):
    """A command line, under the name that reads best here."""
    return call


@pytest.fixture(scope="module")
def crashed(tmp_path_factory):
    """The folder of a run that crashed, made by a command line of its own."""
    out = tmp_path_factory.mktemp("crashed") / "run"
    words = ["train", "--scenario", "cuda-001", "--set", "run.threads=1", "--out", str(out)]
    return out, command(*words)


def command(*words):
    env = {**os.environ, "COLUMNS": "80", "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, "-m", "grpo_lab", *words], capture_output=True, text=True, env=env)


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["scenarios"], scenario_names()),
        (["presets"], preset_names()),
        (["algorithms"], algorithm_names()),
        (["guards"], [*GUARDS, "Stops:", "max_norm = 1.0"]),
        (["models"], ["tiny", "834,560", "--model"]),
        (["doctor"], ["python 3.", "torch 2.", "CPU cores", "attention sdpa: flash, ", "tiny", "MiB"]),
    ],
    ids=lambda value: value[0],
)
def test_lists(run, words, shown):
    code, out, err = run(*words)
    assert (code, err) == (0, "")
    assert [name for name in shown if name not in out] == []
    assert max(map(len, out.splitlines())) <= 80
    if words != ["doctor"]:
        names = [each["name"] for each in json.loads(run(*words, "--json")[1])]
        assert names == [*MODELS] if words == ["models"] else set(names) <= set(shown)


def test_help_names_the_exit_codes_and_loads_no_torch():
    code = """
import sys
from grpo_lab import cli
sys.argv = ["grpo-lab", "--help"]
try:
    cli.main()
except SystemExit as end:
    print(end.code, [name for name in ("torch", "transformers", "pandas", "matplotlib") if name in sys.modules])
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found.splitlines()[-1] == "0 []" and "Exit codes: 0 done" in found


def test_a_crash_says_where_it_broke_and_exits_1(crashed):
    folder, done = crashed
    text = " ".join(done.stdout.split())
    assert done.returncode == 1 and "Traceback" not in done.stderr + done.stdout
    assert "first break: step 0" in text and "crash: torch.multinomial" in text and f"run: {folder}" in text
    warning = [line for line in done.stderr.splitlines() if line.startswith("warning: ")]
    assert len(warning) == 1 and "the model was not saved" in warning[0]


def test_trace_and_replay_show_a_run_again(run, crashed):
    folder, done = crashed
    for words, figure in (("trace", "chain.png"), ("replay", "run.png")):
        code, out, _ = run(words, folder)
        assert code == 0 and (folder / figure).stat().st_size > 10_000 and "crash: torch.multinomial" in out
        assert done.stdout.splitlines()[0] in out and f"figure: {folder / figure}" in out


def test_train_saves_what_it_trained(run, tmp_path):
    code, out, err = run(*SMOKE, "--out", tmp_path / "a")
    assert code == 0 and "end: done" in out and "Warning" not in err
    assert f"model: {tmp_path / 'a' / 'model'}" in out
    loading.load(str(tmp_path / "a" / "model"))


def test_json_is_json_and_nothing_else(run, tmp_path):
    reward = tmp_path / "r.py"
    reward.write_text("def chatty(completions, **_):\n    print('hello')\n    return [0.0 for _ in completions]\n")
    code, out, err = run(*SMOKE, "--reward", f"{reward}:chatty", "--json", "--out", tmp_path / "a")
    assert [json.loads(line)["event"] for line in out.splitlines()] == ["Started", "Stepped", "Stepped", "Ended"]
    assert code == 0 and set(err.splitlines()) == {"hello"}
    assert out == (tmp_path / "a" / "events.jsonl").read_text()


@pytest.mark.slow
def test_a_run_stopped_by_the_user_says_so_and_exits_130(tmp_path):
    words = [*SMOKE, "--set", "run.num_steps=100000", "--json", "--out", str(tmp_path / "a")]
    process = subprocess.Popen(
        [sys.executable, "-m", "grpo_lab", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout
    while "Stepped" not in process.stdout.readline():
        pass
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=180)
    assert process.returncode == 130 and err == "interrupted\n"
    assert json.loads(out.splitlines()[-1]) == {
        "event": "Ended",
        "status": "stopped",
        "message": "by the user",
        "crash": None,
    }
    loading.load(str(tmp_path / "a" / "model"))


def make_mistakes(folder: Path) -> None:
    """What the mistakes below name."""
    (folder / "file").write_text("")
    (folder / "broken.toml").write_text("title = [")
    (folder / "bad.py").write_text(
        "def bad(**_):\n    raise KeyError('answers')\n\ndef short(**_):\n    return [1.0]\n"
    )
    (folder / "syntax.py").write_text("def (")
    (folder / "no.jsonl").write_text('{"prompt": "1+1="}\n{"prompt": 3}\n')
    (folder / "old").mkdir()
    (folder / "old" / "events.jsonl").write_text("")
    (folder / "model").mkdir()
    for path in MODELS["tiny"].path.iterdir():
        (folder / "model" / path.name).write_bytes(
            path.read_bytes()[:1000] if "safe" in path.name else path.read_bytes()
        )


@pytest.mark.parametrize(
    ("code", "words", "message"),
    [
        (2, ["--set", "loss.epsilom=1"], "loss: unknown setting 'epsilom'; did you mean 'epsilon'"),
        (2, ["--set", "beta"], "'beta' is no override; write section.setting=value"),
        (2, ["--preset", "stable", "--scenario", "cuda-001"], "--preset and --scenario are mutually exclusive"),
        (2, ["--scenario", "broken.toml"], "broken.toml: not valid TOML"),
        (2, ["--model", "./absent"], "no folder './absent'"),
        (2, ["--model", "model"], "model: cannot load the model (SafetensorError"),
        (2, ["--device", "cuda:99"], "device 'cuda:99' cannot be used here"),
        (2, ["--data", "no.jsonl"], 'no.jsonl:2: "prompt" is 3'),
        (1, ["--reward", "bad.py:bad"], "reward bad raised KeyError: 'answers'; mend it"),
        (2, ["--reward", "syntax.py:f"], "importing it raised SyntaxError"),
        (1, ["--out", "file/run"], "file/run cannot be written after 0 steps: Not a directory"),
    ],
    ids=lambda value: "=".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_one_line(run, tmp_path, monkeypatch, code, words, message):
    make_mistakes(tmp_path)
    monkeypatch.chdir(tmp_path)
    begin = [] if {"--preset", "--scenario"} & set(words) else ["--preset", "smoke"]
    found, out, err = run("train", *begin, "--set", "run.threads=1", *words)
    assert (found, out) == (code, "")
    assert err.startswith("error: ") and err.count("\n") == 1 and message in err


@pytest.mark.parametrize("words", [["trace"], ["replay"]], ids=str)
def test_a_folder_without_a_run_is_one_line(run, tmp_path, words):
    code, out, err = run(*words, tmp_path)
    assert (code, out, err) == (2, "", f"error: {tmp_path} holds no run: config.json is missing\n")
