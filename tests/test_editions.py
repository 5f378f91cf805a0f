"""Both editions of a notebook come from one source, to the letter, and no solution is in the learner's."""

import json
from pathlib import Path

import jupytext
import nbformat
import pytest

from grpo_lab.course import registry
from grpo_lab.course.editions import build
from grpo_lab.course.editions.solutions import Malformed, learners, reference, solutions
from grpo_lab.errors import DataError

LABS = Path(__file__).parents[1] / "labs"


def cells(text):
    return {cell.id: cell for cell in nbformat.reads(text, as_version=4).cells}


def change(path, old, new):
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


@pytest.fixture
def source(sample_lab):
    return sample_lab / "sample" / "notebook.py"


@pytest.fixture
def made(sample_lab):
    """`made(edition)`: the cells of an edition of the sample lab by id."""
    return lambda edition="learner": cells(build.notebook(sample_lab, "sample", edition))


def test_the_cells_of_an_edition(made):
    learner, instructor = made(), made("instructor")
    assert list(learner) == [name for name in instructor if name != "sample-01"]
    assert list(learner)[:5] == ["sample-00", "sample-02", "sample-guess-task", "sample-guess", "sample-guess-hints"]
    assert instructor["sample-01"].source == "**Say.** It is a sample."
    assert learner["sample-09"].metadata.tags == ["slow"]
    cover = learner["sample-00"].source.split("\n")
    assert cover[0] == "# Lab 9. A sample" and cover[4] == "What a lab looks like."
    assert cover[2] == "*20 minutes · difficulty ★★☆* · You can double a number & say so."
    assert learner["sample-double-task"].source == "### Exercise: Double it\n\n*5 min · difficulty ★★☆ · code*"
    hints = learner["sample-double-hints"].source
    assert hints.count("<details>") == hints.count("</details>") == 3
    assert "<details><summary>Hint 2 of 3</summary>\n\nA number plus itself.\n\n</details>" in hints


def test_solutions_stand_in_the_instructors_edition_only(made):
    learner, instructor = made(), made("instructor")
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
        ("import a\nfrom b import c\n\ndef f():\n    return 1\n\nd = f()", "d = ...  # your answer"),
        ("a = 1\nprint(a)", "...  # your answer"),
        ("    a = 1\n\n    return a", "    ...  # your answer"),
        ("        deep\n    less", "    ...  # your answer"),
    ],
)
def test_stubs(solution, stub):
    text = f"before\n# BEGIN SOLUTION\n{solution}\n# END SOLUTION\nafter"
    assert learners(text) == f"before\n{stub}\nafter"
    assert reference(text) == f"before\n{solution}\nafter"
    assert solutions(text) == [solution.split("\n")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# BEGIN SOLUTION\nx", "END SOLUTION is missing"),
        ("x\n# END SOLUTION", "line 2"),
        ("# BEGIN SOLUTION\n# BEGIN SOLUTION\n# END SOLUTION", "line 2"),
    ],
)
def test_marks_that_do_not_pair(text, message):
    with pytest.raises(Malformed, match=message):
        learners(text)


LONG = "\n".join(f"    x = {n}" for n in range(13)) + "\n    return x"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("# Lab 9. A sample", "# Lab 9. Another", "first cell must begin with a heading .* '# A sample'"),
        ('gl.Lab("sample")', 'gl.Lab("04_guards")', r'no cell calls gl\.Lab\("sample"\)'),
        ("%%exercise double", "%%exercise duoble", "unknown exercise 'duoble'; did you mean 'double'.*'double' is in"),
        ("%%exercise letter", "%%exercise guess", "exercise 'guess' is asked 2 times"),
        ("    # END SOLUTION\n", "", "cell 4, which begins '%%exercise double': .*END SOLUTION is missing"),
        ("    twice = x + x\n    return twice", LONG, "a solution of 14 lines; at most 12"),
        ("import torch\n", "import torch\n" * 9, "16 lines; at most 15"),
        ("return twice", "return (", "was never closed"),
        ("lab.questions()", "# BEGIN SOLUTION\nlab\n# END SOLUTION", "a solution outside an exercise"),
        ("return twice", "return math.fsum([twice])", r"its cell uses math, and neither imports nor defines it"),
        ('# BEGIN SOLUTION\nanswer = "b"\n# END SOLUTION', "answer", "an exercise without a solution"),
        ("# %%\nlab.questions", '# %% tags=["instructor"]\nlab.questions', "for instructors and holds code"),
        ("print(lab.answer", "1\n# %%exercise x\nprint(lab.answer", "must be its first line"),
    ],
)
def test_a_source_that_breaks_a_rule_is_refused(made, source, old, new, message):
    change(source, old, new)
    with pytest.raises(DataError, match=rf"(?s)notebook\.py: .*{message}"):
        made()


def test_a_table_may_be_long(made, source):
    change(source, "# %%\nlab.questions()", '# %% tags=["data"]\n' + "row = 1\n" * 20)
    assert made()["sample-10"].source.count("\n") == 19


def test_what_is_no_lab_has_one_edition(sample_lab):
    (sample_lab / "talk").mkdir()
    (sample_lab / "talk" / "notebook.py").write_text("# %%\n1 + 1\n")
    rendered = build.render(sample_lab)
    assert [str(path.relative_to(sample_lab)) for path in rendered] == ["sample/sample.ipynb", "talk/talk.ipynb"]
    (sample_lab / "talk" / "notebook.py").write_text("# %%\n# %%exercise x\n# BEGIN SOLUTION\n1\n# END SOLUTION\n")
    with pytest.raises(DataError, match="unknown exercise 'x'"):
        build.render(sample_lab)


