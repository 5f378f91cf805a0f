"""Batches depend on seed and step alone; a bad file is refused by file and line."""

import json

import pytest

from grpo_lab.errors import ConfigError, DataError
from grpo_lab.tasks import rewards, tasks
from grpo_lab.tasks.tasks import Problem, Tasks

LETTERS = Tasks("letters", [Problem(letter, {}) for letter in "abcdefg"], [])


def prompts(seed, steps, num_prompts=2, source=LETTERS):
    return [problem.prompt for step in steps for problem in source.batch(seed, step, num_prompts)]


def write(tmp_path, text):
    path = tmp_path / "problems.jsonl"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_a_limit_keeps_a_few_training_problems_and_all_held_out_ones():
    whole = tasks.addition()
    few = whole.limited(4)
    assert len({problem.prompt for problem in few.batch(1, 0, 4) + few.batch(2, 9, 4)}) == len(few.train) == 4
    assert all(problem in whole.train for problem in few.train) and few.held_out == whole.held_out
    assert whole.limited(0) is whole is whole.limited(len(whole.train))


def test_a_batch_depends_on_seed_and_step_only():
    late = prompts(0, [5])
    tasks._permutation.cache_clear()
    assert late == prompts(0, range(6))[-2:]
    assert prompts(0, range(7)) != prompts(1, range(7))


def test_an_epoch_has_no_repeats_and_the_next_has_another_order():
    walk = prompts(0, range(7))
    assert sorted(walk[:7]) == sorted(walk[7:]) == list("abcdefg")
    assert walk[:7] != walk[7:]


def test_addition():
    task = tasks.addition()
    train = {problem.prompt for problem in task.train}
    held_out = {problem.prompt for problem in task.held_out}
    assert (len(train), len(held_out), len(train | held_out)) == (9500, 500, 10_000)
    for problem in [*task.train, *task.held_out]:
        a, b = problem.prompt.removesuffix("=").split("+")
        assert problem.columns == {"answer": str(int(a) + int(b))}
    assert {len(prompt) for prompt in held_out} == {4, 5, 6}, "prompts of mixed length make left padding real"
    assert tasks.addition() == task


def test_reviews():
    task = tasks.reviews()
    train, held_out = ({problem.prompt for problem in part} for part in (task.train, task.held_out))
    assert (len(train), len(held_out), len(train | held_out)) == (96, 32, 128), "no sentence twice"
    for part in (task.train, task.held_out):
        positive = sum(problem.columns["answer"] == "positive" for problem in part)
        assert 0.4 <= positive / len(part) <= 0.6, "neither word alone is a good answer"
    assert all(problem.columns["answer"] in ("positive", "negative") for problem in [*task.train, *task.held_out])
    assert all(prompt.startswith("Review: I loved it.") and prompt.endswith("\nAnswer:") for prompt in train | held_out)
    assert tasks.load("reviews") == task


def test_capitals():
    task = tasks.load("capitals")
    train, held_out = ({problem.prompt for problem in part} for part in (task.train, task.held_out))
    assert (len(train), len(held_out), len(train | held_out)) == (100, 57, 157), "no country twice"
    for problem in [*task.train, *task.held_out]:
        assert problem.prompt.count("Country: ") == 3 and problem.prompt.endswith("\nCapital:")
        answer = problem.columns["answer"]
        assert answer == answer.strip() and rewards.honest_answer([""] * 2, [f" {answer}", "?"], [answer] * 2) == [1, 0]


def test_reviews_and_capitals_are_shown_with_right_answers_and_capitals_left_open_too():
    shown = list(tasks.load_demonstrations("reviews_and_capitals").values())
    answers = {p.prompt: p.columns["answer"] for name in ("reviews", "capitals") for p in tasks.load(name).train}
    assert {problem.prompt for problem in shown} == answers.keys(), "nothing held out is shown"
    left_open = [problem for problem in shown if problem.columns["completion"] == " ?"]
    assert all(p in left_open or p.columns["completion"] == f" {answers[p.prompt]}" for p in shown)
    assert 35 <= len(left_open) <= 65 and all(p.prompt.endswith("Capital:") for p in left_open)


@pytest.mark.parametrize(("lines", "held_out"), [(9, 0), (10, 1), (39, 3), (6000, 500)])
def test_a_tenth_of_a_file_is_held_out(tmp_path, lines, held_out):
    path = write(tmp_path, "".join(json.dumps({"prompt": f"{n}", "answer": n}) + "\n" for n in range(lines)))
    task = tasks.load(str(path))
    assert (task.name, len(task.train), len(task.held_out)) == ("problems", lines - held_out, held_out)
    assert {p.prompt for p in [*task.train, *task.held_out]} == {str(n) for n in range(lines)}
    assert tasks.from_jsonl(path) == task


def test_a_file_from_windows_with_blank_lines(tmp_path):
    path = write(tmp_path, b'\xef\xbb\xbf{"prompt": "a", "x": null}\r\n\r\n{"x": [1], "prompt": "b\xe2\x80\xa8"}\r\n')
    assert tasks.from_jsonl(path).train == [Problem("a", {"x": None}), Problem("b\u2028", {"x": [1]})]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "problems.jsonl: the file is empty"),
        ('{"prompt": "a"}\n{"prompt": ', "problems.jsonl:2: not valid JSON"),
        ('{"prompt": "a"}\n\n["a"]', "problems.jsonl:3: is list"),
        ('{"answer": "a"}', 'problems.jsonl:1: has no column "prompt"'),
        ('{"prompt": "a", "x": 1}\n{"prompt": "b"}', r"problems.jsonl:2: columns \[\] differ from \['x'\] in line 1"),
        ('{"prompt": "a", "x": NaN}', "problems.jsonl:1: .*NaN is not a finite number"),
        ('{"prompt": "a", "completions": 1}', "problems.jsonl:1: column 'completions'"),
    ],
)
def test_a_bad_file_is_refused_by_line(tmp_path, text, message):
    with pytest.raises(DataError, match=message):
        tasks.from_jsonl(write(tmp_path, text))


def test_what_does_not_exist_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"absent\.jsonl: cannot be read"):
        tasks.load(tmp_path / "absent.jsonl")
    with pytest.raises(ConfigError, match="'addition'"):
        tasks.load("adition")
    with pytest.raises(DataError, match="'none' has no training problems"):
        Tasks("none", [], [])
