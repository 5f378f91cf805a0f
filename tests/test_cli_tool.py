"""The command line: what commands print, settings and config files, JSON, pipes, a terminal, mistakes in one line."""

import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from rich.progress import Progress
from typer.main import get_command

import grpo_lab as gl
from grpo_lab.analysis.run_state import fold
from grpo_lab.cli.app import CODES, app
from grpo_lab.config import toml
from grpo_lab.config.algorithms import algorithm_names
from grpo_lab.config.catalog import preset_names, scenario_names
from grpo_lab.config.schema import SECTIONS, Config
from grpo_lab.core.hooks import Verdict
from grpo_lab.events import Ended, Resumed, Started, Stepped
from grpo_lab.models import loading
from grpo_lab.models.registry import MODELS
from grpo_lab.training.guards import GUARDS
from grpo_lab.ui import console, live_terminal
from grpo_lab.ui.live_terminal import drawn, sparkline
from tests.steps import stopping

SMOKE = ["train", "--preset", "smoke", "--set", "run.threads=1", "--set", "run.num_steps=2"]


def in_a_pipe(*words, **env):
    command = [sys.executable, "-m", "grpo_lab", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **env})


def in_a_terminal(*words, **env):
    """The exit code and the output of a command in a pseudo-terminal of COLUMNS."""
    process, terminal = pty.fork()
    if not process:
        os.environ.update(TERM="xterm", LINES="40", **env)
        os.execv(sys.executable, [sys.executable, "-m", "grpo_lab", *map(str, words)])
    parts = []
    while select.select([terminal], [], [], 60)[0]:
        try:
            parts.append(os.read(terminal, 65536))
        except OSError:  # Linux says so where the other side is closed
            break
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), b"".join(parts).decode()


@pytest.fixture(autouse=True)
def narrow(monkeypatch):
    """80 columns, no progress on a slow machine; torch's settings and the way of warnings are given back."""
    monkeypatch.setattr("warnings.showwarning", None)
    monkeypatch.setattr(console, "EVERY", float("inf"))
    for stream in (console.out, console.err):
        monkeypatch.setattr(stream, "_width", 80)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


# --- lists, runs and mistakes -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def crashed(tmp_path_factory):
    """The folder of a run that crashed, made by a command line of its own."""
    out = tmp_path_factory.mktemp("crashed") / "run"
    words = ["train", "--scenario", "cuda-001", "--set", "run.threads=1", "--out", str(out)]
    return out, in_a_pipe(*words, COLUMNS="80", OMP_NUM_THREADS="1")


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
def test_lists(call, words, shown):
    code, out, err = call(*words)
    assert (code, err) == (0, "")
    assert [name for name in shown if name not in out] == []
    assert max(map(len, out.splitlines())) <= 80
    if words != ["doctor"]:
        names = [each["name"] for each in json.loads(call(*words, "--json")[1])]
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


def test_trace_and_replay_show_a_run_again(call, crashed):
    folder, done = crashed
    for words, figure in (("trace", "chain.png"), ("replay", "run.png")):
        code, out, _ = call(words, folder)
        assert code == 0 and (folder / figure).stat().st_size > 10_000 and "crash: torch.multinomial" in out
        assert done.stdout.splitlines()[0] in out and f"figure: {folder / figure}" in out


def test_train_saves_what_it_trained(call, tmp_path):
    code, out, err = call(*SMOKE, "--out", tmp_path / "a")
    assert code == 0 and "end: done" in out and "Warning" not in err
    assert f"model: {tmp_path / 'a' / 'model'}" in out
    loading.load(str(tmp_path / "a" / "model"))


