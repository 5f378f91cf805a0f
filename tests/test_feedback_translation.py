"""Feedback in Chinese: a translation for every text that the course can put into a finding, and for nothing else."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

import grpo_lab.course
import grpo_lab.grading
from grpo_lab import messages
from grpo_lab.analysis.matrix.results import Fate
from grpo_lab.config.catalog import scenario
from grpo_lab.config.user_code import execute
from grpo_lab.course import evaluate, pages, registry, translation
from grpo_lab.course.exercises import Finding, Function
from grpo_lab.errors import NotYet, unknown
from grpo_lab.grading.results import FAULT, NOT_REACHED
from grpo_lab.grading.sandbox import tiers
from grpo_lab.paths import OWN, read_toml
from tests.grading import mutants

COURSE, GRADING = (Path(str(room.__file__)).parent for room in (grpo_lab.course, grpo_lab.grading))
OTHERS = [name for name in messages.languages() if name != messages.ENGLISH]
LABS, GUARDS = registry.course_labs(), mutants.checks("04_guards")
FOR_AUTHORS = {
    "exercises.py",
    "known_answers.py",
    "mysteries.py",
    "pages.py",
    "progress.py",
    "registry.py",
    "translation.py",
    "tried_answers.py",
}
"""Modules whose texts are errors for the authors of a lab, or files."""
NO_FEEDBACK = {
    "{} {}",  # a value and its type
    "{}: {}",  # two texts of the table, or a name and one of them
    "{}, {}",
    "{} ...",
    "{} = {}:",
    "a tensor of shape {}, beginning {},",  # shown with its type
    "and {} more",  # shown within brackets
    "a {}",  # a type that no answer can have
    "a check expects {}, which is not plain data",
    "time limit of an answer",
    "the view of the runs of a check",
    "probability tensor contains either",  # what torch says
    "the policy",
    "first break",  # the name of a seed
    "...  # your answer",
    "# %%{} {}\n{}\n",
    # keys of the data that is compared
    "left in .grad",
    "gradient of the last one",
    "weights moved by",
    "optimizer steps",
}
LOGS = re.compile(r"Error: |Traceback|\.cu:|/cuda/|failed\.\n|step 41|rewards: |\\|\[\[0, 1|probability tensor")
"""Inputs of an exercise about messages, patterns, and data."""
TRUST = {
    "{}. An answer runs in a process of its own with caps on time, memory, processes and output. It can open "
    "no socket and make, change or delete no file. It receives only inputs; scoring happens outside. {} Not contained "
    "in any tier: flaws of the kernel, timing side channels, and the source of this package, which students "
    "have anyway.",
    *(f"{tier.name[0].upper()}{tier.name[1:]}" for tier in tiers.TIERS.values()),
    tiers.BUBBLEWRAP.contained,
    tiers.PROCESS.contained.replace(tiers._USER, "{}"),
    "It runs as a user of its own.",
    "It runs as YOU: it can read your files, the grader's secret and other submissions among them, and end your "
    "processes.",
    NOT_REACHED,
    "code that runs within the limits",
}
"""Texts of grading that reports show beside the findings."""
ELSEWHERE = {
    *TRUST,
    "unknown {} {}; did you mean {}? Known: {}",
    "unknown {} {}. Known: {}",
    "a tensor of shape {}, beginning {}, {}",
    *("{}, and {} more" + bracket for bracket in "])}"),
    *map(str, Fate),
    "{}: importing it raised {}; mend the file",
    f"{FAULT}{{}}",
    "{}, row {} ({}): {}",  # a warning about a mark, with its place
    *(scenario(name).title for name in {*GUARDS.ALONE, *GUARDS.SURVIVE}),
}
"""Texts from lower rooms that a finding may hold, and texts that code puts together."""
SHOWN = {
    "notebooks.py": ("{} cells",),
    "sandbox/box.py": ("it ended", "unknown exit", "exit code", "neither a value"),
    "submissions.py": (
        "a symbolic link",
        "an empty",
        "not a notebook",
        "a zip without",
        "a folder that",
    ),
    "repeats.py": ("handed in late", "another student", "{} notebooks of this lab", "{} (could not", "{} (with"),
    "grader.py": ("the lab {}",),
    "worker.py": ("not finished", "the grade worker ended", "the grade worker had"),
    "reports/marking.py": ("exercise {}", "give a", "the notebook has", "{} then", "mark {}"),
}
"""Modules of grading, and the beginnings of their texts that reports show."""
SINGLE_WORDS = {"rows", "columns", "yes", "no", "none", "nothing"}
"""One word is an identifier as a rule; these are words of a finding."""
PROSE = re.compile(r"[a-z]{2,} (?=[a-z]{2,})")
CODE = re.compile(r"'[^']*'|`[^`]*`|\w*Error: .*")


def literals(path):
    """The texts of a module without docstrings; {} stands for what an f-string fills in."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    left_out = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            left_out |= {id(part) for part in node.values}
            left_out |= {id(part.format_spec) for part in node.values if isinstance(part, ast.FormattedValue)}
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in left_out:
            yield node.value


