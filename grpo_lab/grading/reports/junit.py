"""The results as JUnit XML, which continuous integration shows: a suite for each notebook, a case for each exercise."""

from collections import Counter
from collections.abc import Sequence
from xml.etree import ElementTree

from grpo_lab.grading.reports.plain import number, visible
from grpo_lab.grading.reports.words import ENGLISH, words
from grpo_lab.grading.results import BY_HAND, FAILED, Mark, Result

_PASSED, _FAILURE, _ERROR, _SKIPPED = "passed", "failure", "error", "skipped"


def document(results: Sequence[Result]) -> bytes:
    """One file for all notebooks.

    A case fails if its exercise did not earn all points, is an error if something could not be graded, and is skipped
    if a person marks it.
    """
    suites = ElementTree.Element("testsuites", name="grpo-lab grade")
    totals: Counter[str] = Counter()
    for result in results:
        totals += _suite(suites, result)
    _count(suites, totals)
    return ElementTree.tostring(suites, encoding="utf-8", xml_declaration=True)


def _suite(suites: ElementTree.Element, result: Result) -> Counter[str]:
    name = visible(f"{result.student}, {result.lab or result.file}")
    suite = ElementTree.SubElement(suites, "testsuite", name=name, time=f"{result.seconds:.3f}")
    kinds = Counter(_case(suite, result, mark) for mark in result.marks)
    if result.problem:
        case = ElementTree.SubElement(suite, "testcase", classname=name, name="notebook")
        _said(case, _ERROR, result.problem, result.problem)
        kinds[_ERROR] += 1
    _count(suite, kinds)
    return kinds


def _case(suite: ElementTree.Element, result: Result, mark: Mark) -> str:
    """Add the case of one exercise, and return how it ended."""
    names = {"classname": visible(f"{result.student}.{result.lab}"), "name": visible(mark.exercise)}
    case = ElementTree.SubElement(suite, "testcase", names)
    if mark.status == BY_HAND:
        _said(case, _SKIPPED, "a person marks this", "")
        return _SKIPPED
    if mark.status != FAILED and mark.points >= mark.out_of:
        return _PASSED
    kind = _ERROR if mark.status == FAILED else _FAILURE
    wrong = [found for found in mark.findings if not found.right]
    lines = [f"{found.what}: got {found.got}, expected {found.expected}. {found.why}".strip() for found in wrong]
    head = f"{mark.status}: {number(mark.points)} of {mark.out_of}"
    _said(case, kind, head, "\n".join(map(words(ENGLISH).shortened, [*lines, *([mark.note] if mark.note else [])])))
    return kind


def _said(case: ElementTree.Element, kind: str, message: str, text: str) -> None:
    ElementTree.SubElement(case, kind, message=visible(words(ENGLISH).shortened(message))).text = visible(text)


def _count(element: ElementTree.Element, kinds: Counter[str]) -> None:
    element.set("tests", str(sum(kinds.values())))
    for name, kind in {"failures": _FAILURE, "errors": _ERROR, "skipped": _SKIPPED}.items():
        element.set(name, str(kinds[kind]))
