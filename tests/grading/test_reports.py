"""Reports: no text of a student becomes markup, a formula or a path, and no entered mark is lost."""

import base64
import csv
import hashlib
import io
import json
import re
import resource
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_lab.course.compare import other_kind
from grpo_lab.course.exercises import Finding
from grpo_lab.errors import ConfigError, DataError, RunError, Sentence
from grpo_lab.grading import reports
from grpo_lab.grading.reports import gradescope, marking, pages, tables, words
from grpo_lab.grading.reports.words import visible
from grpo_lab.grading.results import BY_HAND, FAILED, MARKED, RIGHT, UNANSWERED, WRONG, Mark, Result, counted
from grpo_lab.grading.sandbox import box
from grpo_lab.grading.submissions import NOT_READ

FINE = Finding(True, "two deltas", "[1, 2]", "[1, 2]", "")
OFF = Finding(False, "near 0", "0", "5e-09", "No digits are left.")
RAISED = Finding(False, "a row", "line 3: ZeroDivisionError", "2", "Rows are independent.")
MARKS = (
    Mark("k3", "k3, also near 0", "code", 2.0, 2, RIGHT, [FINE, FINE]),
    Mark("straight", "A straight line", "code", 1.0, 3, WRONG, [FINE, OFF, RAISED]),
    Mark("pulls", "Match them", "choice", 0.0, 2, UNANSWERED, note="no answer"),
    Mark("beta", "A beta", "code", 0.0, 2, FAILED, note="the sandbox did not start"),
    Mark("why", "Say why", "text", 0.0, 4, BY_HAND, text="The clamp cuts the gradient."),
)
TRUST = "A container without network."
ANN = Result("ann", "05_kl", "ann/05_kl.ipynb", "a1" * 32, 2, TRUST, 3, MARKS, seconds=1.5)
BEN = replace(ANN, student="ben", file="ben/05_kl.ipynb", digest="b2" * 32, attempt=1)
ZOE = Result("zoe", "05_kl", "zoe/05_kl.ipynb", "c3" * 32, 0, "Limits only.", problem="the file has 512 MB; at most 10")
HOSTILE = '<script>alert(1)</script>"><img src=x onerror=alert(1)>\u202egnp.\x00 javascript:alert(1) =1+1 ' + "W" * 300
ANYTHING = st.text(st.characters(), max_size=30) | st.sampled_from(
    [HOSTILE, "=1", "\t=1", "a;@b", "{{ 1 }}", "&lt;b&gt;"]
)
ENGLISH = re.compile(r"[a-z]{2,} (?=[a-z]{2,})")


def with_text(result, text):
    """The result with this text in every field that can hold one."""
    found = [Finding(right, text, text, text, text) for right in (True, False)]
    marks = [replace(mark, title=text, findings=found, note=text, text=text) for mark in result.marks]
    return replace(result, student=text, lab=text, file=text, digest=text, trust=text, marks=marks, problem=text)


def rows(content):
    text = content.decode("utf-8-sig") if isinstance(content, bytes) else content
    return list(csv.DictReader(io.StringIO(text, newline="")))


class Page(HTMLParser):
    """Elements with their attributes, and the words between them."""

    def __init__(self, page):
        super().__init__()
        self.elements, self.text = [], ""
        self.feed(page)
        self.close()
        self.words = " ".join(self.text.split())

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, [(name, value) for name, value in attrs if name != "aria-label"]))
        self.text += " "

    def handle_data(self, data):
        self.text += data

    def handle_comment(self, data):
        raise AssertionError(f"a comment: {data}")


# --- languages ---------------------------------------------------------------------------------------------------


def in_chinese(result):
    """The lines of a result's page, of the class's and of Gradescope's file, in Chinese."""
    html = pages.of_notebook(result, "zh"), pages.of_class([result, ZOE], ["a", "b"], "zh")
    shown = [Page(each.partition("</style>")[2]).text for each in html]
    told = gradescope.document(result, "zh")
    return "\n".join([*shown, told["output"], *(test["output"] for test in told["tests"])]).splitlines()


