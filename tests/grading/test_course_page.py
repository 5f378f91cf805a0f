"""The course page agrees with the registry, in order, and its links lead to files."""

import re
from pathlib import Path

from grpo_lab.course.registry import course_labs, lab_page

LABS = course_labs()

LABS_FOLDER = Path(__file__).parents[2] / "labs"


def test_the_table_is_the_registry():
    page = (LABS_FOLDER / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \[(\d)\. (.+?)\]\(\w+/(\w+)\.ipynb\) \| (\d+) \| (★*)☆* \|", page, re.MULTILINE)
    known = [(str(n), lab_page(name)) for n, name in enumerate(LABS)]
    assert rows == [(n, lab.title, lab.name, str(lab.minutes), "★" * lab.difficulty) for n, lab in known]


def test_links_lead_somewhere():
    page = (LABS_FOLDER / "README.md").read_text(encoding="utf-8")
    links = re.findall(r"\]\((.+?)\)", page)
    assert links and [link for link in links if not (LABS_FOLDER / link).exists()] == []
