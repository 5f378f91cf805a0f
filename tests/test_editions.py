"""Both editions of a notebook come from one source, to the letter, and no solution is in the learner's."""

import json
import sys
from pathlib import Path

import jupytext
import nbformat
import pytest

from grpo_lab import cli
from grpo_lab.course import registry
from grpo_lab.course.editions import build
from grpo_lab.course.editions.solutions import Malformed, learners, reference, solutions
from grpo_lab.errors import DataError

LABS = Path(__file__).parents[1] / "labs"


def cells(text):
    return {cell.id: cell for cell in nbformat.reads(text, as_version=4).cells}


@pytest.fixture
def sample(sample_lab):
    """The cells of an edition by id; `sample(edition, a, b)` after a change of its source."""

    def made(edition="learner", *change):
        path = sample_lab / "sample" / "notebook.py"
        if change:
            text = path.read_text()
            assert change[0] in text
            path.write_text(text.replace(*change, 1))
        return cells(build.notebook(sample_lab, "sample", edition))

    return made


def test_the_cells_of_an_edition(sample):
    learner, instructor = sample(), sample("instructor")
    assert list(learner) == [name for name in instructor if name != "sample-01"]
    assert list(learner)[:5] == [
        "sample-00",
        "sample-02",
        "sample-guess-task",
        "sample-guess",
        "sample-guess-hints",
    ]
    assert instructor["sample-01"].source == "**Say.** It is a sample."
    assert learner["sample-09"].metadata.tags == ["slow"]


def test_what_the_registry_knows_is_written_from_there(sample):
    made = sample()
    cover = made["sample-00"].source.split("\n")
    assert cover[0] == "# Lab 9. A sample"
    assert cover[2] == "*20 minutes · difficulty ★★☆* · You can double a number & say so."
    assert cover[4] == "What a lab looks like."
    assert made["sample-double-task"].source == "### Exercise: Double it\n\n*5 min · difficulty ★★☆ · code*"
    hints = made["sample-double-hints"].source
    assert hints.count("<details>") == hints.count("</details>") == 3
    assert "<details><summary>Hint 2 of 3</summary>\n\nA number plus itself.\n\n</details>" in hints


def test_solutions_stand_in_the_instructors_edition_only(sample):
    learner, instructor = sample(), sample("instructor")
    assert learner["sample-double"].source.endswith('every number twice."""\n    ...  # your answer')
    assert instructor["sample-double"].source.endswith("    twice = x + x\n    return twice")
    assert learner["sample-guards"].source == "%%exercise guards\nguards = ...  # your answer"
    assert "SOLUTION" not in str([*learner.values(), *instructor.values()])


@pytest.mark.parametrize(
    ("solution", "stub"),
    [
        ("a = 1\nb = (\n    2,\n)", "a = ...  # your answer\nb = ...  # your answer"),
        ("a: int = 1", "a = ...  # your answer"),
        ("def f():\n    return 1", "...  # your answer"),
        ("a = 1\nprint(a)", "...  # your answer"),
        ("    a = 1\n\n    return a", "    ...  # your answer"),
        ("        deep\n    less", "    ...  # your answer"),
    ],
)
def test_stubs(solution, stub):
    source = f"before\n# BEGIN SOLUTION\n{solution}\n# END SOLUTION\nafter"
    assert learners(source) == f"before\n{stub}\nafter"
    assert reference(source) == f"before\n{solution}\nafter"
    assert solutions(source) == [solution.split("\n")]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("# BEGIN SOLUTION\nx", "END SOLUTION is missing"),
        ("x\n# END SOLUTION", "line 2: # END SOLUTION where # BEGIN SOLUTION is due"),
        ("# BEGIN SOLUTION\n# BEGIN SOLUTION\n# END SOLUTION", "line 2: # BEGIN SOLUTION where # END"),
    ],
)
def test_marks_that_do_not_pair(source, message):
    with pytest.raises(Malformed, match=message):
        learners(source)