def test_reports_are_chinese_but_for_names_and_what_others_wrote():
    what = Sentence("{}, {}", Sentence("a healthy run"), Sentence("{} times {:g}", "norms", 2))
    wrong = Finding(False, what, "1", "a number", other_kind("1", "a number"))
    lost = Sentence("its cell has lost its id; found by its first line, `{}`", "%%exercise k3")
    marks = [replace(mark, note="", text="") for mark in MARKS]
    marks[:2] = (replace(mark, findings=[FINE._replace(what="one NaN"), wrong], note=lost) for mark in marks[:2])
    late = {"late": True, "warnings": ["handed in late, by the name of its file"]}
    result = replace(ANN, marks=marks, trust=box.PROCESS.trust, student="", **late)
    lines = in_chinese(Result.from_json(result.to_json()))
    others = (ZOE.problem, ZOE.trust, "A straight line", "Match them", "A beta", "Say why")
    assert [line for line in lines if ENGLISH.search(re.sub("|".join(map(re.escape, others)), "", line))] == []
    said = (
        "健康的运行，norms 乘以 2",
        "这是文本；需要的是数。",
        "待人工评分",
        "答对：一个 NaN",
        "未署名",
        "迟交（依据文件名）",
    )
    for each in (*said, "有限制的进程", "k3，在 0 附近也正确", "单元格丢失了 id"):
        assert each in "\n".join(lines), each
    assert '<html lang="zh">' in pages.of_notebook(result, "zh") and '<html lang="en">' in pages.of_notebook(result)
    password = Sentence("its zip has a password; {}", Sentence("hand in the notebook itself"))
    refused = Result.from_json(replace(ZOE, problem=password).to_json())
    assert refused.problem == "its zip has a password; hand in the notebook itself"
    assert "zip 设有密码" in gradescope.of_submission([ANN, refused], "zh")["output"]
    assert "另有 1,000 个字符" in "\n".join(in_chinese(replace(ANN, student="长" * 3000)))


@pytest.mark.parametrize("tier", (box.PROCESS, box.BUBBLEWRAP), ids=lambda tier: tier.name)
def test_the_limits_of_a_tier_are_chinese(tier):
    for trust in (tier.trust, replace(tier, contained=box.BUBBLEWRAP.contained).trust):
        assert not ENGLISH.search(words.Words("zh").said(trust)), trust


def test_tables_are_english_in_every_language(tmp_path):
    for language in ("en", "zh"):
        reports.write([ANN, BEN], tmp_path / language, tmp_path / language / "results.json", language=language)
    english, chinese = (
        {path.relative_to(tmp_path / each): path.read_bytes() for path in (tmp_path / each).rglob("*.*")}
        for each in ("en", "zh")
    )
    same = {path for path, content in english.items() if content == chinese[path]}
    assert english.keys() == chinese.keys() and {path.suffix for path in same} == {".csv"}
    assert {path.suffix for path in english.keys() - same} == {".html", ".json"}


def test_an_unknown_language_is_named():
    assert words.Words("zh_CN").language == "zh" and words.Words("").language == "en"
    with pytest.raises(ConfigError, match=r"GRPO_LAB_LANG 'fr'. Known: en, zh"):
        words.Words("fr")


# --- Gradescope --------------------------------------------------------------------------------------------------


def test_gradescope_has_a_score_an_exercise_and_no_points_lost_by_what_waits():
    told = gradescope.document(ANN)
    assert told["score"] == 3.0 and told["execution_time"] == 1.5
    assert [test.get("score") for test in told["tests"]] == [2, 1, 0, 0, None]
    assert [test.get("max_score") for test in told["tests"]] == [2, 3, 2, 2, None]
    assert [test.get("status") for test in told["tests"]] == ["passed", "failed", "failed", "failed", None]
    assert TRUST in told["output"] and "attempt 3" in told["output"] and "up to 4 points" in told["output"]
    for word in ("near 0", "got       0", "expected  5e-09", "why       No digits are left."):
        assert word in told["tests"][1]["output"]
    formats = [told[f"{name}_format"] for name in ("output", "test_output", "test_name")]
    formats += [test[f"{name}_format"] for test in told["tests"] for name in ("output", "name")]
    assert set(formats) == {"text"}


def test_gradescope_has_one_document_for_a_submission_of_several_files(tmp_path):
    pdf = replace(ZOE, lab="", file="ann/report.pdf", problem="not a notebook")
    told = gradescope.of_submission([pdf, ANN])
    assert told["score"] == 3.0 and len(told["tests"]) == len(MARKS) and "report.pdf: not a notebook" in told["output"]
    assert gradescope.of_submission([pdf])["tests"] == [] and gradescope.of_submission([pdf])["score"] == 0
    assert [test["number"] for test in gradescope.of_submission([ANN, BEN])["tests"]] == [*map(str, range(1, 11))]
    reports.write([pdf, ANN], tmp_path / "out", tmp_path / "results.json")
    assert json.loads((tmp_path / "results.json").read_text()) == told


