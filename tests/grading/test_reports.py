"""Reports: no text of a student becomes markup, a formula or a path, and no entered mark is lost."""

import base64
import csv
import hashlib
import io
import json
import os
import re
import resource
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_lab.course.exercises import Finding
from grpo_lab.errors import ConfigError, DataError, RunError
from grpo_lab.grading import repeats, reports
from grpo_lab.grading.reports import gradebook, gradescope, marking, overview, pages, words
from grpo_lab.grading.reports.files import name_of
from grpo_lab.grading.reports.plain import visible
from grpo_lab.grading.results import BY_HAND, FAILED, MARKED, RIGHT, UNANSWERED, WRONG, Mark, Result, counted
from grpo_lab.grading.sandbox import tiers
from grpo_lab.grading.submissions import NOT_READ, Found

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


def in_chinese(result):
    """The lines of a result's page, of the class's and of Gradescope's file, in Chinese."""
    html = pages.of_notebook(result, "zh"), pages.of_class([result, ZOE], ["a", "b"], None, "zh")
    shown = [Page(each.partition("</style>")[2]).words for each in html]
    told = gradescope.document(result, "zh")
    return "\n".join([*shown, told["output"], *(test["output"] for test in told["tests"])]).splitlines()


def test_reports_are_chinese_but_for_names_and_what_others_wrote():
    wrong = Finding(False, "a healthy run, norms times 2", "1", "a number", "This is a text; a number is wanted.")
    marks = [replace(mark, title=mark.exercise, note="", text="") for mark in MARKS]
    marks[:2] = (replace(mark, findings=[FINE._replace(what="one NaN"), wrong]) for mark in marks[:2])
    result = replace(ANN, marks=marks, trust=tiers.PROCESS.trust, late=True, student="")
    lines = in_chinese(result)
    assert [line for line in lines if ENGLISH.search(line.replace(ZOE.problem, "").replace(ZOE.trust, ""))] == []
    text = "\n".join(lines)
    for said in (
        "健康的运行，norms 乘以 2",
        "这是文本；需要的是数。",
        "待人工评分",
        "答对：一个 NaN",
        "未署名",
        "迟交",
        "有限制的进程",
    ):
        assert said in text, said
    assert '<html lang="zh">' in pages.of_notebook(result, "zh") and '<html lang="en">' in pages.of_notebook(result)


def test_titles_problems_and_warnings_are_chinese():
    mark = replace(MARKS[0], findings=[], note="its cell has lost its id; found by its first line, `%%exercise k3`")
    about = {"warnings": ["handed in late, by the name of its file"], "trust": tiers.PROCESS.trust}
    text = "\n".join(in_chinese(replace(ANN, marks=[mark], **about)))
    for said in (
        "k3，在 0 附近也正确",
        "迟交（依据文件名）",
        "单元格丢失了 id",
    ):
        assert said in text, said
    refused = replace(ZOE, problem="its zip has a password; hand in the notebook itself")
    assert "它的 zip 设有密码；请直接提交笔记本文件" in "\n".join(in_chinese(refused))
    long = "\n".join(in_chinese(replace(ANN, student="长" * 3000, marks=[replace(mark, note="w" * 3000)])))
    assert "另有 1,000 个字符" in long and "characters more" not in long
    both = gradescope.of_submission([ANN, refused], "zh")["output"]
    assert "zip 设有密码" in both and "password" not in both


@pytest.mark.parametrize("tier", tiers.TIERS.values(), ids=lambda tier: tier.name)
def test_the_limits_of_a_tier_are_chinese(tier):
    for trust in (tier.trust, replace(tier, contained=tiers.BUBBLEWRAP.contained).trust):
        assert not ENGLISH.search(words.of("zh").said(trust)), trust


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
    assert words.of("zh_CN") is words.of("zh") and words.of("") is words.of("en")
    with pytest.raises(ConfigError, match=r"unknown language in GRPO_LAB_LANG 'fr'. Known: en, zh"):
        words.of("fr")


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
        self.elements, self.words = [], ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, [(name, value) for name, value in attrs if name != "aria-label"]))
        self.words += " "

    def handle_data(self, data):
        self.words += data

    def handle_comment(self, data):
        raise AssertionError(f"a comment: {data}")


