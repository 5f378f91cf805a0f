"""Feedback in Chinese: what a learner is told of any known answer, at the same places as the English texts."""

import json
import re
from pathlib import Path

import pytest

from grpo_lab import messages
from grpo_lab.course import pages, registry, translation
from grpo_lab.course.exercises import Finding, Function
from grpo_lab.errors import DataError, unknown
from grpo_lab.grading.results import FAULT, NOT_REACHED
from grpo_lab.grading.sandbox import box
from grpo_lab.paths import OWN, read_toml

ANSWERS = Path(__file__).parents[1] / "benchmarks" / "answers"
OTHERS = [name for name in messages.languages() if name != messages.ENGLISH]
LABS = registry.course_labs()
PROSE = re.compile(r"[a-z]{2,} (?=[a-z]{2,})")
CODE = re.compile(r"'[^']*'|`[^`]*`|\w*Error: .*")
HAN = re.compile(r"[\u4e00-\u9fff]")


def english(lab):
    """The texts of a lab's findings by their place; where no function is judged, checks.py has the reasons."""
    functions = {name for name, each in registry.lab_page(lab).exercises.items() if isinstance(each.check, Function)}
    every = translation.english_texts(registry.lab_folder(lab))
    return {place: text for place, text in every.items() if place[0] != "reasons" or place[1] in functions}


def in_other_words(lab, language):
    """lab.toml of a lab in a language."""
    return read_toml(registry.lab_folder(lab) / language / pages.FILE)


@pytest.mark.parametrize("language", OTHERS)
@pytest.mark.parametrize("lab", LABS)
def test_the_texts_of_a_lab_have_a_translation_at_the_same_place_and_nothing_else_has_one(lab, language):
    """Texts of test inputs, reasons for letters, and reasons for known wrong answers, each once."""
    mine, said = english(lab), translation.places(in_other_words(lab, language))
    assert said.keys() <= mine.keys() and {mine[place] for place in said} == {*mine.values()}


@pytest.mark.parametrize("language", OTHERS)
def test_the_labs_say_a_text_in_the_same_words(language):
    every = translation.texts(language)
    for lab in LABS:
        tree, mine = in_other_words(lab, language), english(lab)
        assert all(words == every[mine[place]] for place, words in translation.places(tree).items())
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


def shown():
    """The texts that notebooks show of all known answers, as `python -m benchmarks.same_answers --write` wrote them."""
    for path in sorted(ANSWERS.glob("findings_*.json")):
        for name, exercise in json.loads(path.read_text(encoding="utf-8")).items():
            for answer in exercise["answers"].values() if name != "zh" else ():
                for place, text in answer.items():
                    if place.startswith("shown"):
                        # There, every number is written in one way, and not as the text has it.
                        text = re.sub(r"(\de-)0", r"\1", text).replace("learning_rate = 0.001", "learning_rate = 1e-3")
                        yield from text.split(" | ")


@pytest.mark.parametrize("language", OTHERS)
def test_the_feedback_on_every_known_answer_has_no_english_sentence(language):
    """Names, code, quoted values and errors in a config stay; a word beside another word would be English."""
    texts = {text for text in shown() if not re.match(r"[\w.]+ = .*: must be", text)}
    assert len(texts) > 1500
    told = {text: translation.said(text, language) for text in texts}
    assert {text: said for text, said in told.items() if PROSE.search(CODE.sub("", said))} == {}
    assert not [said for said in told.values() if HAN.search(said) and re.search(r"[。：，][.,:]", said)]


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
    box.BUBBLEWRAP.contained,
    NOT_REACHED,
    f"{FAULT}no memory",
    str(unknown("setting", "loss.betta", ["loss.beta", "loss.delta"])),
]
"""Texts of checks that train, of errors, and of reports."""


@pytest.mark.parametrize("text", TRIALS)
def test_a_text_of_several_parts_is_chinese_with_the_same_numbers(text):
    said = translation.said(text, "zh")
    assert not PROSE.search(CODE.sub("", said)) and HAN.search(said), said
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
    (folder / "notebook.py").write_text("# %%\n# %%exercise double\nx = 2\n")
    (folder / "lab.toml").write_text(
        '[exercises.cause]\nwrong.a = "Not this."\n[exercises.double]\n[texts]\ntwo = ["two of it", "Twice two."]\n'
    )
    (folder / "answers.toml").write_text("[double.wrong.half]\ncell = '2'\nreason = 'This is half.'\n")
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


@pytest.mark.parametrize(
    ("row", "fault"), [("[double.wrong.third]\ncell = ''\nreason = 3", "reason = 3"), ("[half]\na = 1", "a table")]
)
def test_answers_that_are_no_rows_are_named(own_lab, row, fault):
    """Before: the first was a reason, and the second an error of Python's."""
    (own_lab / "zh" / "lab.toml").write_text(OWN_WORDS, encoding="utf-8")
    with (own_lab / "answers.toml").open("a") as file:
        file.write(row)
    with pytest.raises(DataError, match=rf"answers\.toml: .*{fault}"):
        translation.said("This is half.", "zh")
