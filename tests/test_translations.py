"""Texts whose English stands with code or data, in another language: crashes, first breaks, guards, heals, reasons."""

import re
from html import escape, unescape

import pytest

from grpo_lab import messages
from grpo_lab.analysis import healing
from grpo_lab.analysis.healing import suggest
from grpo_lab.analysis.run_state import describe, fold
from grpo_lab.config.algorithms import algorithm, algorithm_names
from grpo_lab.config.catalog import model_settings, preset, scenario, scenario_names
from grpo_lab.core.hooks import Action, Stage, Verdict
from grpo_lab.errors import Sentence
from grpo_lab.events import Ended, Evaluated, LinkNote, Started, Stepped
from grpo_lab.metrics import LINKS, METRICS
from grpo_lab.paths import data_tables
from grpo_lab.runs.crashes import classify_crash
from grpo_lab.runs.recordings import find, recording_names
from grpo_lab.runs.session import BY_THE_USER, Session
from grpo_lab.runs.summary import summary
from grpo_lab.tasks.judge_pool import Calls
from grpo_lab.training.guards import GUARDS
from grpo_lab.training.interventions import exceeds
from grpo_lab.training.trainer import ended
from grpo_lab.ui import html
from grpo_lab.ui.described import docstring
from grpo_lab.ui.plots.style import STATUSES
from grpo_lab.ui.widgets.controls import SLIDERS, SliderRow, Switches
from grpo_lab.ui.widgets.parts import Muted

CHINESE = re.compile(r"[\u4e00-\u9fff]")
OTHERS = [name for name in messages.languages() if name != "en"]
CRASHES, BREAKS = data_tables("crashes"), data_tables("first_breaks")
TOO_LARGE = Action("skip_spikes", "guard", Stage.GRADIENTS, 0, Verdict.SKIP_STEP, exceeds("grad norm", 812.4, 10))
START, DONE = Started(preset("smoke").to_dict(), 1, "cpu"), Ended("done")
OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory."


def broken(link: str) -> LinkNote:
    return LinkNote(link, 0, float("nan"), nonfinite=1, numel=4)


def stepped(*links: LinkNote, actions: tuple[Action, ...] = ()) -> Stepped:
    return Stepped(3, 1, max((a.verdict for a in actions), default=Verdict.KEEP), {}, links, actions)


def numbers(text: str) -> list[str]:
    return sorted(re.findall(r"\d[\d.e-]*\d|\d", text))


@pytest.fixture
def chinese(monkeypatch):
    monkeypatch.setenv(messages.VARIABLE, "zh")


def english_texts():
    """The English texts of code and data that a user sees, by where they are."""
    found = {f"crash.{kind}": known[2] for kind, known in CRASHES.items()}
    found["crash.unknown"] = classify_crash("unheard of").explanation
    found |= {f"break.{key}.{place}": said for key, texts in BREAKS.items() for place, said in enumerate(texts)}
    for name, guard in GUARDS.items():
        does, sections = docstring(guard)
        found |= {f"guard.{name}.does": does, **{f"guard.{name}.{part}": said for part, said in sections.items()}}
    found |= {f"algorithm.{name}": f"{algorithm(name).title}. {algorithm(name).differs}" for name in algorithm_names()}
    found |= {f"heal.{name}": scenario(name).heals[0].why for name in scenario_names() if scenario(name).heals}
    found |= {f"recorded.{name}": " ".join(each["recorded"].split()) for name, each in model_settings().items()}
    found |= {f"setting.{name}": slider.setting.help for name, slider in SLIDERS.items()}
    found |= {f"label.{each}": each for each in (*STATUSES, *(link.label for link in LINKS.values()))}
    found |= {f"operator.{name}": link.operator for name, link in LINKS.items()}
    return found | {f"metric.{name}": metric.meaning for name, metric in METRICS.items()}