# Gradescope


def test_gradescope_has_a_score_an_exercise_and_no_points_lost_by_what_waits():
    told = gradescope.document(ANN)
    assert told["score"] == 3.0 and told["execution_time"] == 1.5
    assert sum(test.get("score", 0) for test in told["tests"]) == told["score"]
    assert [test.get("max_score") for test in told["tests"]] == [2, 3, 2, 2, None]
    assert [test.get("status") for test in told["tests"]] == ["passed", "failed", "failed", "failed", None]
    assert TRUST in told["output"] and "attempt 3" in told["output"] and "up to 4 points" in told["output"]


def test_gradescope_says_got_expected_and_why_as_text():
    told = gradescope.document(ANN)
    for word in ("near 0", "got       0", "expected  5e-09", "why       No digits are left."):
        assert word in told["tests"][1]["output"]
    formats = [told[f"{name}_format"] for name in ("output", "test_output", "test_name")]
    formats += [test[f"{name}_format"] for test in told["tests"] for name in ("output", "name")]
    assert set(formats) == {"text"}


def test_gradescope_of_what_could_not_be_graded():
    told = gradescope.document(ZOE)
    assert told["score"] == 0 and told["tests"] == [] and "512 MB" in told["output"]


def test_gradescope_has_one_document_for_a_submission_of_several_files(tmp_path):
    pdf = replace(ZOE, lab="", file="ann/report.pdf", problem="not a notebook")
    told = gradescope.of_submission([pdf, ANN])
    assert told["score"] == 3.0 and len(told["tests"]) == len(MARKS) and "report.pdf: not a notebook" in told["output"]
    assert gradescope.of_submission([pdf]) == gradescope.document(pdf)
    assert [test["number"] for test in gradescope.of_submission([ANN, BEN])["tests"]] == [*map(str, range(1, 11))]
    reports.write([pdf, ANN], tmp_path / "out", tmp_path / "results.json")
    assert json.loads((tmp_path / "results.json").read_text()) == told


def test_a_marked_text_has_its_points_and_the_comment():
    (marked,) = marking.with_marks([ANN], [marking.Marking(about("why"), 2.5, "good", "row 2")])
    assert (marked.score, marked.out_of, list(marked.by_hand)) == (5.5, 13, [])
    last = gradescope.document(marked)["tests"][-1]
    assert (last["score"], last["max_score"], "good" in last["output"]) == (2.5, 4, True)


# Tables


def test_the_gradebook_has_nbgraders_columns_and_counts_no_text_that_waits():
    found = rows(gradebook.for_nbgrader([ANN, ZOE]))
    names = "assignment,duedate,timestamp,student_id,last_name,first_name,email"
    assert list(found[0])[:11] == f"{names},raw_score,late_submission_penalty,score,max_score".split(",")
    ann, zoe = found
    assert [ann[name] for name in ("assignment", "student_id", "raw_score", "score", "max_score")] == [
        *("05_kl", "ann", "3.0", "3.0", "9.0"),
    ]
    assert (ann["to_mark"], ann["not_graded"], ann["problem"]) == ("1", "1", "")
    assert (zoe["score"], zoe["max_score"], zoe["problem"]) == ("0.0", "9.0", ZOE.problem)


def test_grades_have_a_column_an_exercise():
    other = replace(BEN, lab="06_silent", marks=MARKS[:1])
    ann, ben = rows(gradebook.by_exercise([ANN, other]))
    assert [ann[f"05_kl/{mark.exercise}"] for mark in MARKS] == ["2.0", "1.0", "0.0", "not graded", "by hand"]
    assert (ben["06_silent/k3"], ben["05_kl/k3"]) == ("2.0", "")


@pytest.mark.parametrize(
    "text", ["=1+1", "+1", "-1", "@a", "\t=1", "\rx", "\ta", " =1", "＝1", "a;=1", "a\n=1", "a\r\n-1"]
)
def test_no_cell_is_a_formula(text):
    for part in gradebook.cell(text).replace("\n", ";").split(";"):
        assert part.strip()[0] not in "=+-@＝" and part[0] not in "\t\r"


