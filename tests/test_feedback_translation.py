"""Feedback in Chinese: what a learner is told of any known answer, at the same places as the English texts."""

import ast
import re
from pathlib import Path

import pytest
import torch

from grpo_lab import messages
from grpo_lab.config.schema import Config
from grpo_lab.course import answers, evaluate, pages, registry, translation, trials
from grpo_lab.course.compare import Span, differs, other_kind, shown
from grpo_lab.course.exercises import Finding, Function
from grpo_lab.errors import ConfigError, DataError, NotYet, Sentence, unknown
from grpo_lab.grading.results import FAULT, NOT_REACHED
from grpo_lab.grading.sandbox import box
from grpo_lab.paths import OWN, read_toml
from grpo_lab.ui.notebook import feedback_view
from tests.grading import mutants

OTHERS = [name for name in messages.languages() if name != messages.ENGLISH]
LABS = registry.course_labs()
PROSE = re.compile(r"[a-z]{2,} (?=[a-z]{2,})")
CODE = re.compile(r"'[^']*'|`[^`]*`|\w*(Error|Warning): .*|\w+ (float|int)\d+")
PLACE = re.compile(r"\{[\d:][^{}]*\}|\{\}")
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


PACKAGE = Path(messages.__file__).parent
CHECKS = [registry.lab_folder(lab) / pages.CHECKS for lab in LABS]
NUMBERS = re.compile(r"(?<![\w.^])\d[\d,]*(?:\.\d+)?(?:e-?\d+)?")


@pytest.mark.parametrize("language", OTHERS)
def test_a_translation_has_the_placeholders_and_the_numbers_of_its_text(language):
    for text, words in translation.texts(language).items():
        assert words.strip() and not PROSE.search(CODE.sub("", words)), words
        assert len(PLACE.findall(text)) == len(PLACE.findall(words)), text
        found = (NUMBERS.findall(PLACE.sub("", one)) for one in (text, words))
        mine, others = (sorted(number.rstrip(",") for number in numbers) for numbers in found)
        assert mine == others, (text, words)


def assert_chinese(text, english=""):
    """Names, code, quoted values, Python's messages and errors in a config stay; a word beside a word is English."""
    assert not PROSE.search(re.sub(r"[\w.]+ = .*: must be.*", "", CODE.sub("", text))), (english, text)
    assert not (HAN.search(text) and re.search(r"[。：，][.,:]", text)), (english, text)


def assert_all_chinese(answers, folder, language):
    for each in answers:
        file = folder / f"{each.exercise}.py"
        file.write_text(each.source, encoding="utf-8")
        for finding in evaluate.folded(evaluate.check(registry.lab_page(each.lab).exercises[each.exercise], file)):
            for english, text in zip(finding[1:], translation.in_language(finding, language)[1:], strict=True):
                assert_chinese(text, english)


EVERY = [*mutants.references(), *mutants.wrong(), *mutants.near(), *mutants.right()]


@pytest.mark.parametrize("language", OTHERS)
@pytest.mark.parametrize("lab", LABS)
def test_the_feedback_on_every_known_answer_has_no_english_sentence(lab, language, tmp_path):
    assert_all_chinese([each for each in EVERY if each.lab == lab and not mutants.trains(each)], tmp_path, language)


@pytest.mark.slow
@pytest.mark.parametrize("language", OTHERS)
@pytest.mark.parametrize("place", sorted(mutants.TRAINED))
def test_the_feedback_of_a_check_that_trains_has_no_english_sentence(place, language, tmp_path):
    assert_all_chinese([each for each in EVERY if f"{each.lab}/{each.exercise}" == place], tmp_path, language)


RAISED = ("ConfigError", "DataError", "NotYet", "Unanswered", "NotPlain", "Refused", "_Undecided", "Failed", "error")


@pytest.mark.parametrize("language", OTHERS)
@pytest.mark.parametrize(
    "path", [PACKAGE / "errors.py", *PACKAGE.glob("course/*.py"), *PACKAGE.glob("grading/**/*.py"), *CHECKS], ids=str
)
def test_a_sentence_of_the_code_has_a_translation(path, language):
    words = translation.texts(language)
    calls = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
    for call in calls:
        name = getattr(call.func, "id", "")
        if name in ("Sentence", "OfForm") or (name in RAISED and len(call.args) > 1):
            template = call.args[0].value if isinstance(call.args[0], ast.Constant) else ""
            assert template in words or not re.search("[a-z]", str(template))