# --- tables ------------------------------------------------------------------------------------------------------


def test_grades_have_a_column_an_exercise_and_count_no_text_that_waits():
    here = {"labs": ["05_kl", "06_silent"]}
    other = replace(BEN, lab="06_silent", marks=MARKS[:1])
    left_out = replace(ZOE, student="pdf", lab="04_guards", settings=here)
    ann, ben, zoe = rows(tables.by_exercise([ANN, other, ZOE, left_out]))
    assert [ann[f"05_kl/{mark.exercise}"] for mark in MARKS] == ["2.0", "1.0", "0.0", "not graded", "by hand"]
    assert (ann["score"], ann["max_score"], ann["to_mark"], ann["not_graded"]) == ("3.0", "9.0", "1", "1")
    assert (ben["06_silent/k3"], ben["05_kl/k3"]) == ("2.0", "")
    assert (zoe["score"], zoe["max_score"], zoe["problem"]) == ("0.0", "9.0", ZOE.problem)


def test_the_class_has_a_row_for_each_student_and_says_what_is_late_missing_or_not_graded():
    ann = replace(ANN, identity="12345", late=True)
    ben = [
        replace(BEN, lab=lab, identity=number, marks=MARKS[:2]) for lab, number in (("05_kl", "7"), ("04_guards", "8"))
    ]
    rar = replace(ZOE, student="dan", lab="", file="dan/lab5.rar", problem=NOT_READ)
    found = {row["student"]: row for row in rows(tables.by_student(tables.of_class([ann, *ben, ZOE, *[rar] * 5])))}
    assert list(found) == ["ann", "ben", "dan", "zoe"]
    assert list(found["ann"])[:6] == ["student", "id", "04_guards", "05_kl", "score", "max_score"]
    assert [*found["ann"].values()][1:] == [
        *("12345", "nothing handed in", "3.0", "3.0", "14.0", "05_kl", "04_guards", "05_kl", "0", "")
    ]
    assert (found["ben"]["id"], found["zoe"]["05_kl"], found["zoe"]["id"]) == ("7 8", "not graded", "")
    assert (found["dan"]["05_kl"], found["dan"]["files_of_no_lab"]) == ("only files of no lab", "5")
    assert found["dan"]["problem"].startswith(f"dan/lab5.rar: {NOT_READ}; ") and "and 2 more" in found["dan"]["problem"]


@pytest.mark.parametrize(
    "text", ["=1+1", "+1", "-1", "@a", "\t=1", "\rx", "\ta", " =1", "＝1", "a;=1", "a\n=1", "a\r\n-1"]
)
def test_no_cell_is_a_formula(text):
    for part in tables.cell(text).replace("\n", ";").split(";"):
        assert part.strip()[0] not in "=+-@＝" and part[0] not in "\t\r"


@given(ANYTHING)
def test_tables_hold_any_text(text):
    (one,) = rows(tables.by_exercise([with_text(ANN, text)]))
    assert one["student"] == tables.cell(text) == tables.cell(tables.cell(text))
    assert one["file"] == one["problem"] == tables.cell(text) and None not in one


# --- marking -----------------------------------------------------------------------------------------------------

WHY = marking.Answer("ann", "05_kl", "why", ANN.digest)


@pytest.fixture
def sheet(tmp_path):
    """Writes to_mark.csv of ann and ben, with what `enter(row)` changed, and returns its path."""

    def written(enter=lambda row: None, **how):
        path = tmp_path / marking.TO_MARK
        path.write_bytes(marking.to_mark([ANN, BEN], path))
        found = rows(path.read_bytes())
        for row in found:
            enter(row)
        text = io.StringIO()
        csv.writer(text, **how).writerows([marking.COLUMNS, *(row.values() for row in found)])
        path.write_bytes(text.getvalue().encode("utf-8-sig"))
        return path

    return written


def ann_gets(mark, comment="good; =clear"):
    return lambda row: row.update(mark=mark, comment=comment) if row["student"] == "ann" else None