@given(ANYTHING)
def test_tables_hold_any_text(text):
    (one,) = rows(gradebook.for_nbgrader([with_text(ANN, text)]))
    assert one["student_id"] == gradebook.cell(text) == gradebook.cell(gradebook.cell(text))
    assert one["problem"] == gradebook.cell(text) and None not in one
    (one,) = rows(gradebook.by_exercise([with_text(ANN, text)]))
    assert one["file"] == gradebook.cell(text)


# Marking


def about(exercise, result=ANN):
    return marking.Answer(result.student, result.lab, exercise, result.digest)


@pytest.fixture
def sheet(tmp_path):
    """Writes to_mark.csv of ann and ben, with what `enter(row)` changed, and returns its path."""

    def written(enter=lambda row: None, encoding="utf-8-sig", **how):
        path = tmp_path / marking.TO_MARK
        path.write_bytes(marking.to_mark([ANN, BEN], path))
        found = rows(path.read_bytes())
        for row in found:
            enter(row)
        text = io.StringIO()
        csv.writer(text, **how).writerows([marking.COLUMNS, *(row.values() for row in found)])
        path.write_bytes(text.getvalue().encode(encoding))
        return path

    return written


def ann_gets(mark, comment="good; =clear"):
    return lambda row: row.update(mark=mark, comment=comment) if row["student"] == "ann" else None


def test_texts_to_mark(sheet):
    one, two = rows(sheet().read_bytes())
    assert (one["student"], two["student"]) == ("ann", "ben")
    assert (one["points"], one["answer"], one["mark"], one["comment"]) == ("4", MARKS[-1].text, "", "")
    assert one["digest"] == ANN.digest


@pytest.mark.parametrize("how", [{}, {"delimiter": ";"}, {"delimiter": "\t"}], ids=["comma", "semicolon", "tab"])
def test_marks_come_back(sheet, how):
    marks = marking.read_marks(sheet(ann_gets("2,5"), **how))
    ann, ben = marking.with_marks([ANN, BEN], marks)
    assert [each.answer for each in marks] == [about("why")]
    assert (ann.score, ann.out_of) == (ANN.score + 2.5, ANN.out_of + 4)
    assert (ann.marks[-1].status, ann.marks[-1].note) == (MARKED, "good; =clear")
    assert ben == replace(BEN, marks=list(BEN.marks))


@given(ANYTHING, ANYTHING)
@settings(max_examples=30)
def test_marks_come_back_for_any_name(tmp_path_factory, student, other):
    path = tmp_path_factory.mktemp("any") / marking.TO_MARK
    result = replace(with_text(ANN, student), lab=other, marks=[replace(MARKS[-1], text=other, exercise=student)])
    path.write_bytes(marking.to_mark([result], path))
    (row,) = rows(path.read_bytes())
    path.write_text(gradebook.table([list(row), list((row | {"mark": "3"}).values())]), encoding="utf-8", newline="")
    (marked,) = marking.with_marks([result], marking.read_marks(path))
    assert (marked.score, marked.out_of) == (3, 4)


@pytest.mark.parametrize("mark", ["5", "-1", "nan", "inf", "good", "1 2"])
def test_a_mark_out_of_range_is_a_warning_in_its_row_and_stops_no_report(sheet, mark):
    marks = marking.read_marks(sheet(lambda row: row.update(mark=mark if row["student"] == "ann" else "3")))
    ann, ben = marking.with_marks([ANN, BEN], marks)
    (warning,) = ann.warnings
    assert f"row 2 (ann, 05_kl, why): mark {mark!r} is not valid" in warning and "0 to 4" in warning
    assert (ann.score, ben.score, list(ben.warnings)) == (ANN.score, BEN.score + 3, [])
    assert warning in rows(gradebook.for_nbgrader([ann]))[0]["warnings"]
    assert warning.split("'")[0] in gradescope.document(ann)["output"]
    assert "row 2 (ann" in Page(pages.of_notebook(ann)).words and "row 2 (ann" in Page(pages.of_class([ann], "a")).words


