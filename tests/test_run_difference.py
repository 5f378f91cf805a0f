"""Two runs are compared by what they tell and by their weights; a run that was killed and went on is the same."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import grpo_lab as gl
from grpo_lab.analysis.run_difference import difference
from grpo_lab.errors import RunError

README = Path(__file__).parents[1] / "README.md"
CONFIG = gl.preset("smoke").with_("run.threads=1", "run.num_steps=3", "run.device=cpu")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run with saved weights."""
    return gl.Session(CONFIG, tmp_path_factory.mktemp("whole") / "run", child=False, save_model=True).run()


@pytest.fixture
def copied(whole, tmp_path):
    """A folder of one's own of that run."""
    return Path(shutil.copytree(whole.directory, tmp_path / "copy"))


def edited(folder, edit):
    """Change the events in a folder."""
    log = folder / "events.jsonl"
    trees = [json.loads(line) for line in log.read_text().splitlines()]
    log.write_text("".join(json.dumps(tree) + "\n" for tree in edit(trees)))
    return folder


def test_a_run_that_was_trained_again_is_the_same(whole, tmp_path):
    again = gl.Session(CONFIG, tmp_path / "run", child=False, save_model=True).run()
    found = difference(whole, again)
    assert found.same and (found.steps, found.weights) == (3, "the same")
    assert found.text == "steps: 3, all the same\nfinal weights: the same"
    assert difference(whole.directory, again.directory / "events.jsonl").same, "a session, a folder and a file alike"


def test_another_seed_differs_from_its_first_step_on(whole, tmp_path):
    other = gl.Session(CONFIG.with_("run.seed=1"), tmp_path / "run", child=False, save_model=True).run()
    found = difference(whole, other)
    assert not found.same and found.steps_that_differ == (0, 1, 2) and "tensors differ, by" in found.weights
    first = found.differences[0]
    assert (first.step, first.field, first.first, first.second) == (None, "Started.config.run.seed", 0, 1)
    assert "steps: 3 of 3 differ, from step 0" in found.text and "beside the steps: Started differ" in found.text


def test_one_number_is_found_with_its_step_and_both_values(whole, copied):
    def change(trees):
        for tree in trees:
            if tree.get("step") == 1 and tree["event"] == "Stepped":
                tree["metrics"].update(kl="nan", step_time=99.0)
        return trees

    found = difference(whole, edited(copied, change))
    ((step, field, first, second),) = ((e.step, e.field, e.first, e.second) for e in found.differences)
    assert (step, field, second) == (1, "Stepped.metrics.kl", "nan") and first >= 0
    assert found.steps_that_differ == (1,) and found.weights == "the same" and not found.same


def test_weights_are_compared_to_the_bit(whole, copied):
    (path,) = (copied / "model").glob("*.safetensors")
    tensors = load_file(path)
    first, second, *_ = tensors
    tensors[first].view(-1)[0] += 0.5
    save_file(tensors, path)
    found = difference(whole, copied)
    assert not found.same and not found.differences
    assert f"1 of {len(tensors)} tensors differ, by 0.5 at most" in found.weights
    save_file({**tensors, second: torch.zeros(2, 1), "other": torch.zeros(1)}, path)
    assert "other" in difference(whole, copied).weights
    path.write_bytes(b"nothing")
    with pytest.raises(RunError, match="cannot be read"):
        difference(whole, copied)
    shutil.rmtree(copied / "model")
    found = difference(whole, copied)
    assert found.same and found.weights == f"not compared: none in {copied}"


# --- the command -----------------------------------------------------------------------------------------------------


def test_the_command_names_the_first_difference(whole, copied, call):
    code, out, _ = call("diff", whole.directory, copied)
    assert (code, out) == (0, "steps: 3, all the same\nfinal weights: the same\n")
    edited(copied, lambda trees: [t | {"verdict": "STOP"} if t["event"] == "Stepped" else t for t in trees])
    code, out, _ = call("diff", whole.directory, copied)
    assert code == 1 and out.startswith("first difference: step 0, Stepped.verdict: 'KEEP' and 'STOP'\n")
    found = json.loads(call("diff", whole.directory, copied, "--json")[1])
    assert found["steps_that_differ"] == [0, 1, 2] and found["differences"][0]["second"] == "STOP"


@pytest.mark.parametrize(
    ("what", "words"),
    {"nothing": "holds no run", "empty": "never began", "page": "not an event", "bytes": "cannot be read"}.items(),
)
def test_what_is_no_run_is_bad_usage(whole, copied, call, tmp_path, what, words):
    (copied / "events.jsonl").write_text("")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\n")
    place = {"nothing": tmp_path / "none", "empty": copied, "page": README, "bytes": tmp_path / "bytes"}[what]
    code, out, errors = call("diff", whole.directory, place)
    assert (code, out) == (2, "") and words in " ".join(errors.split()) and "Traceback" not in errors


@pytest.mark.slow
def test_the_commands_of_the_readme_show_that_a_killed_run_is_the_same(tmp_path):
    text = README.read_text(encoding="utf-8")
    (commands,) = (block for block in re.findall(r"```\n(.*?)```", text, re.DOTALL) if "grpo-lab diff" in block)
    assert "kill -9 $!" in commands and "grpo-lab train --resume" in commands
    program = tmp_path / "bin" / "grpo-lab"  # a file, not a function: $! has to be the process that trains
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m grpo_lab "$@"\n')
    program.chmod(0o755)
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PYTHONPATH": str(README.parent), "PATH": path}
    done = subprocess.run(["bash", "-c", commands], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("steps: 20, all the same\nfinal weights: the same\n")
    assert "resumed: at step" in done.stdout