@cache
def of_the_code():
    """The texts that the code of the course can put into a finding."""
    paths = [path for path in COURSE.rglob("*.py") if path.name not in FOR_AUTHORS and "editions" not in path.parts]
    return feedback(text for path in paths for text in literals(path))


@cache
def of_checks(lab):
    """The texts that checks.py of a lab can put into a finding."""
    return feedback(literals(registry.lab_folder(lab) / pages.CHECKS))


def feedback(found):
    """The prose among the texts of a module."""
    found = set(found)
    prose = {text for text in found if " " in text.strip() and re.search("[A-Za-z]{2}", text)} | (found & SINGLE_WORDS)
    return {text for text in prose - NO_FEEDBACK if not LOGS.search(text)}


def english(lab):
    """The texts of a lab's findings by their place; where no function is judged, checks.py has the reasons."""
    folder, exercises = registry.lab_folder(lab), registry.lab_page(lab).exercises
    judged = {
        name: reasons
        for name, reasons in translation.reasons(folder).items()
        if isinstance(exercises[name].check, Function)
    }
    return translation.places({**read_toml(folder / pages.FILE), "reasons": judged})


def in_other_words(lab, language):
    """lab.toml of a lab in a language."""
    return read_toml(registry.lab_folder(lab) / language / pages.FILE)


@cache
def of_grading():
    """What reports show beside findings: problems of a file, notes about a cell, warnings, ends of an answer."""
    found = {
        (name, start): [each for each in literals(GRADING / name) if each.startswith(start)]
        for name, starts in SHOWN.items()
        for start in starts
    }
    assert all(found.values()), found
    whole = {each for name in ("notebooks.py", "archives.py") for each in literals(GRADING / name)}
    return {each for each in whole if re.search("[a-z] [a-z]", each)} | {
        text for texts in found.values() for text in texts
    }


@cache
def of_the_table(language):
    return translation.of_the_code(language)


@pytest.mark.parametrize("language", OTHERS)
def test_every_text_of_the_feedback_has_a_translation(language):
    assert of_the_code() - of_the_table(language).keys() == set()
    assert (ELSEWHERE | of_grading()) - of_the_table(language).keys() == set()


@pytest.mark.parametrize("language", OTHERS)
def test_every_translation_has_its_text(language):
    joints = {" and ", " or "}
    assert of_the_table(language).keys() - of_the_code() - ELSEWHERE - of_grading() - joints == set()


@pytest.mark.parametrize("language", OTHERS)
@pytest.mark.parametrize("lab", LABS)
def test_the_texts_of_a_lab_have_a_translation_at_the_same_place_and_nothing_else_has_one(lab, language):
    """Texts of test inputs, reasons for letters, and reasons for known wrong answers."""
    assert list(english(lab)) == list(translation.places(in_other_words(lab, language)))