@pytest.mark.parametrize(
    ("column", "value", "message", "has_row"),
    [
        ("student", "anne", "no notebook of student 'anne'.*correct the name", False),
        ("lab", "05_KL", "no notebook of lab '05_KL'", False),
        ("digest", "dd" * 32, "changed since.*dddddddd then, a1a1a1a1 now.*delete the row", True),
        ("exercise", "k4", "exercise 'k4' has no text to mark .why has one.; delete the row", True),
        ("points", "9", "mark 7 is above the 4 points", True),
    ],
)
def test_a_mark_about_something_else_is_a_warning(sheet, column, value, message, has_row):
    def enter(row):
        if row["student"] == "ann":
            row.update({"mark": "7" if column == "points" else "1", column: value})

    marks = marking.read_marks(sheet(enter))
    ann, ben = marking.with_marks([ANN, BEN], marks)
    lines = [*ann.warnings, *marking.unplaced([ANN, BEN], marks)]
    assert len(lines) == 1 and re.search(f"^to_mark.csv, row 2 .*{message}", lines[0])
    assert bool(ann.warnings) == has_row and not ben.warnings and ann.score == ANN.score


def test_tables_leave_out_the_labs_that_are_not_graded():
    here = {"labs": ["05_kl"]}
    graded = replace(ANN, settings=here)
    other = replace(ZOE, lab="04_guards", problem="the lab 04_guards, which is not graded here", settings=here)
    unknown = replace(ZOE, student="pdf", lab="", settings=here)
    for table in (gradebook.for_nbgrader, gradebook.by_exercise):
        found = rows(table([graded, other, unknown]))
        assert [row.get("student_id") or row.get("student") for row in found] == ["ann", "pdf"]
    assert len(rows(gradebook.for_nbgrader([ANN, replace(other, settings={"labs": []})]))) == 2


def test_one_notebook_counts_for_a_student_and_a_lab(tmp_path):
    new, old = replace(ANN, file="new.ipynb", marks=MARKS[1:]), replace(ANN, file="old.ipynb")
    broken = replace(ANN, file="zz.ipynb", marks=(), problem="not a notebook")
    pdf = replace(broken, lab="", file="r.pdf")
    results = [broken, new, BEN, old, pdf]
    for time, name in enumerate(("old.ipynb", "new.ipynb", "zz.ipynb", "r.pdf", BEN.file.replace("/", "-")), start=1):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (time, time))
    every = [Found(each.student, tmp_path / each.file.replace("/", "-"), tmp_path) for each in results]
    for rule, counts in (("latest", new), ("best", old)):
        kept = repeats.one_each(every, results, rule)
        assert sorted(each.file for each in kept) == sorted([counts.file, BEN.file, pdf.file])
        (warning,) = next(each for each in kept if each.file == counts.file).warnings
        assert f"3 notebooks of this lab: {counts.file} counts (rule: {rule})" in warning
        assert "zz.ipynb (could not be graded: not a notebook)" in warning
        said = words.of("zh").said(warning)
        assert ".ipynb（得分 " in said and "zz.ipynb（无法评分：" in said
    alone = repeats.one_each(every, results, "best", alone=True)  # else one submission earned its points twice
    assert len([each for each in alone if each.lab]) == 1
    with pytest.raises(ConfigError, match="latest or best"):
        repeats.one_each(every, results, "worst")


def test_other_files_in_a_zip_of_a_lab_are_no_notebooks_of_it(tmp_path):
    runs = [replace(ANN, file=f"ann_05_kl.zip/runs/{name}.json", marks=(), problem=NOT_READ) for name in "ab"]
    notebook = replace(ANN, file="ann_05_kl.zip/05_kl.ipynb")
    every = [Found("ann", tmp_path / "ann_05_kl.zip", tmp_path)] * 3
    counts, *others = repeats.one_each(every, [notebook, *runs])
    assert counts == notebook and [(each.file, each.lab) for each in others] == [(each.file, "") for each in runs]
    first, second = repeats.one_each(every[1:], runs)  # no notebook at all: the lab is not graded, and says why
    assert sorted((first.lab, second.lab)) == ["", "05_kl"] and not [*first.warnings, *second.warnings]


