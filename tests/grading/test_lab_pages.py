"""The page of every lab: its exercises fit into its time, and it ends with three questions."""

import pytest

from grpo_lab.course.registry import LABS, lab_page


@pytest.mark.parametrize("name", LABS)
def test_a_page_adds_up(name):
    page = lab_page(name)
    assert 4 <= len(page.exercises) <= 8
    assert sum(each.minutes for each in page.exercises.values()) < page.minutes
    assert [each for each in page.exercises.values() if each.points < 1] == []
    assert len(page.questions) == 3
    assert all(0 <= question.right < len(question.options) for question in page.questions)