@pytest.mark.parametrize("language", OTHERS)
@pytest.mark.parametrize("lab", LABS)
def test_every_text_of_checks_has_a_translation_in_one_place(lab, language):
    others = of_the_table(language).keys() | set(english(lab).values())
    said = in_other_words(lab, language).get("feedback", {}).keys()
    assert of_checks(lab) - others - said == set()
    assert said - of_checks(lab) == set()
    assert said & others == set()


@pytest.mark.parametrize("language", OTHERS)
def test_the_labs_say_a_text_in_the_same_words(language):
    every = translation.texts(language)
    for lab in LABS:
        tree, mine = in_other_words(lab, language), english(lab)
        assert translation.places(tree) == {place: every[text] for place, text in mine.items()}
        assert tree.get("feedback", {}).items() <= every.items()


NUMBERS = re.compile(r"(?<![\w.^])\d[\d,]*(?:\.\d+)?(?:e-?\d+)?")


@pytest.mark.parametrize("language", OTHERS)
def test_a_translation_has_the_placeholders_and_the_numbers_of_its_text(language):
    for text, words in translation.texts(language).items():
        assert words.strip() and not PROSE.search(CODE.sub("", words)), words
        places, theirs = ([each[1] for each in translation._PLACE.finditer(one)] for one in (text, words))
        assert len(places) == len(theirs), text
        named = [name for name in places if name]
        assert sorted(named) == sorted(name for name in theirs if name and not name.isdigit()), text
        found = (NUMBERS.findall(translation._PLACE.sub("", one)) for one in (text, words))
        mine, others = (sorted(number.rstrip(",") for number in numbers) for numbers in found)
        assert mine == others, (text, words)


@pytest.mark.slow
@pytest.mark.parametrize("language", OTHERS)
def test_the_feedback_on_a_near_miss_has_no_english_sentence(language, tmp_path):
    """Names, code and quoted values stay; a word beside another word would be English."""
    for answer in (each for each in mutants.near() if not mutants.trains(each)):
        task = registry.exercise(answer.lab, answer.exercise)
        for seed, transformed in ((0, False), (5, True)):
            cases = evaluate.asked(task, seed, transformed)
            module = execute(tmp_path / "answer.py", NotYet, source=answer.source)
            given = evaluate.run(task, module, [case.inputs for case in cases])
            for found in evaluate.folded(evaluate.judged(task, given, cases, seed)):
                shown = translation.in_language(found, language)
                assert not [text for text in shown[1:] if PROSE.search(CODE.sub("", text))], (found, shown)
                assert not any(re.search(r"[。：，][.,:]", text) for text in (shown.what, shown.why)), shown


TRIALS = [
    "no crash, finite weights, at least 50% of the steps kept",
    "crashed in torch.multinomial after 3 of 6 steps",
    "stopped, 6 of 6 steps kept",
    "ended by a guard after 2 of 6 steps",
    "2 of 6 steps kept, none with an update",
    "at least 3 of 6 steps kept",
    "grad_norm 812 and kl 3 in steps kept",
    "grad_norm below 10 or kl below 2 in every step kept",
    "held-out reward 0.31 to 0.33, 0.02 more; 12 updates",
    "held-out reward 0.3 to 0.3, 0 more; 12 updates; in another run 0.3 to 0.31, 0.01 more; 0.005 more in the mean",
    "a rise above 0.04, in one run or in the mean of two",
    "7 of 12 healthy steps were refused: a limit of a guard is too low.",
    "cosine above 0.999, norm 0.99 to 1.01 times",
    "cosine 0.5, norm 0.4 times",
    "bad-batch: One corrupt sample: norm and KL spike, the reward looks fine",
    "it was stopped after 10 s (line 3): does a loop never end? A right answer takes less than a second",
    "guards: 'skip_nan' is not a guard of grpo_lab; `grpo-lab guards` lists them",
    "f(a, b) cannot be called as f(<float>); keep the parameters that the cell came with",
    "no function named k3; defined are k1, k2",
    "a tensor of shape (8, 7), beginning [0, 0, 0], float32",
    "zero-times-infinity with guards.skip_nonfinite=on, 3 steps, its first step twice",
    'This is None; a tuple or a list is wanted. Write a tuple of texts, as in ("first", "second"), or ("only",)',
    str(unknown("setting", "loss.betta", ["loss.beta", "loss.delta"])),
]
"""Texts of checks that train, and of errors."""