def test_two_marks_of_one_answer_contradict(sheet):
    path = sheet(ann_gets("1"))
    path.write_bytes(path.read_bytes() + path.read_bytes().splitlines(True)[1].replace(b",1,good", b",2,good"))
    with pytest.raises(DataError, match=r"row 4 .*row 2 .* differs about the same answer; delete one"):
        marking.read_marks(path)
    with pytest.raises(DataError, match="row 4"):  # and the file is not written over
        marking.to_mark([ANN], path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"student,mark\nann,1\n", "no column answer, comment, digest"),
        ("student;Größe".encode("cp1252"), "not UTF-8"),
        (",".join(marking.COLUMNS).encode() + b"\nann,1\n", "row 2: 2 cells, not 9"),
        (",".join(marking.COLUMNS).encode() + b'\nann,"1"2\n', "not a table"),
    ],
)
def test_a_file_that_is_no_such_table_is_refused_and_stays(tmp_path, content, message):
    path = tmp_path / marking.TO_MARK
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        marking.read_marks(path)
    with pytest.raises(DataError, match=message):
        reports.write([ANN], tmp_path)
    assert path.read_bytes() == content and list(tmp_path.iterdir()) == [path]


def test_a_missing_file_of_marks(tmp_path):
    with pytest.raises(DataError, match="cannot be read: No such file"):
        marking.read_marks(tmp_path / "none.csv")


def test_what_was_entered_stays_when_the_class_is_graded_again(sheet, tmp_path):
    path = sheet(ann_gets("2.5"), delimiter=";")
    for results in (
        [ANN, BEN],
        marking.with_marks([ANN, BEN], marking.read_marks(path)),
        [BEN],
        [replace(ANN, marks=())],
    ):
        reports.write(results, tmp_path)
        (ann,) = [row for row in rows(path.read_bytes()) if row["student"] == "ann"]
        assert (ann["mark"], ann["comment"], ann["answer"]) == ("2.5", "good;' =clear", MARKS[-1].text)


def test_an_answer_that_changed_waits_again_and_its_old_mark_stays(sheet, tmp_path):
    path = sheet(ann_gets("2.5"))
    reports.write([replace(ANN, digest="dd" * 32)], tmp_path)
    assert [(row["digest"][:2], row["mark"]) for row in rows(path.read_bytes())] == [("dd", ""), ("a1", "2.5")]


def test_marks_given_elsewhere_are_in_the_file_too(tmp_path):
    reports.write(marking.with_marks([ANN], [marking.Marking(about("why"), 1 / 4, "so so", "")]), tmp_path)
    (row,) = rows((tmp_path / marking.TO_MARK).read_bytes())
    assert (row["mark"], row["comment"]) == ("0.25", "so so")


# Pages


@given(ANYTHING.filter(bool))
@settings(max_examples=60)
def test_no_text_becomes_an_element(text):
    for of in (pages.of_notebook, lambda result: pages.of_class([result], ["a"])):
        page, harmless = Page(of(with_text(ANN, text))), Page(of(with_text(ANN, "x")))
        assert page.elements == harmless.elements
        assert visible(text)[:50] in page.words
        assert all(letter.isprintable() or letter in "\n\t\xa0\u3000\u200c\u200d" for letter in page.words)


@pytest.mark.parametrize("page", [pages.of_notebook(ANN), pages.of_class([ANN, ZOE], ["a", "b"])], ids=["one", "class"])
def test_pages_load_nothing_and_name_their_only_style(page):
    style = page.split("<style>")[1].split("</style>")[0]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'sha256-{digest}'" in page
    found = Page(page).elements
    assert found[0] == ("html", [("lang", "en")])
    assert not {"script", "img", "link", "iframe", "form"} & {tag for tag, _ in found}
    addresses = [value for _, attrs in found for name, value in attrs if name in ("href", "src")]
    assert all(value.startswith("pages/") for value in addresses) and "url(" not in style and "@import" not in style
    assert not [name for _, attrs in found for name, _ in attrs if name == "style" or name.startswith("on")]
    assert all(dict(attrs).get("scope") in ("row", "col") for tag, attrs in found if tag == "th")


