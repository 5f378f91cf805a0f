"""The fixed words of reports in a language: [report] of data/messages/<language>.toml. Findings are in course/."""

import functools
from typing import Any

from grpo_lab import messages
from grpo_lab.course import pages, registry, translation
from grpo_lab.course.exercises import Finding
from grpo_lab.messages import ENGLISH

LONGEST = 2_000
"""Characters of one value in a report; a text that a person marks is shown whole."""


class Words:
    """The words of one language. Raises ConfigError for a language without a file."""

    def __init__(self, language: str) -> None:
        messages.catalogue(language)
        self.language = language

    def __call__(self, key: str, **values: Any) -> str:
        """The text of a key, with values in place of its {placeholders}.

        >>> Words("en")("up_to", most=2), Words("zh")("up_to", most=2)
        ('up to 2', '最多 2 分')
        """
        return messages.text_in(self.language, f"report.{key}", **values)

    def before(self, key: str, text: str, **values: Any) -> str:
        """A text behind a label, with a space between them where the label ends with a narrow sign.

        >>> Words("en").before("wrong", "one NaN"), Words("zh").before("wrong", "一个 NaN")
        ('wrong: one NaN', '答错：一个 NaN')
        """
        label = self(key, **values)
        return f"{label}{'' if label.endswith('：') else ' '}{text}"

    def count(self, thing: str, number: int) -> str:
        """A number of notebooks, texts, exercises or files.

        >>> Words("en").count("notebook", 1), Words("en").count("notebook", 2), Words("zh").count("notebook", 2)
        ('1 notebook', '2 notebooks', '2 份笔记本')
        """
        return self(f"{'one' if number == 1 else 'many'}.{thing}", count=number)

    def shortened(self, text: str, most: int = LONGEST) -> str:
        """The text, cut after `most` characters with a note of how many follow.

        >>> Words("en").shortened("a" * 5000)[-31:], Words("zh").shortened("a" * 5000, 1)
        ('aaa … and 3,000 characters more', 'a ……另有 4,999 个字符')
        """
        return text if len(text) <= most else f"{text[:most]}{self('more_characters', count=f'{len(text) - most:,}')}"

    def status(self, status: str) -> str:
        """The status of a mark.

        >>> Words("zh").status("by hand")
        '待人工评分'
        """
        return self(f"status.{status}")

    def title(self, lab: str, exercise: str, title: str) -> str:
        """The title of an exercise; `title`, which the grader wrote down, for a lab that is not known here.

        >>> Words("zh").title("05_kl", "k3", "k3, also near 0")
        'k3，在 0 附近也正确'
        """
        return _titles(lab, self.language).get(exercise, title)

    def said(self, text: str) -> str:
        """A text that grading gave, such as a reason, a problem or a note; one without a translation stays English."""
        return translation.said(text, self.language)

    def finding(self, found: Finding) -> Finding:
        """A finding in this language."""
        return translation.in_language(found, self.language)


@functools.cache
def _titles(lab: str, language: str) -> dict[str, str]:
    """The titles of a lab's exercises in another language than the grader's; nothing for a lab that is not known."""
    if language == ENGLISH or lab not in registry.lab_names():
        return {}
    exercises = pages.in_language(registry.lab_page(lab), language).exercises
    return {name: exercise.title for name, exercise in exercises.items()}


@functools.cache
def words(language: str) -> Words:
    """The words of a language. Raises ConfigError for one without a file."""
    return Words(language)


def of(language: str) -> Words:
    """The words of a language as GRPO_LAB_LANG names it: zh_CN is zh, and an empty text is English."""
    return words(language.replace("-", "_").partition("_")[0].lower() or ENGLISH)