@pytest.mark.parametrize("separator", [",", ";", "\t"], ids=["comma", "semicolon", "tab"])
def test_marks_come_back(sheet, separator):
    one, two = rows(sheet().read_bytes())
    assert (one["student"], two["student"], one["digest"]) == ("ann", "ben", ANN.digest)
    assert (one["points"], one["answer"], one["mark"], one["comment"]) == ("4", MARKS[-1].text, "", "")
    marks = marking.read_marks(sheet(ann_gets("2,5"), delimiter=separator))
    ann, ben = marking.with_marks([ANN, BEN], marks)
    assert [each.answer for each in marks] == [WHY]
    assert (ann.score, ann.out_of, list(ann.by_hand)) == (ANN.score + 2.5, ANN.out_of + 4, [])
    assert (ann.marks[-1].status, ann.marks[-1].note) == (MARKED, "good; =clear")
    assert ben == replace(BEN, marks=list(BEN.marks))
    last = gradescope.document(ann)["tests"][-1]
    assert (last["score"], last["max_score"], "good" in last["output"]) == (2.5, 4, True)


@given(ANYTHING, ANYTHING)
@settings(max_examples=30)
def test_marks_come_back_for_any_name(tmp_path_factory, student, other):
    path = tmp_path_factory.mktemp("any") / marking.TO_MARK
    result = replace(with_text(ANN, student), lab=other, marks=[replace(MARKS[-1], text=other, exercise=student)])
    path.write_bytes(marking.to_mark([result], path))
    (row,) = rows(path.read_bytes())
    path.write_text(tables.table([list(row), list((row | {"mark": "3"}).values())]), encoding="utf-8", newline="")
    (marked,) = marking.with_marks([result], marking.read_marks(path))
    assert (marked.score, marked.out_of) == (3, 4)


@pytest.mark.parametrize("mark", ["5", "-1", "nan", "inf", "good", "1 2"])
def test_a_mark_out_of_range_is_a_warning_in_its_row_and_stops_no_report(sheet, mark):
    marks = marking.read_marks(sheet(lambda row: row.update(mark=mark if row["student"] == "ann" else "3")))
    ann, ben = marking.with_marks([ANN, BEN], marks)
    (warning,) = ann.warnings
    assert f"row 2 (ann, 05_kl, why): mark {mark!r}" in warning and "0 to 4" in warning
    assert (ann.score, ben.score, list(ben.warnings)) == (ANN.score, BEN.score + 3, [])
    assert warning in rows(tables.by_exercise([ann]))[0]["warnings"]
    shown = (gradescope.document(ann)["output"], pages.of_notebook(ann), pages.of_class([ann], "a"))
    assert all("row 2 (ann" in each for each in shown)


@pytest.mark.parametrize(
    ("column", "value", "said", "has_row"),
    [
        ("student", "anne", "no notebook of 'anne' for '05_kl'", False),
        ("lab", "05_KL", "no notebook of 'ann' for '05_KL'", False),
        ("digest", "dd" * 32, "dddddddd then, a1a1a1a1 now", True),
        ("exercise", "k4", "exercise 'k4'", True),
        ("points", "9", "mark 7 is above the 4 points", True),
    ],
)
def test_a_mark_about_something_else_is_a_warning(sheet, column, value, said, has_row):
    def enter(row):
        if row["student"] == "ann":
            row.update({"mark": "7" if column == "points" else "1", column: value})

    marks = marking.read_marks(sheet(enter))
    ann, ben = marking.with_marks([ANN, BEN], marks)
    (line,) = [*ann.warnings, *marking.unplaced([ANN, BEN], marks)]
    assert line.startswith("to_mark.csv, row 2 ") and said in line
    assert bool(ann.warnings) == has_row and not ben.warnings and ann.score == ANN.score


