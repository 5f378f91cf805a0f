"""Answers that attack the grader. Each file is the text of a cell; its first lines describe the attack and its place.

The class of test_hostile.py has the attack in that place. A file that defines `attack` uses it in place of the answer;
it earns nothing, and a finding matches the pattern after `Said:`. Any other file attacks when it is imported, holds the
right answer below, and earns all points if the attack failed. An attack with several targets returns the targets that
it reached, or "nothing".

Never import these files. In a working sandbox they do no harm; without one, their use of resources is bounded.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from grpo_lab.course.exercises import Function, Values
from grpo_lab.course.registry import lab_page
from tests.grading import mutants

NONE = ("__init__", "conftest", "world")
"""Files of this folder that are not attacks."""
KNOWN = "WORLD: dict[str, Any] = {}"
"""The line that is replaced by the attacker's knowledge of the machine."""


class Attack(NamedTuple):
    """A file of this folder."""

    name: str
    source: str
    lab: str
    exercise: str
    """Its place in the class that is graded."""
    said: str
    """A pattern that the finding matches; nothing where the answer is right."""
    called: bool
    """Whether its `attack` stands in place of the answer."""

    def __str__(self) -> str:
        return self.name

    def answer(self, lab: str, name: str, world: Mapping[str, Any]) -> str:
        """The text of this exercise's cell."""
        source, check = self.knowing(world), lab_page(lab).exercises[name].check
        if not self.called:
            return source if self.said else f"{source}\n\n{mutants.solution(lab, name)}"
        if isinstance(check, Function):
            return f"{source}\n\n{check.name} = attack\n"
        assert isinstance(check, Values)
        return f"{source}\n\n{' = '.join(check.names)} = attack()\n"

    def knowing(self, world: Mapping[str, Any]) -> str:
        """Its source with the attacker's knowledge of the machine."""
        return self.source.replace(KNOWN, f"WORLD = {dict(world)!r}")


def attacks() -> dict[str, Attack]:
    """All of them, by name."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return {file.stem: _attack(file) for file in files if file.stem not in NONE}


def _attack(file: Path) -> Attack:
    source = file.read_text(encoding="utf-8")
    module = ast.parse(source)
    text = ast.get_docstring(module) or ""
    place = re.search(r"^Place: (\w+)/(\w+)$", text, flags=re.MULTILINE)
    assert place and text.split("\n")[0].endswith("."), f"{file.name} does not say what it tries, or where"
    said = re.search(r"^Said: (.+)$", text, flags=re.MULTILINE)
    called = any(isinstance(node, ast.FunctionDef) and node.name == "attack" for node in module.body)
    return Attack(file.stem, source, place[1], place[2], said[1] if said else "", called)