@pytest.mark.parametrize("other", OTHERS)
def test_every_english_text_of_code_and_data_has_a_translation(other):
    words = messages.catalogue(other)
    assert [place for place, english in english_texts().items() if not words.get(english, "").strip()] == []


def test_a_text_without_a_translation_is_shown_in_english(chinese):
    assert messages.spoken("a new kernel") == "a new kernel"
    assert messages.spoken("my guard objects: 3") == "my guard objects: 3"


@pytest.mark.parametrize("operator", sorted({row[1] for row in CRASHES.values()} - {"torch.multinomial"}))
def test_the_operator_of_a_crash_is_chinese_where_it_is_no_name_in_code(chinese, operator):
    assert set(re.findall("[A-Za-z]{2,}", html.status_words(f"crashed in {operator}"))) <= {"CUDA"}


def test_the_banner_of_a_crash_explains_it_in_chinese(chinese):
    banner = html.banner(fold([Started({}, 1, "cpu"), Ended("crashed", "", classify_crash(OUT_OF_MEMORY))]))
    assert "在 内存分配 中崩溃" in banner
    assert OUT_OF_MEMORY in banner, "the error itself stays as it was raised"
    assert "takes less memory" not in banner and "an allocation" not in banner
    assert messages.spoken(CRASHES["out-of-memory"][2]) in banner


def test_the_first_break_names_its_operator_and_why_in_chinese(chinese):
    status = html.status(fold([stepped(broken("rewards"))]))
    assert "奖励函数" in status and "a reward function" not in status
    assert "它返回了 NaN 或 inf。" in status


def test_the_first_break_gives_its_why_in_english_too():
    assert "It returned NaN or inf." in html.status(fold([stepped(broken("rewards"))]))


def test_a_reason_keeps_its_numbers_in_chinese(chinese):
    screen = fold([stepped(actions=(TOO_LARGE,)), Evaluated(4, 0.5, 10)])
    assert "skip_spikes: 梯度范数 812.4 &gt; 10" in html.status(screen)
    assert "梯度范数 812.4 &gt; 10" in html.guards(screen)


SPIKING = Sentence("{} {}, usual up to {:g}", "KL to reference", "2.5", 1)
FAILED_CALLS = Calls([[None] * 3], ((0, Sentence("timed out after {:g} s", 2.5)), (1, "answered 503")), 3, 2.5)
SHARE = Sentence("{}; {}", exceeds("share", FAILED_CALLS.failed, 0.5), FAILED_CALLS.in_words())


@pytest.mark.parametrize(
    ("sentence", "chinese_text"),
    [
        (BY_THE_USER, "由用户停止"),
        (SPIKING, "相对参考模型的 KL 散度 2.5，通常不超过 1"),
        (SHARE, "比例 0.6667 > 0.5；3 次调用中有 2 次失败：1 次 超时（2.5 秒）, 1 次 answered 503"),
        (ended([Sentence("none of {} completions was scored", 64)], 0).message, None),
    ],
    ids=lambda value: None if value is None else str(value)[:20],
)
def test_what_the_trainer_and_the_panel_say_is_chinese(chinese, sentence, chinese_text):
    said = messages.spoken(sentence)
    assert CHINESE.search(said) and said == (chinese_text or said)
    assert numbers(said) == numbers(sentence)


@pytest.mark.parametrize("other", OTHERS)
def test_a_sentence_has_the_same_values_in_every_language(other):
    """A translation numbers its placeholders, or has as many as the English."""
    words = messages.catalogue(other)
    for template in filter(re.compile(r"\{(:[^{}]*)?\}").search, words):
        count = template.count("{")
        values = [7000 + place for place in range(count)]
        assert sorted(map(int, re.findall(r"7\d{3}", words[template].format(*values)))) == values, template