def test_the_students_page_says_everything():
    words = " ".join(Page(pages.of_notebook(ANN)).words.split())
    for word in ("3 of 9 points", "Attempt 3", f"Tier 2. {TRUST}", "✓ right", "✗ wrong, 1 of 3 points", "○ unanswered"):
        assert word in words
    for word in ("got 0 expected 5e-09 why No digits are left.", "✓ 1 of 3 right", "up to 4 points", MARKS[-1].text):
        assert word in words
    assert "This was not graded" in words and "the sandbox did not start" in words


def test_the_class_page_says_who_what_and_how_much():
    page = Page(pages.of_class([ANN, BEN, ZOE], ["a", "b", "z"]))
    words = " ".join(page.words.split())
    for word in ("3 notebooks, 3 of them not graded", "2 texts to be marked", "Not graded: 2 exercises."):
        assert word in words
    assert words.count("! 1 exercise not graded") == 2 * 2  # of Ann and Ben, in the table of students and in the lab's
    assert "1 exercise not graded" in Page(pages.of_notebook(ANN)).words
    assert "! the file has 512 MB" in words and "Tier 0: Limits only." in words and f"Tier 2: {TRUST}" in words
    assert [dict(attrs)["href"] for tag, attrs in page.elements if tag == "a"] == [
        f"pages/{name}.html" for name in "abz" * 2
    ]  # in the table of students, then in that of notebooks


def test_the_tally_of_an_exercise_names_what_most_were_told():
    both, one = replace(MARKS[1]), replace(MARKS[1], findings=[RAISED, RAISED, RAISED])
    found = pages.tally([both, one, replace(MARKS[1], points=3.0, status=RIGHT, findings=[FINE])])
    assert (found.counts[WRONG], found.counts[RIGHT], found.counts[UNANSWERED]) == (2, 1, 0)
    assert (found.why, found.told) == (RAISED.why, 2)  # in notebooks, not in findings
    assert found.share == pytest.approx(5 / 9)
    assert pages.tally([MARKS[-1]]).share is None


def test_what_is_hard_comes_first():
    words = Page(pages.of_class([ANN], ["a"])).words
    assert words.index("Match them") < words.index("A straight line") < words.index("k3, also near 0")


# The class


def of_platforms():
    """Ann, late; Ben, with a number in his file's name; and Zoe, whose file cannot be graded."""
    ann = replace(ANN, identity="12345", late=True)
    ben = replace(BEN, lab="04_guards", identity="77", marks=MARKS[:2])
    return [ann, ben, ZOE]


def test_the_overview_tells_who_handed_in_what_and_what_was_late():
    results = of_platforms()
    class_ = overview.of_class([*results, replace(ZOE, lab="", file="r.pdf")])
    found = {row["student"]: row for row in rows(overview.as_csv(class_))}
    assert list(found) == ["ann", "ben", "zoe"]
    assert list(found["ann"])[:4] == ["student", "id", "04_guards", "05_kl"]
    assert (found["ann"]["05_kl"], found["ann"]["04_guards"]) == ("3.0", "nothing handed in")
    assert (found["ann"]["late"], found["ann"]["id"], found["ann"]["missing"]) == ("05_kl", "12345", "04_guards")
    assert (found["ben"]["id"], found["zoe"]["id"]) == ("77", "")
    assert (found["ann"]["score"], found["ann"]["max_score"]) == ("3.0", "14.0")
    assert (found["zoe"]["05_kl"], found["zoe"]["files_of_no_lab"]) == ("not graded", "1")
    words = " ".join(Page(pages.of_class(results, "abz", class_)).words.split())
    for said in ("3 late", "1 file of"):
        assert said in words


def test_a_student_with_other_numbers_in_other_assignments_has_them_all():
    one, other = replace(ANN, identity="7"), replace(ANN, lab="04_guards", identity="8")
    (row,) = overview.of_class([one, other, replace(other, lab="", file="r.pdf")]).rows
    assert row.identity == "7 8"


