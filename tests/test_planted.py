"""`python -m benchmarks.planted`: every bug can be planted, and the command tells one that dies from one that lives."""

import os
import re

import pytest

from benchmarks import planted
from benchmarks.planted import Tried

BUGS = {bug.name: bug for bug in planted.bugs()}


def test_there_are_sixty_bugs_with_names_of_their_own():
    assert len(BUGS) == len(planted.bugs()) == 60
    assert [name for name in BUGS if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", name)] == []


@pytest.mark.parametrize("bug", BUGS.values(), ids=BUGS)
def test_a_bug_can_be_planted(bug):
    assert bug.problem() == "" and bug.old != bug.new and bug.what.endswith(".")
    text = (planted.ROOT / bug.file).read_text(encoding="utf-8").replace(bug.old, bug.new)
    compile(text, bug.file, "exec")
    files = {test.partition("::")[0] for test in bug.tests}
    assert files and [file for file in files if not (planted.ROOT / file).is_file()] == []


def test_a_patch_that_no_longer_applies_is_named(monkeypatch):
    moved = BUGS["every-step-draws-alike"]._replace(old="of another year")
    monkeypatch.setattr(planted, "bugs", lambda: [moved])
    with pytest.raises(SystemExit, match=r"every-step-draws-alike: `old` is 0 times in grpo_lab/seeds\.py"):
        planted.main([])


@pytest.mark.slow
def test_a_bug_that_no_test_notices_survives(monkeypatch, tmp_path, capsys):
    for name in [name for name in os.environ if name.startswith("PYTEST_")]:
        monkeypatch.delenv(name)
    bug = BUGS["every-step-draws-alike"]._replace(tests=["grpo_lab/seeds.py"])
    harmless = bug._replace(name="harmless", new=f"({bug.old})")
    monkeypatch.setattr(planted, "bugs", lambda: [bug, harmless])
    monkeypatch.setattr(planted, "PAGE", tmp_path / "planted.md")
    assert planted.main([]) == 1
    found = re.findall(r"(killed|SURVIVED) in \d+ s, (\S+)", capsys.readouterr().out)
    assert sorted(found) == [("SURVIVED", "harmless"), ("killed", bug.name)]
    assert "1 of 2 killed" in planted.PAGE.read_text(encoding="utf-8")
    monkeypatch.setattr(planted, "tried", lambda tests, bug=None: Tried("killed" if bug else "SURVIVED", 0.0, ""))
    assert planted.main(["--only", bug.name]) == 0
    assert f"1 of 1: killed in 0 s, {bug.name}" in capsys.readouterr().out