def raised(error, function, *given):
    """The text of the error that a call raises."""
    with pytest.raises(error) as caught:
        function(*given)
    return str(caught.value)


def two(a, b):
    """A function of two parameters."""


LOSS = ("loss",)
CALLED = Function("double", lambda seed: ())
TEXTS = [
    other_kind(None, "a tuple", "a list", "a text"),
    shown(torch.zeros(8, 7)),
    shown([*range(20)]),
    shown({"a": (*range(20),)}),
    shown(Span(1, 2)),
    *(differs(got, [1.0]) for got in (None, "a", [2.0], [1.0, 2.0], (torch.ones(2),))),
    *(differs(got, torch.ones(2)) for got in (torch.zeros(2), torch.ones(3), torch.ones(2).int())),
    raised(ConfigError, trials.guards_of, ("skip_nan",)),
    raised(ConfigError, trials.guards_of, {"warm_up": 3}),
    raised(ConfigError, trials.guards_of, None),
    raised(ConfigError, trials.overrides_of, ("mine.py:x",), LOSS),
    raised(ConfigError, trials.overrides_of, ("run.seed=1",), LOSS),
    raised(ConfigError, trials.affordable, Config().with_("loss.num_iterations=9")),
    raised(NotYet, answers.calls, CALLED, answers.load({}), []),
    raised(NotYet, answers.calls, CALLED, answers.load({"double": two}), [{"a": 1}]),
    str(unknown("setting", "loss.betta", ["loss.beta", "loss.delta"])),
    str(unknown("setting", "x", ["loss.beta"])),
    box.PROCESS.trust,
    box.BUBBLEWRAP.trust,
    Sentence(NOT_REACHED),
    Sentence(FAULT, "no_memory"),
]
"""Texts of comparisons, of errors, and of reports."""


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_of_several_parts_is_chinese_with_the_same_numbers(text):
    said = translation.said(text, "zh")
    assert HAN.search(said), said
    assert_chinese(said, text)
    assert sorted(re.findall(r"\d[\d.]*", said)) == sorted(re.findall(r"\d[\d.]*", text)), said


def test_what_the_learner_or_python_wrote_stays():
    for got in ("'a text'", "a number", "nothing is returned", "NameError: name 'x' is not defined (line 2)"):
        finding = Finding(False, "a healthy run", got, "[1, 2] float32", "")
        assert translation.in_language(finding, "zh") == finding._replace(what="健康的运行")
    assert translation.said("my sentence of tomorrow", "zh") == "my sentence of tomorrow"
    assert "rows" in translation.said(raised(NotYet, answers.calls, CALLED, answers.load({"rows": two}), []), "zh")


def test_an_answer_that_raises_a_text_of_ours_has_it_in_its_own_words(monkeypatch):
    monkeypatch.setenv(messages.VARIABLE, "zh")
    for own, shown_as in (
        ("a number", "a number"),
        (Sentence("nothing named {}", "a number"), "没有名为 a number 的值"),
    ):
        with pytest.raises(NotYet) as error, feedback_view.checking():
            raise NotYet(own)
        assert str(error.value) == shown_as


def test_english_stays_english():
    finding = Finding(False, "a healthy run", "1", "a number", Sentence("at least {}", 1))
    assert translation.in_language(finding, "en") == finding


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
"{:.2f} of {}" = "{1} 的 {0}"
"""


def test_a_lab_of_ones_own_is_translated_as_soon_as_it_has_the_words(own_lab):
    parts = Sentence("{:.2f} of {}", 0.5, Sentence("two of it"))
    texts = ("Not this.", "two of it", "Twice two.", "This is half.", Sentence("{} of mine", 3), parts)
    assert tuple(translation.said(text, "zh") for text in texts) == texts
    (own_lab / "zh" / "lab.toml").write_text(OWN_WORDS, encoding="utf-8")
    said = ("不是这个。", "其中两个", "二的两倍。", "这是一半。", "我的 3", "其中两个 的 0.50")
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