def test_two_marks_of_one_answer_contradict(sheet):
    path = sheet(ann_gets("1"))
    path.write_bytes(path.read_bytes() + path.read_bytes().splitlines(True)[1].replace(b",1,good", b",2,good"))
    with pytest.raises(DataError, match=r"row 4 .*row 2 "):
        marking.read_marks(path)
    with pytest.raises(DataError, match="row 4"):  # and the file is not written over
        marking.to_mark([ANN], path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "has no column answer, comment"),
        (b"student,mark\nann,1\n", "has no column answer, comment, digest"),
        ("student;Größe".encode("cp1252"), "is not a table in UTF-8"),
        (b"PK\x03\x04\x14\x00\xff", "is not a table in UTF-8"),
        (",".join(marking.COLUMNS).encode() + b"\nann,1\n", "row 2: not 9 cells"),
        (",".join(marking.COLUMNS).encode() + b'\nann,"1"2\n', "is not a table"),
    ],
)
def test_a_file_that_is_no_such_table_is_refused_and_stays(tmp_path, content, message):
    path = tmp_path / marking.TO_MARK
    path.write_bytes(content)
    with pytest.raises(DataError, match=rf"to_mark\.csv.*{message}"):
        reports.write([ANN], tmp_path)
    assert path.read_bytes() == content and list(tmp_path.iterdir()) == [path]


def test_what_was_entered_stays_when_the_class_is_graded_again(sheet, tmp_path):
    path = sheet(ann_gets("2.5"), delimiter=";")
    marked = marking.with_marks([ANN, BEN], marking.read_marks(path))
    for results in ([ANN, BEN], marked, [BEN], [replace(ANN, marks=())], [replace(ANN, digest="dd" * 32)]):
        reports.write(results, tmp_path)
        ann = [row for row in rows(path.read_bytes()) if row["student"] == "ann"]
        assert (ann[-1]["mark"], ann[-1]["comment"], ann[-1]["answer"]) == ("2.5", "good;' =clear", MARKS[-1].text)
    assert [(row["digest"][:2], row["mark"]) for row in ann] == [("dd", ""), ("a1", "2.5")]  # and the changed one waits
    path.unlink()
    reports.write(marked, tmp_path)
    assert rows(path.read_bytes())[0]["mark"] == "2.5"


# --- pages -------------------------------------------------------------------------------------------------------


@given(ANYTHING.filter(bool))
@settings(max_examples=60)
def test_no_text_becomes_an_element(text):
    for of in (pages.of_notebook, lambda result: pages.of_class([result], ["a"])):
        page, harmless = Page(of(with_text(ANN, text))), Page(of(with_text(ANN, "x")))
        assert page.elements == harmless.elements
        assert visible(text)[:50] in page.text
        assert all(letter.isprintable() or letter in "\n\t\xa0\u3000\u200c\u200d" for letter in page.text)


@pytest.mark.parametrize("page", [pages.of_notebook(ANN), pages.of_class([ANN, ZOE], ["a", "b"])], ids=["one", "class"])
def test_pages_load_nothing_and_name_their_only_style(page):
    style = page.split("<style>")[1].split("</style>")[0]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'sha256-{digest}'" in page
    found = Page(page).elements
    assert not {"script", "img", "link", "iframe", "form"} & {tag for tag, _ in found}
    addresses = [value for _, attrs in found for name, value in attrs if name in ("href", "src")]
    assert all(value.startswith("pages/") for value in addresses) and "url(" not in style and "@import" not in style
    assert not [name for _, attrs in found for name, _ in attrs if name == "style" or name.startswith("on")]
    assert all(dict(attrs).get("scope") in ("row", "col") for tag, attrs in found if tag == "th")


@pytest.mark.parametrize(
    "said",
    [
        *("3 of 9 points", "Attempt 3", f"Tier 2. {TRUST}", "✓ right", "✗ wrong, 1 of 3 points", "○ unanswered"),
        *("got 0 expected 5e-09 why No digits are left.", "✓ 1 of 3 right", "up to 4 points", MARKS[-1].text),
        *("This was not graded", "the sandbox did not start", "1 exercise not graded"),
    ],
)
def test_the_students_page_says(said):
    assert said in Page(pages.of_notebook(ANN)).words


def test_the_class_page_says_who_what_and_how_much():
    page = Page(pages.of_class([replace(ANN, late=True), BEN, ZOE], ["a", "b", "z"]))
    for said in ("3 notebooks, 3 of them not graded", "2 texts to be marked", "Not graded: 2 exercises.", "3 late"):
        assert said in page.words
    assert page.words.count("! 1 exercise not graded") == 2 * 2  # in the table of students and in the lab's
    assert "! the file has 512 MB" in page.words and "Tier 0: Limits only." in page.words
    assert [dict(attrs)["href"] for tag, attrs in page.elements if tag == "a"] == [
        f"pages/{name}.html" for name in "abz" * 2
    ]  # in the table of students, then in that of notebooks
    hardest = ("Match them", "A straight line", "k3, also near 0")
    assert sorted(hardest, key=page.words.index) == [*hardest]