RUNS = {
    "waiting": [],
    "crashed": [START, stepped(broken("rewards")), Ended("crashed", "", classify_crash(OUT_OF_MEMORY))],
    "crashed unseen": [START, Ended("crashed", "it", classify_crash("probability tensor contains either `inf`"))],
    "guarded": [
        START,
        Stepped(0, 1, Verdict.KEEP, {"grad_norm": 2.5, "kl": 0.0, "reward": 0.25, "ratio/max": 1.0}, (), ()),
        Stepped(1, 1, Verdict.SKIP_STEP, {"grad_norm": 812.4, "kl": 1e-7}, (broken("ratio"),), (TOO_LARGE,)),
        Stepped(2, 1, Verdict.ROLL_BACK, {"grad_norm": float("nan"), "ratio/max": 9.0}, (), (TOO_LARGE,)),
        Ended("stopped", "by the user"),
    ],
    "done": [Started({}, 1, "cpu"), *(Stepped(n, 1, Verdict.KEEP, {"reward": 0.1}, (), ()) for n in range(2)), DONE],
}


@pytest.mark.parametrize("name", RUNS)
def test_the_alternative_text_of_a_figure_is_chinese(name, monkeypatch):
    screen = fold(RUNS[name])
    english = describe(screen)
    monkeypatch.setenv(messages.VARIABLE, "zh")
    said = describe(screen)
    assert CHINESE.search(said) and not CHINESE.search(english)
    assert set(re.findall(r"[A-Za-z_.]{2,}", said)) <= {
        "KL",
        "NaN",
        "CUDA",
        "skip_spikes",
        "torch.multinomial",
        "smoke",
    }
    assert numbers(said) == numbers(english)
    assert f'alt="{escape(said)}"' in html.figure((b"", b""), said)
    assert not re.search("[;,()]", said)


@pytest.mark.parametrize("name", recording_names())
def test_what_cells_print_about_a_run_is_chinese(name, monkeypatch):
    """Its summary, first break, crash and heal, with the numbers of the English texts and no English sentence."""
    session = Session.open(find(name))
    healed = suggest(session.config, session.events)

    def said():
        about = [summary(session.events), str(session.first_break() or ""), str(session.crash or "")]
        return [*about, healing.in_words(healed, 10_000) if healed else ""]

    english = said()
    monkeypatch.setenv(messages.VARIABLE, "zh")
    raised = {session.ended.message, session.crash.text if session.crash else ""} if session.ended else set()
    for here, there in zip(said(), english, strict=True):
        assert numbers(here) == numbers(there)
        for text in raised - {""}:
            here = here.replace(text, "")
        assert not re.search(r"[a-z]{2,} [a-z]{2,} [a-z]{2,}", here), here


def test_a_status_of_two_words_has_a_chinese_comma(chinese):
    assert html.status_words("done, reward lost") == "完成，奖励下跌"


@pytest.mark.parametrize("name", SLIDERS)
def test_a_slider_explains_itself_in_chinese(chinese, name):
    assert all(CHINESE.search(each.tooltip) for each in SliderRow(name, Muted(), lambda name, override: None).inputs)


@pytest.mark.parametrize("language", messages.languages())
def test_a_switch_is_a_sentence_with_the_name_of_the_guard_and_a_why(monkeypatch, language):
    monkeypatch.setenv(messages.VARIABLE, language)
    shown = Switches(None, Muted(), lambda name, on: None)
    for name, guard in zip(GUARDS, shown.widget.children, strict=True):
        row, about = guard.children
        start, _, sentence = row.children[-1].value.removesuffix("</span>").partition(">")
        why = re.fullmatch(r'<span title="[^ ]+: (.+)"', start)
        assert shown.boxes[name].description == name
        assert 10 <= len(re.sub(r"<[^>]*>", "", sentence)) <= 125, sentence
        assert why and bool(CHINESE.search(sentence)) == bool(CHINESE.search(why[1])) == (language == "zh")
        shown.explain(name)
        assert html.marked(unescape(why[1])) in about.value
        assert sentence not in about.value, "it stands above already"
