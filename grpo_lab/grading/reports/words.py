"""Texts as all reports show them, and their fixed words in a language: `report.…` of data/locale."""

import functools
from typing import Any

from grpo_lab import messages
from grpo_lab.course import pages, registry, translation
from grpo_lab.course.exercises import Finding
from grpo_lab.messages import ENGLISH

LONGEST = 2_000
"""Characters of one value in a report; a text that a person marks is shown whole."""

_SHOWN = frozenset("\n\t\xa0\u3000\u200c\u200d")
"""Harmless characters that Python calls not printable: line breaks, wide spaces, and the joiners of some scripts."""


def printable(text: str) -> str:
    r"""The text in one line, for reports and terminals, with invisible characters escaped.

    >>> printable("Zoë 王\n\x1b[2J")
    'Zoë 王\\n\\x1b[2J'
    """
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def visible(text: str) -> str:
    """The text with invisible characters escaped: control characters, changes of direction, lone surrogates.

    >>> print(visible("a\\x00b\\u202ec"))
    a\\x00b\\u202ec
    """
    text = text.replace("\r\n", "\n")
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in _SHOWN else printable(each) for each in text)


def number(points: float) -> str:
    """Points, with two decimals at most.

    >>> number(2.0), number(4 / 3)
    ('2', '1.33')
    """
    return f"{points:.2f}".rstrip("0").rstrip(".")


class Words:
    """The words of a language as GRPO_LAB_LANG names it: zh_CN is zh, and an empty text is English.

    Raises ConfigError for a language without a file.
    """

    def __init__(self, language: str) -> None:
        self.language = language.replace("-", "_").partition("_")[0].lower() or ENGLISH
        messages.catalogue(self.language)

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