def test_a_page_and_the_exit_code_count_the_same_notebooks():
    """A notebook counts, and so does a zip in its place; other files have a row and a reason."""
    here = {"settings": {"labs": ["05_kl"]}}
    whole, pdf = replace(ANN, marks=MARKS[:2], **here), replace(ZOE, lab="", file="r.pdf", problem=NOT_READ, **here)
    broken, refused = (replace(pdf, file=name, problem="damaged") for name in ("x.IPYNB", "y.zip"))
    unfinished, elsewhere = replace(BEN, **here), replace(ZOE, lab="04_guards", **here)
    every = [whole, pdf, broken, refused, unfinished, elsewhere]
    assert [each.ungraded for each in every] == [False, False, True, True, True, False]
    assert counted(every) == (4, 3, 1)
    shown = Page(pages.of_class(every, [*"abcdef"])).words
    assert "4 notebooks, 3 of them not graded, or not in full. Other files and empty folders: 1." in shown
    assert f"1 file of no lab r.pdf: {NOT_READ}" in shown or "3 files of no lab" in shown
    assert "Not graded:" not in Page(pages.of_class([whole], ["a"])).words


def test_the_tally_of_an_exercise_names_what_most_were_told():
    both, one = replace(MARKS[1]), replace(MARKS[1], findings=[RAISED, RAISED, RAISED])
    found = pages.tally([both, one, replace(MARKS[1], points=3.0, status=RIGHT, findings=[FINE])])
    assert (found.counts[WRONG], found.counts[RIGHT], found.counts[UNANSWERED]) == (2, 1, 0)
    assert (found.why, found.told) == (RAISED.why, 2)  # in notebooks, not in findings
    assert found.share == pytest.approx(5 / 9)
    assert pages.tally([MARKS[-1]]).share is None


# --- files -------------------------------------------------------------------------------------------------------


def test_everything_is_written_and_no_secret(tmp_path):
    results = [replace(ANN, settings={"secret": "f1ngerprint"}), BEN, ZOE]
    written = reports.write(results, tmp_path / "new" / "out")
    names = [reports.name_of(result) for result in results]
    below = {path.relative_to(tmp_path / "new" / "out").as_posix() for path in written}
    assert below == {
        *("index.html", "grades.csv", "to_mark.csv", "class.csv"),
        *(f"gradescope/{name}.json" for name in names),
        *(f"pages/{name}.html" for name in names),
    }
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == set(written)
    assert [path for path in written if b"f1ngerprint" in path.read_bytes()] == []
    assert "to_mark.csv" not in {path.name for path in reports.write([ZOE], tmp_path / "nothing to mark")}


def test_no_student_chooses_where_a_report_goes(tmp_path):
    students = ["../../x", "/etc/passwd", "CON", "nul", "Ann", "ann", "ANN", "", ".", "..", "a/b", "a\\b", "a" * 5000]
    students += [HOSTILE, "é", "e\u0301", "\ud800", "x\x00", "x "]
    written = reports.write([replace(ANN, student=student) for student in students], tmp_path / "out")
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == set(written)
    found = [path.name.lower() for path in (tmp_path / "out" / "pages").iterdir()]
    assert len(set(found)) == len(students)
    assert all(set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-.") and len(name) <= 62 for name in found)


def test_results_that_nothing_tells_apart_have_reports_each(tmp_path):
    lost = replace(ZOE, lab="", problem="the grader failed: the grade worker ended")
    written = reports.write([lost, ANN, lost], tmp_path)
    assert len(set(written)) == len(written) == 4 + 3 * 2
    assert f"{reports.name_of(lost)}-2.html" in {path.name for path in written}


def test_a_full_disk_leaves_older_reports_whole(tmp_path):
    reports.write([ANN], tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    long = [replace(MARKS[-1], text="word " * 20_000)]  # the file that does not fit is not the first one
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
    try:
        with pytest.raises(RunError, match=r"\.part cannot be written: File too large"):
            reports.write([replace(ANN, marks=long, tier=0)], tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    (tmp_path / "out").write_text("a file")
    with pytest.raises(RunError, match="cannot be written"):
        reports.write([ANN], tmp_path / "out")
