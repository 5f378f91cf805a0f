"""Mistakes of a user's call or file: one plain error with the value, the limit and the way out, and no other type."""

import re

import pytest
import torch

import grpo_lab as gl
from grpo_lab.config import catalog
from grpo_lab.errors import ConfigError, DataError, GrpoLabError
from grpo_lab.tasks import tasks

CHANGED = ("clamp_log_ratio", "clamp_advantages", "sanitize_rewards", "drop_nonfinite_samples", "clamp_kl")
NAMES = 'must be a name; give names such as "warm_up" and "clip_gradients.max_norm=0.3", or "none"'


# --- guards in a loop of one's own ----------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [gl.Guards, gl.GuardCallback])
@pytest.mark.parametrize("given", [None, ["stable"], ("warm_up", "rollback"), {"warm_up": {}}, 5, False, b"stable"])
def test_guards_are_given_by_name(make, given):
    with pytest.raises(ConfigError, match=f"{re.escape(repr(given))} is of type {type(given).__name__}: {NAMES}"):
        make(given)
    with pytest.raises(ConfigError, match=NAMES):
        make("warm_up", given)


@pytest.mark.parametrize("given", ["swapped", "no model", "no optimizer", "parameters"])
def test_a_step_takes_a_model_and_its_optimizer(given):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pairs = {
        "swapped": (optimizer, model),
        "no model": (None, optimizer),
        "no optimizer": (model, None),
        "parameters": (model.parameters(), optimizer),
    }
    guards = gl.Guards("skip_nonfinite")
    with pytest.raises(ConfigError, match=r"is of type \w+: must be a torch .*; give guards.step\(model, optimizer\)"):
        guards.step(*pairs[given])  # pyright: ignore[reportArgumentType]
    model(torch.ones(1, 2)).sum().backward()
    assert not guards.step(model, optimizer).refused, "the next call is a step as ever"


@pytest.mark.parametrize("value", [[1, 2], None, 1.0, (torch.ones(2),)])
@pytest.mark.parametrize("stage", ["rewards", "log_ratio", "probabilities"])
def test_a_stage_takes_a_tensor(stage, value):
    wanted = rf"{stage} = .* is of type {type(value).__name__}: must be a Tensor; give guards.at\('{stage}', tensor\)"
    with pytest.raises(ConfigError, match=wanted):
        gl.Guards(*CHANGED).at(stage, value)


@pytest.mark.parametrize(("stage", "wanted"), [("batch", "Batch"), ("sampling", "SamplingConfig")])
@pytest.mark.parametrize("value", [[1, 2], torch.ones(2)])
def test_two_stages_take_a_value_of_this_project(stage, wanted, value):
    with pytest.raises(ConfigError, match=f"{stage} = .*: must be a {wanted}; give guards.at"):
        gl.Guards(*CHANGED).at(stage, value)


@pytest.mark.trl
def test_other_trainers_of_trl_are_not_taken_for_another_version():
    grpo = pytest.importorskip("trl.trainer.grpo_trainer").GRPOTrainer
    rloo = pytest.importorskip("trl.trainer.rloo_trainer").RLOOTrainer
    for trainer in (rloo, type("Mine", (rloo,), {})):
        with pytest.raises(ConfigError, match=r"give TRL's GRPOTrainer or a subclass.* use gl.GuardCallback") as said:
            gl.guarded(trainer)
        assert "install" not in str(said.value)
    for given in (None, {"warm_up": False}, 5, ["stable", None]):
        with pytest.raises(ConfigError, match=NAMES):
            gl.guarded(grpo)("no-model", lambda **_: [0.0], guards=given)


@pytest.mark.parametrize("value", [True, False, None, 1, "on"])
@pytest.mark.parametrize("kind", ["guards", "faults"])
def test_a_switch_in_a_table_names_both_ways_out(tmp_path, kind, value):
    told = f"{kind}.mine = {value!r}: must be a table of its settings, {{}} for the usual ones; leave it out to switch"
    for make in (gl.Config.from_dict, gl.Config().merged):
        with pytest.raises(ConfigError, match=told):
            make({kind: {"mine": value}})
    with pytest.raises(
        ConfigError,
        match=re.escape("guards = ['warm_up']: must be a table of names with their settings, as in {'warm_up': {}}"),
    ):
        gl.Config().with_guards(["warm_up"])  # pyright: ignore[reportArgumentType]