@pytest.mark.parametrize("text", TRIALS)
def test_a_text_of_several_parts_is_chinese_with_the_same_numbers(text):
    said = translation.said(text, "zh")
    assert not PROSE.search(CODE.sub("", said)) and re.search(r"[\u4e00-\u9fff]", said), said
    assert sorted(re.findall(r"\d[\d.]*", said)) == sorted(re.findall(r"\d[\d.]*", text)), said


def test_what_the_learner_or_python_wrote_stays():
    for got in ("'a text'", "'a healthy run'", "NameError: name 'x' is not defined (line 2)", "[1, 2] float32"):
        finding = Finding(False, "a healthy run", got, got, "")
        assert translation.in_language(finding, "zh") == finding._replace(what="健康的运行")
    assert translation.said("my sentence of tomorrow", "zh") == "my sentence of tomorrow"


def test_english_stays_english():
    finding = Finding(False, "a healthy run", "1", "a number", "This is a text; a number is wanted.")
    assert translation.in_language(finding, "en") is finding


@pytest.fixture
def own_lab(monkeypatch, tmp_path):
    """The folder of a lab of one's own, in English alone."""
    folder = tmp_path / "labs" / "mine"
    (folder / "zh").mkdir(parents=True)
    (folder / "lab.toml").write_text(
        '[exercises.cause]\nwrong.a = "Not this."\n[exercises.double]\n[texts]\ntwo = ["two of it", "Twice two."]\n'
    )
    (folder / "answers.toml").write_text("[double.wrong.half]\ncell = ''\nreason = 'This is half.'\n")
    monkeypatch.setenv(OWN, str(tmp_path))
    return folder


OWN_WORDS = """[exercises.cause]
wrong.a = "不是这个。"
[texts]
two = ["其中两个", "二的两倍。"]
[reasons.double]
half = "这是一半。"
[feedback]
"{} of mine" = "我的 {}"
"""


def test_a_lab_of_ones_own_is_translated_as_soon_as_it_has_the_words(own_lab):
    texts = ("Not this.", "two of it", "Twice two.", "This is half.", "3 of mine")
    assert tuple(translation.said(text, "zh") for text in texts) == texts
    (own_lab / "zh" / "lab.toml").write_text(OWN_WORDS, encoding="utf-8")
    said = ("不是这个。", "其中两个", "二的两倍。", "这是一半。", "我的 3")
    assert tuple(translation.said(text, "zh") for text in texts) == said
    (own_lab / "zh" / "lab.toml").write_text(OWN_WORDS.replace("一半", "半数"), encoding="utf-8")
    assert translation.said("This is half.", "zh") == "这是半数。"


def test_a_lab_of_ones_own_changes_no_text_of_the_course(own_lab):
    (own_lab / "zh" / "lab.toml").write_text(OWN_WORDS + '"a healthy run" = "x"\n"a number" = "x"\n', encoding="utf-8")
    assert translation.said("a healthy run", "zh") == "健康的运行" and translation.said("a number", "zh") == "数"


def test_without_the_folder_its_words_are_gone(own_lab, monkeypatch):
    (own_lab / "zh" / "lab.toml").write_text(OWN_WORDS, encoding="utf-8")
    assert translation.said("This is half.", "zh") == "这是一半。"
    monkeypatch.delenv(OWN)
    assert translation.said("This is half.", "zh") == "This is half."