def test_json_is_json_and_nothing_else(call, tmp_path):
    reward = tmp_path / "r.py"
    reward.write_text("def chatty(completions, **_):\n    print('hello')\n    return [0.0 for _ in completions]\n")
    code, out, err = call(*SMOKE, "--reward", f"{reward}:chatty", "--json", "--out", tmp_path / "a")
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
def test_a_mistake_is_one_line(call, tmp_path, monkeypatch, code, words, message):
    make_mistakes(tmp_path)
    monkeypatch.chdir(tmp_path)
    begin = [] if {"--preset", "--scenario"} & set(words) else ["--preset", "smoke"]
    found, out, err = call("train", *begin, "--set", "run.threads=1", *words)
    assert (found, out) == (code, "")
    assert err.startswith("error: ") and err.count("\n") == 1 and message in err


@pytest.mark.parametrize("words", [["trace"], ["replay"]], ids=str)
def test_a_folder_without_a_run_is_one_line(call, tmp_path, words):
    code, out, err = call(*words, tmp_path)
    assert (code, out, err) == (2, "", f"error: {tmp_path} holds no run: config.json is missing\n")


# --- a run that goes on ----------------------------------------------------------------------------------------------


def test_a_run_that_was_stopped_goes_on_from_the_command_line(call, tmp_path):
    config = gl.preset("smoke").with_("run.threads=1", "run.num_steps=6", "run.checkpoint_minutes=0")
    stopping(gl.Session(config, tmp_path / "run", child=False), 3).run()
    code, out, err = call("train", "--resume", tmp_path / "run", "--recover", "loss.beta=0.5", "--json")
    events = [json.loads(line) for line in out.splitlines()]
    assert (code, err) == (0, "")
    assert [event["step"] for event in events if event["event"] == "Stepped"] == list(range(6))
    (resumed,) = (event for event in events if event["event"] == "Resumed")
    assert (resumed["step"], resumed["overrides"]) == (3, ["loss.beta=0.5"])
    assert gl.Session.open(tmp_path / "run").saved_model
    code, out, _ = call("trace", tmp_path / "run", "--out", tmp_path)
    assert code == 0 and "resumed: at step 3" in out
    code, _, err = call("train", "--resume", tmp_path / "run")
    assert code == 2 and "is done, after 6 steps" in err and err.count("\n") == 1


def test_a_run_is_forked_from_the_command_line(call, tmp_path):
    config = gl.preset("smoke").with_("run.threads=1", "run.num_steps=4", "run.checkpoint_minutes=0")
    gl.Session(config, tmp_path / "run", child=False).run()
    fork = ("train", "--resume", tmp_path / "run", "--fork")
    code, out, err = call(*fork, 2, "--recover", "optimizer.learning_rate=*0.5", "--out", tmp_path / "fork", "--json")
    assert (code, err) == (0, "")
    mine, theirs = gl.Session.open(tmp_path / "fork").records, gl.Session.open(tmp_path / "run").records
    same = [mine.loc[step, "grad_norm"] == theirs.loc[step, "grad_norm"] for step in range(4)]
    assert same == [True, True, True, False]
    assert '{"event":"Forked","step":' in out
    code, _, err = call(*fork, 9)
    assert code == 2 and "fork it before a step from 0 to 3, not 9" in err and err.count("\n") == 1
    code, _, err = call(*fork, 1, "--processes", 2)
    assert code == 2 and "without --processes" in err
    code, _, err = call("train", "--fork", 1)
    assert code == 2 and "--resume" in err


# --- settings and config files ---------------------------------------------------------------------------------------


def test_every_key_is_listed_with_its_meaning(call):
    code, out, _ = call("settings", "--json")
    found = {each["key"]: each for each in json.loads(out)}
    keys = {f"{section}.{name}" for section in SECTIONS for name in Config().to_dict()[section]}
    assert code == 0 and keys < set(found) and "guards.clip_gradients.max_norm" in found
    assert [key for key in keys if not found[key]["meaning"]] == []
    assert found["loss.beta"] | {"meaning": ""} == {
        "key": "loss.beta",
        "meaning": "",
        "type": "float",
        "limit": "at least 0",
        "default": 0.02,
    }