CHINESE = """title = "样例"
summary = "翻倍。"
questions = []
[exercises.guess]
title = "一"
hints = ["一", "二", "三"]
"""


@pytest.mark.parametrize(
    ("words", "place"),
    [
        ('[reasons.double]\n"four times" = "四倍。"', "reasons.double.four times"),
        ('[texts]\nfar = ["远", "远。"]', "texts.far.what"),
    ],
)
def test_chinese_words_without_their_english_are_named(sample_lab, words, place):
    """Before: `labs build` said nothing of them."""
    folder = sample_lab / "sample" / "zh"
    folder.mkdir()
    (folder / "notebook.py").write_text("# %%\n")
    (folder / "lab.toml").write_text(CHINESE + words, encoding="utf-8")
    with pytest.raises(DataError, match=rf"zh/lab\.toml: {place} has no English text"):
        build.notebook(sample_lab, "sample", "learner", "zh")


def test_the_command_builds_what_is_out_of_date(sample_lab, call):
    build_here = ("labs", "build", "--folder", ".")
    assert call(*build_here, "--check")[0] == 1
    assert call(*build_here) == (0, "sample/sample.ipynb written\n", "")
    assert call(*build_here) == call(*build_here, "--check", "sample") == (0, "", "")
    (sample_lab / "sample" / "sample.ipynb").write_text("{}")
    code, _, error = call(*build_here, "--check")
    assert code == 1 and "out of date: sample/sample.ipynb" in error


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["build", "simple", "--folder", "."], "unknown lab 'simple'; did you mean 'sample'?"),
        (["build"], "no lab in labs"),
        (["answers", "smaple"], "unknown lab 'smaple'"),
    ],
)
def test_mistakes_of_the_commands(sample_lab, call, words, message):
    code, _, error = call("labs", *words)
    assert code == 2 and message in error


# The known answers of a lab of one's own.


def test_known_answers_that_do_not_fit_are_refused(sample_lab):
    change(sample_lab / "sample" / "answers.toml", "'x + x'", "'x * 3'")
    with pytest.raises(DataError, match=r"answers\.toml: double, 'three times': 'x \* 3' stands 0 times"):
        build.render(sample_lab)


ROWS = {
    "a right one": ("double.right", "change.'x + x' = 'x * 2'", ""),
    "twice": ("double.wrong", "change.'x + x' = 'x * 2'", "it is wrong, and earns all points with seed 0"),
    "three times, too": ("double.right", "change.'x + x' = '3 * x'", "This is three times the number."),
    "no name": ("double.right", "change.'x + x' = 'y'", "name 'y' is not defined"),
    "where small": ("double.near", "change.'x + x' = 'x + x if x[0] < 0.75 else x'", "earns all points with seed "),
    "other": ("double.wrong", "cell = 'def other(x): return x'\nreason = 'Other.'", "and not its reason"),
}


@pytest.mark.parametrize("name", ROWS)
def test_a_known_answer_is_tried_and_disturbs_no_other(sample_lab, call, name):
    kind, row, said = ROWS[name]
    path = sample_lab / "sample" / "answers.toml"
    path.write_text(f'[{kind}."{name}"]\n{row}\n{path.read_text()}')
    code, out, err = call("labs", "answers", "sample", "--folder", ".")
    if not said:
        assert (code, out) == (0, "3 known answers are judged as answers.toml says\n")
    else:
        assert code == 1 and "1 of 3 known answers" in err
        assert out.startswith(f"sample/double/{name}: ") and said in " ".join(out.split())


def test_a_mistake_of_a_check_is_named_with_its_line(sample_lab, call):
    change(sample_lab / "sample" / "checks.py", 'Case("three numbers"', 'Case({}["three"]')
    code, out, _ = call("labs", "answers", "sample", "--folder", ".")
    assert code == 1 and "its check raised KeyError: 'three' (line 15); mend checks.py" in out


def test_a_lab_of_ones_own_is_found_by_its_name(sample_lab, tmp_path, monkeypatch, call):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert call("labs", "solutions", "out", "sample")[:2] == (0, "out/sample.ipynb written\n")


# What is committed.


def test_every_notebook_is_what_its_source_makes():
    rendered = build.render(LABS)
    assert build.stale(rendered) == [] and set(registry.course_labs()) <= set(build.lab_names(LABS))
    assert {path for path in LABS.rglob("*.ipynb") if ".ipynb_checkpoints" not in str(path)} == set(rendered)
    for text in rendered.values():
        assert not any(cell.get("outputs") or cell.get("execution_count") for cell in json.loads(text)["cells"])


@pytest.mark.parametrize("name", registry.course_labs())
def test_no_solution_is_in_a_learners_edition(name):
    """Not as a line anywhere, and no long one within a line, but for a last hint, which may be nearly the answer."""
    source = jupytext.read(LABS / name / "notebook.py", fmt="py:percent")
    solved = [lines for cell in source.cells for lines in solutions(cell.source)]
    elsewhere = {line.strip() for cell in source.cells for line in learners(cell.source).split("\n")}
    telling = {line.strip() for lines in solved for line in lines} - elsewhere - {""}
    shown = cells(build.place(LABS, name).read_text())
    found = {line.strip() for cell in shown.values() for line in cell.source.split("\n")}
    text = json.dumps([cell for identity, cell in shown.items() if not identity.endswith("-hints")])
    assert telling and telling & found == set()
    assert [line for line in telling if len(line) > 30 and json.dumps(line)[1:-1] in text] == []
    hints = "\n".join(cell.source for identity, cell in shown.items() if identity.endswith("-hints"))
    assert [lines for lines in solved if len(lines) > 1 and "\n".join(lines).strip() in hints] == []
