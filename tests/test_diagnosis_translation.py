"""The diagnosis in other languages: a translation for every text that it can say, and the same verdicts and numbers."""

import json
import re
from pathlib import Path

import pytest

import grpo_lab.analysis
from grpo_lab import diagnose, messages
from grpo_lab.analysis.diagnosis.report import WIDTH, Diagnosis, columns, width, wrapped
from grpo_lab.analysis.diagnosis.rules import (
    CAUSES,
    FIELDS,
    SUSPECTS,
    SYMPTOMS,
    DetectedCause,
    Evidence,
    Unknown,
    tables,
)
from grpo_lab.analysis.logs import from_dicts
from grpo_lab.analysis.logs.table import fact
from grpo_lab.runs.recordings import find

ANALYSIS = Path(str(grpo_lab.analysis.__file__)).parent
OTHERS = [name for name in messages.languages() if name != messages.ENGLISH]
LANGUAGE = pytest.mark.parametrize("language", OTHERS)
ENGLISH = re.compile(r"[a-z]{2,} (?=[a-z]{2,})")
NUMBERS = re.compile(r"\d+(?:\.\d+)?(?:e-?\d+)?")
CODE = re.compile(r"all\(.* for p in .*\(\)\)|`[^`]*`|grpo-lab .*|\b[\w.]+=[^\s；）]+|\w+\([^)]*\)")


def texts():
    """The English texts of data/diagnosis by the key of their translation."""
    found = {f"symptom.{name}": symptom.says for name, symptom in SYMPTOMS.items()}
    found |= {f"suspect.{name}": suspect.says for name, suspect in SUSPECTS.items()}
    for cause in CAUSES:
        found |= {f"cause.{cause.name}.{field}": getattr(cause, field) for field in ("title", "what", "tell_apart")}
        own = [each.says for each in (*cause.own_suspects, *cause.suspects) if not each.name]
        found |= {f"own_suspect.{says}": says for says in own}
        found |= {f"remedy.{remedy.do}": remedy.do for remedy in cause.remedies}
        own = [getattr(remedy, trainer) for remedy in cause.remedies for trainer in FIELDS]
        found |= {f"setting.{setting}": setting for setting in own if re.search("[a-z]{2,} [a-z]", setting)}
    return found


@LANGUAGE
def test_every_text_has_a_translation_and_no_other_is_there(language):
    assert messages.catalogue(language, "diagnosis").keys() == texts().keys()


@LANGUAGE
def test_numbers_stay(language):
    said = messages.catalogue(language, "diagnosis")
    for key, english in texts().items():
        assert sorted(NUMBERS.findall(said[key])) == sorted(NUMBERS.findall(english)), key


def every_finding():
    """A diagnosis that finds every cause, each with all its suspects, remedies and symptoms as evidence."""
    log = from_dicts([{"reward": 0.1, "grad_norm": 1.0, "loss": 0.1, "step": 1}])
    for cause in CAUSES:
        symptoms = [condition.symptom for condition in (*cause.all, *cause.any)] + list(cause.also)
        evidence = [Evidence(name, "kl/F", 1, 2.0, 3.0, SYMPTOMS[name].says) for name in symptoms]
        suspects = (*cause.own_suspects, *cause.suspects)
        shown = DetectedCause(cause, 1, evidence, suspects=suspects, remedies=cause.remedies)
        possible = DetectedCause(cause, 1, lacks=(Unknown("kl", fact("not_logged")),))
        yield Diagnosis(log, (shown, shown), (possible,), ((Unknown("kl", fact("not_logged")), (cause,)),))


@LANGUAGE
def test_no_english_sentence_is_said(language, monkeypatch):
    monkeypatch.setenv(messages.VARIABLE, language)
    for found in every_finding():
        lines = [line for each in (found.text("a log"), found._repr_html_()) for line in each.splitlines()]
        assert [match[0] for line in lines if (match := ENGLISH.search(CODE.sub("", line).replace("a log", "")))] == []
        assert max(width(line) for line in found.text().splitlines() if "://" not in line) <= WIDTH + 40


@LANGUAGE
def test_verdicts_and_json_are_english_in_every_language(language, monkeypatch):
    folder = find("lecture-train-001")
    english = diagnose(folder)
    before = english.tree(), english.text()
    monkeypatch.setenv(messages.VARIABLE, language)
    found = diagnose(folder)
    assert (found.tree(), found.verdict) == (before[0], english.verdict)
    assert found.text() != before[1] and "explosion" in found.text()
    compared = found.compare(diagnose(find("lecture-train-001-healed")), ("one", "two")).text()
    assert not [line for line in compared.splitlines() if ENGLISH.search(line)]


def test_facts_about_a_log_are_messages():
    """Each key that a reader or a rule gives is there, and no other."""
    sources = [
        path.read_text(encoding="utf-8") for room in ("logs", "diagnosis") for path in (ANALYSIS / room).glob("*.py")
    ]
    given = {key for source in sources for key in re.findall(r"\bfact\(\s*\"(\w+)\"", source)}
    given |= tables("story")["lacking"].keys()
    there = {key.removeprefix("log.") for key in messages.catalogue(messages.ENGLISH) if key.startswith("log.")}
    logs = json.loads((Path(__file__).parent / "logs" / "expected.json").read_text(encoding="utf-8"))
    formats = {f"format.{run['format']}" for runs in logs.values() for run in runs} | {"format.table"}
    assert there == given | formats


def test_lines_break_between_chinese_characters_and_never_before_their_punctuation():
    said = "损失是 NaN，KL 也是。" * 12
    lines = wrapped(said, 2, "1. ")
    assert len(lines) > 2 and max(map(width, lines)) <= WIDTH
    assert all(line.startswith("     ") for line in lines[1:]) and lines[0].startswith("  1. 损失")
    assert not [line for line in lines if line.strip()[0] in "，。"]
    assert "".join("".join(lines).split()) == "1." + "".join(said.split())


def test_columns_line_up_whatever_the_width_of_a_character():
    one, two = columns([["步", "指标", "值"], ["12", "kl", "1"]])
    assert width(one[: one.index("值")]) == width(two[: two.rindex("1")])