@pytest.mark.parametrize("text", ['a "b"\n{completion}', "\x7f\U0001f600", "c:\\d"])
def test_any_text_survives_toml(text):
    config = Config().merged({"model": {"name": f"x{text}"}, "guards": {"file.py:Mine": {"a": [text, 1.5, True]}}})
    assert Config.from_dict(tomllib.loads(toml.dumps(config))) == config


def test_print_config_trains_nothing_and_round_trips(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["--scenario", "dual-overwrite", "--guards", "stable", "--set", "objectives.F.weight=0.25"]
    code, text, err = call("train", *words, "--print-config")
    assert (code, err) == (0, "") and "weight = 0.25" in text
    (tmp_path / "a.toml").write_text(text)
    assert call("train", "--config", "a.toml", "--print-config") == (0, text, "")
    assert [path.name for path in tmp_path.iterdir()] == ["a.toml"]


def test_set_lies_over_guards_and_algorithm_and_these_over_the_file(call, tmp_path):
    file = tmp_path / "a.toml"
    file.write_text("[loss]\nbeta = 0.5\nsurrogate = 'sapo'\n[sampling]\ntemperature = 0.5\n[guards.warm_up]\n")
    words = ["--config", file, "--guards", "clip_gradients", "--algorithm", "cispo", "--set", "loss.beta=0.7"]
    words += ["--set", "loss.epsilon_high=0.9"]
    code, text, _ = call("train", *words, "--set", "guards.clip_gradients.max_norm=0.3", "--print-config")
    tree = tomllib.loads(text)
    assert code == 0 and tree["guards"] == {"clip_gradients": {"max_norm": 0.3}}
    assert (tree["loss"]["beta"], tree["sampling"]["temperature"]) == (0.7, 0.5)
    assert (tree["loss"]["surrogate"], tree["loss"]["epsilon_high"]) == ("cispo", 0.9)


@pytest.mark.parametrize(
    ("text", "words", "message"),
    [
        ("[los]\n", [], "a.toml: unknown section 'los'; did you mean 'loss'"),
        ("[loss]\nbetta = 1\n", [], "a.toml: loss: unknown setting 'betta'; did you mean 'beta'"),
        ("[guards.warm_upp]\n", [], "unknown guard 'warm_upp'; did you mean 'warm_up'"),
        ("", ["--preset", "stable"], "--config holds a whole config"),
        ("", ["--guards", "absent.py:Mine"], "absent.py:Mine: no file 'absent.py'"),
    ],
)
def test_a_bad_config_file_is_one_line(call, tmp_path, monkeypatch, text, words, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.toml").write_text(text)
    code, out, err = call("train", "--config", "a.toml", *words, "--print-config")
    assert (code, out, err.count("\n")) == (2, "", 1) and message in err


# --- guards, JSON, weights -------------------------------------------------------------------------------------------


def test_a_recording_is_traced_as_json(call, tmp_path):
    code, out, err = call("trace", "lecture-cuda-001", "--json", "--out", tmp_path)
    found = json.loads(out)
    assert (code, err) == (0, "") and found["status"] == "crashed"
    assert found["crash"]["operator"] == "torch.multinomial" and found["first_break"]["step"] == 0


# --- pipes and terminals ---------------------------------------------------------------------------------------------


def test_lines_are_whole_in_a_pipe():
    done = in_a_pipe("scenarios", COLUMNS="40")
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and len(lines) == 1 + len(scenario_names())
    assert "\x1b" not in done.stdout and all(line == line.rstrip() for line in lines)


def test_lines_are_as_wide_as_the_terminal():
    code, out = in_a_terminal("scenarios", COLUMNS="60", NO_COLOR="1")
    lines = re.sub(r"\x1b\[\d*m", "", out).splitlines()
    assert code == 0 and len(lines) > 2 * len(scenario_names()) and max(map(len, lines)) <= 60
    assert "\x1b[3" not in out, "no colour"


def test_progress_in_a_pipe_is_plain_lines(monkeypatch, capsys):
    monkeypatch.setattr(console, "EVERY", 0.0)
    with console.progress() as bars:
        view = console.ProgressView(bars, "mine")
        view.show(Started({"run": {"num_steps": 4, "stages": ["grpo"]}}, 1, "cpu"))
        for step in range(2):
            metrics = {"reward": 0.5, "grad_norm": 2.0, "kl": 0.01}
            view.show(Stepped(step, 1, Verdict.KEEP, metrics, (), ()))
    out, err = capsys.readouterr()
    assert out == "" and "\r" not in err and "\x1b" not in err
    assert re.fullmatch(r"mine: 2 of 4, ETA \d+ s  reward 0.5 norm 2 kl 0.01", err.splitlines()[-1])


@pytest.mark.slow
def test_the_live_view_draws_in_a_terminal_and_ends_cleanly(tmp_path):
    code, out = in_a_terminal(*SMOKE, "--live", "--save", "none", "--out", tmp_path / "a", COLUMNS="80")
    assert code == 0 and "gradient norm" in out and "step 2 of 2" in out and "end: done" in out
    assert out.count("\x1b[?25l") == out.count("\x1b[?25h") == 1, "the cursor is shown again"


def test_a_sparkline_marks_what_is_not_finite_and_scales_by_magnitude():
    nan, inf = float("nan"), float("inf")
    assert sparkline([10.0, 100.0, 10000.0, 0.0, nan, inf], 10, log=True) == "▁▃█▁×∞"
    assert sparkline([1.0, 1000.0, nan, 1.0], 2, log=True) == "▁×"
    assert sparkline([], 10) == "" and sparkline([3.0, 3.0], 10) == "▁▁"
    assert len(sparkline([1.0] * 1000, 50)) == 50


def test_the_live_view_says_step_status_and_guards():
    events = [
        Started({"run": {"name": "mine", "num_steps": 2}}, 1, "cpu"),
        Stepped(0, 1, Verdict.KEEP, {"reward": 0.5}, (), ()),
    ]
    lines = drawn(fold(events), 60, 3.0)
    assert lines[0] == "mine  step 1 of 2  3 s  ETA 3 s" and lines[-1].startswith("Ctrl-C")
    assert any(line.startswith("reward ") and line.endswith("▁") for line in lines)
    done = drawn(fold([*events, Ended("failed", "no\nfile")]), 60, 3.0)
    assert done[-2:] == ["failed: no file", "guards: none acted"]


@pytest.mark.parametrize("live", [False, True])
def test_the_time_left_counts_no_step_of_before_a_resume(live, monkeypatch):
    clock, screen = [0.0], io.StringIO()
    monkeypatch.setattr(live_terminal, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    bars = Progress(get_time=lambda: clock[0], disable=True)
    with live_terminal.LiveView(Console(file=screen, force_terminal=True, width=80)) as in_place:
        view = in_place if live else console.ProgressView(bars, "mine")
        view.show(Started({"run": {"name": "mine", "num_steps": 100, "stages": ["grpo"]}}, 1, "cpu"))
        for step in range(55):
            if step == 50:
                view.show(Resumed(50, kept=51))
            clock[0] += 5 * (step >= 50)
            view.show(Stepped(step, 1, Verdict.KEEP, {"reward": 0.5}, (), ()))
    left = re.findall(r"ETA (\d+) s", screen.getvalue())[-1] if live else bars.tasks[0].time_remaining
    assert str(left) == str(45 * 5)


# --- help ------------------------------------------------------------------------------------------------------------


def commands(group, path=()):
    for name, each in group.commands.items():
        yield from commands(each, (*path, name)) if hasattr(each, "commands") else [((*path, name), each)]


def test_every_command_states_its_exit_codes_and_an_example():
    found = dict(commands(get_command(app)))
    without = [path for path, each in found.items() if CODES not in (each.epilog or "")]
    bare = [path for path, each in found.items() if f"grpo-lab {' '.join(path)}" not in (each.epilog or "")]
    assert len(found) > 20 and without == bare == []