# --- settings -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "homes"),
    [
        ("learning_rate=1e-3", "optimizer.learning_rate or sft.learning_rate"),
        ("beta=0.1", "loss.beta"),
        ("learning-rate=1", "optimizer.learning_rate or sft.learning_rate"),
        ("max_length=1", "sft.max_length"),
    ],
)
def test_a_setting_without_its_section_is_proposed_with_it(override, homes):
    name, _, value = override.partition("=")
    for make in (lambda: gl.Config().with_(override), lambda: gl.Config().merged({name: value})):
        with pytest.raises(ConfigError, match=rf"unknown section {name!r}; did you mean {re.escape(homes)}\?"):
            make()
    with pytest.raises(ConfigError, match=f"did you mean {homes}"):
        gl.Config.from_dict({name: value})


@pytest.mark.parametrize("override", ["warm_up=on", "clip_gradients.max_norm=0.3"])
def test_a_guard_without_its_section_is_told_how_it_is_written(override):
    with pytest.raises(ConfigError, match=r"unknown section '\w+'.*; a guard is switched by guards.NAME=on"):
        gl.Config().with_(override)


@pytest.mark.parametrize("number", ["0", "-1"])
def test_processes_below_one_are_refused_at_the_start_and_on_resume(call, tmp_path, number):
    stopped = gl.Session(gl.preset("smoke").with_("run.num_steps=2"), tmp_path / "run")
    stopped.stop()
    stopped.run()
    for words in (["--preset", "smoke", "--out", tmp_path / "other"], ["--resume", tmp_path / "run"]):
        code, _, err = call("train", *words, "--processes", number)
        assert code == 2 and f"run.processes = {number}: must be at least 1" in err


# --- files ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path):
    def write(text, name="mine.jsonl"):
        (tmp_path / name).write_text(text, encoding="utf-8")
        return str(tmp_path / name)

    return write


@pytest.mark.parametrize(
    ("line", "columns"),
    [('{"question": "1+1=", "answer": "2"}', "answer, question"), ('{"Prompt": "1+1="}', "Prompt"), ("{}", "none")],
)
def test_a_row_without_a_prompt_names_its_columns(file, line, columns):
    told = rf'mine.jsonl:2: has no column "prompt" \(its columns: {columns}\); give the text to complete that name'
    with pytest.raises(DataError, match=told):
        tasks.load(file(f'{{"prompt": "0+1="}}\n{line}\n'))


@pytest.mark.parametrize("name", ["a.csv", "a.json", "a.parquet", "a.txt", "folder"])
@pytest.mark.parametrize("there", [True, False])
def test_tasks_of_another_format_are_told_which_one_is_read(file, tmp_path, name, there):
    path = file("prompt,answer\n1+1=,2\n", name) if there else str(tmp_path / name) + ".csv"
    with pytest.raises(
        DataError, match=rf'{name}[.csv]*: tasks are read from a file .jsonl, with a line such as \{{"prompt": '
    ):
        tasks.load(path)


@pytest.mark.parametrize("load", [tasks.load_demonstrations, tasks.load])
@pytest.mark.parametrize("text", ["prompt,completion\n1+1=,2\n", '[\n{"prompt": "1+1=", "completion": "2"}\n]\n'])
def test_a_line_that_is_no_json_is_told_what_a_line_holds(file, load, text):
    with pytest.raises(DataError, match=r"mine.jsonl:1: not valid JSON"):
        load(file(text))


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ('{"prompt": "1+1=", "answer": "2", "answer": "3"}', "answer"),
        ('{"prompt": "1+1=", "prompt": "1+1="}', "prompt"),
        ('{"prompt": [{"role": "user", "role": "system", "content": "1+1="}]}', "role"),
    ],
)
def test_a_key_that_is_there_twice_is_no_row(file, line, key):
    with pytest.raises(DataError, match=rf"mine.jsonl:1: not valid JSON: the key {key!r} is there twice; keep one"):
        tasks.load(file(line))


def test_a_key_that_is_there_twice_is_no_config(tmp_path):
    run = gl.Session(gl.preset("smoke").with_("run.num_steps=1"), tmp_path / "run").run().directory
    text = (run / "config.json").read_text()
    (run / "config.json").write_text(text.replace('"seed": 0', '"seed": 0, "seed": 5'))
    for read in (gl.Session.open, lambda path: catalog.named(str(path))):
        with pytest.raises(GrpoLabError, match="the key 'seed' is there twice; keep one"):
            read(run)