LONG = "\n".join(f"    x = {n}" for n in range(13)) + "\n    return x"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("# Lab 9. A sample", "# Lab 9. Another"), "first cell must begin with a heading .* '# A sample'"),
        (('gl.Lab("sample")', 'gl.Lab("04_guards")'), r'no cell calls gl\.Lab\("sample"\), the name of the folder'),
        (("%%exercise double", "%%exercise duoble"), "unknown exercise 'duoble'; did you mean 'double'.*"),
        (("%%exercise double", "%%exercise duoble"), "exercise 'double' is in lab.toml and has no cell"),
        (("%%exercise letter", "%%exercise guess"), "exercise 'guess' is asked 2 times"),
        (("    # END SOLUTION\n", ""), "cell 4, which begins '%%exercise double': .*END SOLUTION is missing"),
        (("    twice = x + x\n    return twice", LONG), "a solution of 14 lines; at most 12"),
        (("import torch\n", "import torch\n" * 9), "16 lines; at most 15"),
        (("return twice", "return ("), "was never closed"),
        (("lab.questions()", "# BEGIN SOLUTION\nlab\n# END SOLUTION"), "a solution outside an exercise"),
        (('# BEGIN SOLUTION\nanswer = "b"\n# END SOLUTION', "answer"), "an exercise without a solution"),
        (("# %%\nlab.questions", '# %% tags=["instructor"]\nlab.questions'), "for instructors and holds code"),
        (("print(lab.answer", "1\n# %%exercise x\nprint(lab.answer"), "must be its first line"),
    ],
)
def test_a_source_that_breaks_a_rule_is_refused(sample, change, message):
    with pytest.raises(DataError, match=rf"(?s)notebook\.py: .*{message}"):
        sample("learner", *change)


def test_a_table_may_be_long(sample):
    table = '# %% tags=["data"]\n' + "row = 1\n" * 20 + "\n# %%\nlab.questions()"
    assert sample("learner", "# %%\nlab.questions()", table)["sample-10"].source.count("\n") == 19


def test_what_is_no_lab_has_one_edition(sample_lab):
    (sample_lab / "talk").mkdir()
    (sample_lab / "talk" / "notebook.py").write_text("# %%\n1 + 1\n")
    made = build.render(sample_lab)
    assert [str(path.relative_to(sample_lab)) for path in made] == ["sample/sample.ipynb", "talk/talk.ipynb"]
    (sample_lab / "talk" / "notebook.py").write_text("# %%\n# %%exercise x\n# BEGIN SOLUTION\n1\n# END SOLUTION\n")
    with pytest.raises(DataError, match="unknown exercise 'x'"):
        build.render(sample_lab)


@pytest.fixture
def run(monkeypatch, capsys):
    """`grpo-lab labs build` with more words: exit code, standard output, standard error."""

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["grpo-lab", "labs", "build", *words])
        with pytest.raises(SystemExit) as end:
            cli.main()
        out, err = capsys.readouterr()
        return end.value.code or 0, out, err

    return call


def test_the_command(sample_lab, run):
    assert run("--folder", ".", "--check")[0] == 1
    assert run("--folder", ".") == (0, "sample/sample.ipynb written\n", "")
    assert run("--folder", ".") == (0, "", "")
    assert run("--folder", ".", "--check", "sample") == (0, "", "")
    (sample_lab / "sample" / "sample.ipynb").write_text("{}")
    code, _, error = run("--folder", ".", "--check")
    assert code == 1
    assert "out of date: sample/sample.ipynb; run grpo-lab labs build" in error


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["simple", "--folder", "."], 2, "unknown lab 'simple'; did you mean 'sample'?"),
        ([], 2, "no lab in labs; run this in the checkout"),
    ],
)
def test_mistakes_of_the_command(sample_lab, run, words, code, message):
    found, _, error = run(*words)
    assert found == code
    assert message in error


def test_known_answers_that_do_not_fit_are_refused(sample_lab):
    path = sample_lab / "sample" / "answers.toml"
    path.write_text(path.read_text().replace("'x + x'", "'x * 3'", 1))
    with pytest.raises(
        DataError, match=r"answers\.toml: double, 'three times': 'x \* 3' stands 0 times in the solution"
    ):
        build.render(sample_lab)


def test_the_known_answers_are_tried(sample_lab, call):
    code, out, _ = call("labs", "answers", "sample", "--folder", ".")
    assert (code, out) == (0, "2 known answers are judged as answers.toml says\n")
    path = sample_lab / "sample" / "answers.toml"
    path.write_text(f"""{path.read_text()}
[double.wrong."twice"]
change.'x + x' = '2 * x'

[double.right."three times, too"]
change.'x + x' = '3 * x'

[double.wrong."four times"]
change.'x + x' = '4 * x'
reason = "This is four times the number."

[double.near."four times, again"]
change.'x + x' = 'x * 4'
reason = "This is another reason."

[double.right."no name"]
change.'x + x' = 'y'
""")
    code, out, err = call("labs", "answers", "sample", "--folder", ".")
    said = {line.partition(": ")[0]: line.partition(": ")[2] for line in out.splitlines()}
    assert code == 1 and "4 of 7 known answers" in err
    assert said["sample/double/twice"] == "it is wrong, and earns all points with seed 0"
    assert "This is three times the number." in said["sample/double/three times, too"]
    assert "This is four times the number." in said["sample/double/four times, again"]
    assert "name 'y' is not defined" in said["sample/double/no name"]


