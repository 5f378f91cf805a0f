"""Values of a wrong type are refused where they are given, with what they are, what is expected, and an example."""

import pytest

import grpo_lab as gl
from grpo_lab.errors import ConfigError
from grpo_lab.models import loading
from grpo_lab.tasks.tasks import Problem, Tasks

SMOKE = gl.preset("smoke").with_("run.threads=1")


def score(completions, **_):
    return [0.0] * len(completions)


class Judge:
    def __call__(self, completions, **_):
        return [0.0] * len(completions)


WRONG = [
    ({}, "config = None is of type NoneType: must be a Config; give gl.preset"),
    ({"rewards": score}, "config = None is of type NoneType"),
    ({"config": "stable"}, r"config = 'stable' is of type str: must be a Config; give gl.preset\('stable'\)"),
    ({"config": "cuda-001"}, r"give gl.scenario\('cuda-001'\).config\(\)"),
    ({"config": "no such"}, r'give gl.preset\("stable"\)'),
    ({"config": {"run": {"num_steps": 2}}}, "is of type dict: .*from_dict"),
    ({"config": gl.scenario("cuda-001")}, r"give its .config\(\)"),
    ({"config": gl.Config}, "is of type type: must be a Config"),
    ({"rewards": score}, r"of type function: must be a list of functions; give rewards=\[score\], or name it in"),
    ({"rewards": Judge()}, "of type Judge: must be a list of functions"),
    ({"rewards": Judge}, r"rewards = <class .* give rewards=\[Judge\]"),
    ({"rewards": "exact_match"}, r"config.with_\('data.rewards=exact_match'\)"),
    ({"rewards": ["exact_match"]}, r"rewards\[0\] = 'exact_match' is of type str: must be a function; .*file.py:score"),
    ({"rewards": [Judge]}, r"rewards\[0\] = .* is of type type: must be a function; give an object of it: Judge"),
    ({"rewards": [score, 1]}, r"rewards\[1\] = 1 is of type int"),
    ({"rewards": []}, "must be a list of functions, at least one"),
    ({"rewards": {"a": score}}, "is of type dict: must be a list of functions"),
    ({"tasks": "mine.jsonl"}, r"config.with_\('data.tasks=mine.jsonl'\)"),
    ({"tasks": [Problem("1+1=", {})]}, r"is of type list: must be a Tasks; give Tasks\(name, train, held_out\)"),
    ({"model": "tiny"}, r"config.with_\('model.name=tiny'\)"),
    ({"model": object()}, r"must be a policy and its tokenizer; give model=\(policy, tokenizer\)"),
    ({"model": (1, 2)}, r"give model=\(policy, tokenizer\), in this order"),
]
IN_A_SESSION = [
    ({"directory": 7}, "directory = 7 is of type int: must be a path"),
    ({"child": "yes"}, "child = 'yes' is of type str: must be True, False, None or a Child"),
    ({"save_model": "last"}, "save_model = 'last' is of type str: must be True or False"),
]


@pytest.mark.parametrize(
    ("make", "given", "message"),
    [*((gl.Session, *row) for row in (*WRONG, *IN_A_SESSION)), *((gl.train, *row) for row in WRONG)],
)
def test_wrong_types_are_refused_at_the_call(make, given, message):
    right = {} if message.startswith("config = None") else {"config": SMOKE}
    with pytest.raises(ConfigError, match=message):
        make(**right | given)


def test_a_model_and_its_tokenizer_must_not_change_places():
    policy, tokenizer = loading.load("tiny")
    with pytest.raises(ConfigError, match="in this order"):
        gl.Session(SMOKE, model=(tokenizer, policy))


def test_right_types_are_taken(tmp_path):
    tasks = Tasks("sums", [Problem("1+1=", {"answer": "2"})], [])
    model = loading.load("tiny")
    session = gl.Session(SMOKE, str(tmp_path / "run"), model, tasks, (score, Judge()), None, save_model=False).run()
    assert session.status == "done"
    assert next(iter(gl.train(SMOKE, model, tasks, [score])))


def test_an_argument_that_does_not_exist_is_python_s_own_error():
    with pytest.raises(TypeError, match="reward_funcs"):
        gl.Session(SMOKE, reward_funcs=[score])  # pyright: ignore[reportCallIssue]
    assert "config" in gl.Session.__init__.__annotations__ and gl.train.__doc__