def test_a_page_and_the_exit_code_count_the_same_notebooks():
    """A notebook counts, and so does a zip in its place; other files have a row and a reason."""
    here = {"settings": {"labs": ["05_kl"]}}
    whole, pdf = replace(ANN, marks=MARKS[:2], **here), replace(ZOE, lab="", file="r.pdf", problem=NOT_READ, **here)
    broken, refused = (replace(pdf, file=name, problem="damaged") for name in ("x.IPYNB", "y.zip"))
    unfinished, elsewhere = replace(BEN, **here), replace(ZOE, lab="04_guards", **here)
    every = [whole, pdf, broken, refused, unfinished, elsewhere]
    assert [each.ungraded for each in every] == [False, False, True, True, True, False]
    assert counted(every) == (4, 3, 1)
    shown = " ".join(Page(pages.of_class(every, [*"abcdef"])).words.split())
    assert "4 notebooks, 3 of them not graded, or not in full. Other files and empty folders: 1." in shown
    assert "Not graded:" not in " ".join(Page(pages.of_class([whole], ["a"])).words.split())


def test_a_student_whose_files_are_of_no_lab_did_not_hand_in_nothing():
    rar = replace(ZOE, student="dan", lab="", file="dan/lab5.rar", problem=NOT_READ)
    class_ = overview.of_class([ANN, *[rar] * 5])
    found = {row["student"]: row for row in rows(overview.as_csv(class_))}
    assert found["dan"]["05_kl"] == "only files of no lab"
    assert found["dan"]["problem"].startswith(f"dan/lab5.rar: {NOT_READ}; ") and "and 2 more" in found["dan"]["problem"]
    assert (found["ann"]["incomplete"], found["dan"]["incomplete"], found["ann"]["problem"]) == ("05_kl", "", "")
    shown = Page(pages.of_class([ANN, *[rar] * 5], [*"abcdef"], class_)).words
    assert shown.count("only files of no lab") == 1 and f"dan/lab5.rar: {NOT_READ}" in " ".join(shown.split())


# Files


def test_everything_is_written(tmp_path):
    results = [ANN, BEN, ZOE]
    written = reports.write(results, tmp_path / "new" / "out")
    names = [name_of(result) for result in results]
    below = {path.relative_to(tmp_path / "new" / "out").as_posix() for path in written}
    tables = {"index.html", "gradebook.csv", "grades.csv", "to_mark.csv", "class.csv"}
    assert below == tables | {f"gradescope/{name}.json" for name in names} | {f"pages/{name}.html" for name in names}
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == set(written)
    assert json.loads((tmp_path / f"new/out/gradescope/{names[0]}.json").read_text())["score"] == 3.0


def test_nothing_to_mark_no_file(tmp_path):
    assert "to_mark.csv" not in {path.name for path in reports.write([ZOE], tmp_path)}


def test_settings_stay_out_of_every_report(tmp_path):
    for path in reports.write([replace(ANN, settings={"secret": "f1ngerprint"})], tmp_path):
        assert b"f1ngerprint" not in path.read_bytes()


def test_no_student_chooses_where_a_report_goes(tmp_path):
    students = [
        "../../x",
        "/etc/passwd",
        "CON",
        "nul",
        "Ann",
        "ann",
        "ANN",
        "",
        ".",
        "..",
        "a/b",
        "a\\b",
        "a" * 5000,
        HOSTILE,
    ]
    students += ["é", "e\u0301", "\ud800", "x\x00", "x "]
    written = reports.write([replace(ANN, student=student) for student in students], tmp_path / "out")
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == set(written)
    found = [path.name.lower() for path in (tmp_path / "out" / "pages").iterdir()]
    assert len(set(found)) == len(students)
    assert all(set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-.") and len(name) <= 62 for name in found)


def test_results_that_nothing_tells_apart_have_reports_each(tmp_path):
    lost = replace(ZOE, lab="", problem="the grader failed: the grade worker ended")
    written = reports.write([lost, ANN, lost], tmp_path)
    assert len(set(written)) == len(written) == 5 + 3 * 2
    assert f"{name_of(lost)}-2.html" in {path.name for path in written}


def test_a_full_disk_leaves_older_reports_whole(tmp_path):
    reports.write([ANN], tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    long = [replace(MARKS[-1], text="word " * 20_000)]  # the file that does not fit is not the first one
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
    try:
        with pytest.raises(RunError, match=r"to_mark\.csv\.part cannot be written: File too large; free some space"):
            reports.write([replace(ANN, marks=long, tier=0)], tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "out").write_text("a file")
    with pytest.raises(RunError, match="cannot be written"):
        reports.write([ANN], tmp_path / "out")