def test_a_known_answer_without_the_function_disturbs_no_other(sample_lab, call):
    """Before: it raised NotYet where any wrong answer to the exercise was judged."""
    path = sample_lab / "sample" / "answers.toml"
    path.write_text(f'[double.wrong."other"]\ncell = "def other(x): return x"\nreason = "Other."\n\n{path.read_text()}')
    code, out, _ = call("labs", "answers", "sample", "--folder", ".")
    assert (
        code == 1 and out.splitlines()[0].startswith("sample/double/other: it is told ") and len(out.splitlines()) == 1
    )


def test_a_lab_of_ones_own_is_found_by_its_name(sample_lab, tmp_path, monkeypatch, call):
    """Before: the lab was unknown without --folder."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert call("labs", "answers", "sample")[0] == 0
    assert "unknown lab 'smaple'" in call("labs", "answers", "smaple")[2]
    code, out, _ = call("labs", "solutions", "out", "sample")
    assert (code, out) == (0, "out/sample.ipynb written\n")


def test_a_mistake_of_a_check_is_named_with_its_line(sample_lab, call):
    path = sample_lab / "sample" / "checks.py"
    path.write_text(path.read_text().replace('Case("three numbers"', 'Case({}["three"]'))
    code, out, _ = call("labs", "answers", "sample", "--folder", ".")
    assert code == 1 and "its check raised KeyError: 'three' (line 15); mend checks.py" in out


def test_a_near_miss_must_lose_with_each_seed(sample_lab, call):
    path = sample_lab / "sample" / "answers.toml"
    near = "[double.near.'where small']\nchange.'x + x' = 'x + x if x[0] < 0.75 else x'\n"
    path.write_text(f"{path.read_text()}\n{near}")
    code, out, _ = call("labs", "answers", "sample", "--folder", ".")
    assert code == 1 and "it is wrong, and earns all points with seed " in out


# What is committed.


def test_every_notebook_is_what_its_source_makes():
    assert build.stale(build.render(LABS)) == []


def test_every_lab_of_the_registry_has_a_notebook_and_every_notebook_a_source():
    assert set(registry.course_labs()) <= set(build.lab_names(LABS))
    made = {path.relative_to(LABS) for path in build.render(LABS)}
    assert {path.relative_to(LABS) for path in LABS.rglob("*.ipynb") if ".ipynb_checkpoints" not in str(path)} == made


@pytest.mark.parametrize("name", [name for name in build.lab_names(LABS) if name in registry.course_labs()])
def test_no_solution_is_in_a_learners_edition(name):
    """Not as a line anywhere, and no long one within a line, but for a last hint, which may be nearly the answer."""
    source = jupytext.read(LABS / name / "notebook.py", fmt="py:percent")
    solved = [lines for cell in source.cells for lines in solutions(cell.source)]
    elsewhere = {line.strip() for cell in source.cells for line in learners(cell.source).split("\n")}
    telling = {line.strip() for lines in solved for line in lines} - elsewhere - {""}
    made = cells(build.place(LABS, name).read_text())
    found = {line.strip() for cell in made.values() for line in cell.source.split("\n")}
    text = json.dumps([cell for identity, cell in made.items() if not identity.endswith("-hints")])
    assert telling
    assert telling & found == set()
    assert [line for line in telling if len(line) > 30 and json.dumps(line)[1:-1] in text] == []
    hints = "\n".join(cell.source for identity, cell in made.items() if identity.endswith("-hints"))
    assert [lines for lines in solved if len(lines) > 1 and "\n".join(lines).strip() in hints] == []


def test_no_notebook_holds_outputs():
    for path in LABS.rglob("*.ipynb"):
        for cell in json.loads(path.read_text())["cells"]:
            assert not cell.get("outputs"), f"{path}: {cell['id']}"
            assert cell.get("execution_count") is None
